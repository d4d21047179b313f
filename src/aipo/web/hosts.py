"""Names of machines, as a request gives them."""

from __future__ import annotations

import ipaddress
import re

__all__ = ["LOCAL", "is_host", "is_local"]

LOCAL = ("127.0.0.1", "localhost", "::1")
HOST = re.compile(rb"([A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.?|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")


def is_host(value: bytes) -> bool:
    """Whether this is a name or an address, with or without a port."""
    return _name(value) is not None


def is_local(value: bytes) -> bool:
    """Whether this is a name of this machine that no other can have."""
    return _name(value) in LOCAL


def _name(value: bytes) -> str | None:
    match = HOST.fullmatch(value)
    if match is None or int(match[2] or 0) > 65535:
        return None
    name = match[1].decode().lower().strip("[]")
    if ":" in name or not name.strip("0123456789."):
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return None
    return name
