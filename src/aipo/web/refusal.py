"""A request that is not served, and how people are told."""

from __future__ import annotations

from aipo.errors import InputError

__all__ = ["Refusal", "sentence"]


class Refusal(Exception):
    """Says to whoever sent the request why it is not served.

    Attributes:
        status: the HTTP status, 4xx: the request is at fault, or it came at a bad time.
        text: one sentence for people.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


def sentence(error: InputError) -> str:
    """What is wrong with the input, as a sentence of its own."""
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."
