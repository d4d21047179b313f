"""Memory: what several requests share, each waiting in the order of asking, and how the process gives it back."""

from __future__ import annotations

import asyncio
import ctypes
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["Budget", "return_large_blocks"]

M_MMAP_THRESHOLD = -3  # in glibc's malloc.h
LARGE = 4_000_000  # bytes; pictures are larger, what a restoration works with is smaller


class Budget:
    """So many bytes and no more. For one event loop.

    Attributes:
        total: bytes in all.
        used: bytes that are taken at the moment.
    """

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def share(self, amount: int, patience: float | None = None) -> AsyncIterator[None]:
        """Hold `amount` bytes. Waits for them, but no longer than `patience` seconds.

        Raises:
            TimeoutError: it waited too long.
            ValueError: it is more than the whole budget.
        """
        if amount > self.total:
            raise ValueError(f"{amount} bytes are more than the whole budget of {self.total}")
        async with asyncio.timeout(patience):
            await self._take(amount)
        try:
            yield
        finally:
            self.used -= amount
            self._serve_line()

    async def _take(self, amount: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._line.append((amount, turn))
        self._serve_line()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it got its share in the moment it gave up
                self.used -= amount
            turn.cancel()
            self._serve_line()
            raise

    def _serve_line(self) -> None:
        # Strictly in order: otherwise small requests could keep a large one waiting forever.
        while self._line:
            amount, turn = self._line[0]
            if not turn.cancelled():
                if self.used + amount > self.total:
                    return
                self.used += amount
                turn.set_result(None)
            self._line.popleft()


def return_large_blocks() -> None:
    """From now on large blocks go back to the system as soon as they are freed.

    By default glibc keeps what it once gave to a thread: after eight large uploads, 400 MB of nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # other C libraries have none
        mallopt(M_MMAP_THRESHOLD, LARGE)
