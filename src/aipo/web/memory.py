"""How the process gives memory back."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["return_large_blocks"]

M_MMAP_THRESHOLD = -3  # in glibc's malloc.h
LARGE = 4_000_000  # bytes; pictures are larger, what a restoration works with is smaller


def return_large_blocks() -> None:
    """From now on large blocks go back to the system as soon as they are freed.

    By default glibc keeps what it once gave to a thread: after eight large uploads, 400 MB of nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # other C libraries have none
        mallopt(M_MMAP_THRESHOLD, LARGE)
