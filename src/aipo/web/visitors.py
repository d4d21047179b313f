"""Who has the page open.

A page keeps one connection open for as long as it is shown (Gradio calls it the heartbeat), and only pages that have
done so are served. So what is kept for pages has a bound, and a flood of made-up ones pushes out no real one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aipo.web.http import Refusal

__all__ = ["SESSION", "Visitors"]

SESSION = re.compile(r"[0-9A-Za-z]{1,64}")  # what a page calls itself; it makes that up when it is opened


@dataclass
class _Visitor:
    here: bool = True
    listening: bool = False
    left: float = 0.0


class Visitors:
    """The pages that are open, and some that were lately.

    Arguments:
        limit: how many are known at a time.
        forget: called with the name of a page that is no longer known.
        clock: the time in seconds.
    """

    def __init__(
        self, limit: int, forget: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = limit
        self._forget, self._clock = forget, clock
        self._known: dict[str, _Visitor] = {}

    @contextmanager
    def visit(self, name: str) -> Iterator[None]:
        """While a page is open.

        Raises:
            Refusal: it is open already, or too many are.
        """
        visitor = self._known.get(name)
        if visitor is None:
            self._make_room()
            visitor = self._known[name] = _Visitor()
        elif visitor.here:
            raise Refusal(409, "This page is open already.")
        visitor.here = True
        try:
            yield
        finally:
            visitor.here, visitor.left = False, self._clock()

    @contextmanager
    def listen(self, name: str) -> Iterator[None]:
        """While a page fetches its messages.

        Raises:
            Refusal: it is not known, or fetches them already.
        """
        visitor = self._visitor(name)
        if visitor.listening:
            raise Refusal(409, "These messages are being fetched already.")
        visitor.listening = True
        try:
            yield
        finally:
            visitor.listening, visitor.left = False, self._clock()

    def check(self, name: str) -> None:
        """`Refusal` if the page is not known."""
        self._visitor(name)

    def __len__(self) -> int:
        return len(self._known)

    def _visitor(self, name: str) -> _Visitor:
        if name not in self._known:
            raise Refusal(403, "This page is no longer known here; reload it.")
        return self._known[name]

    def _make_room(self) -> None:
        if len(self._known) < self.limit:
            return
        gone = [name for name, visitor in self._known.items() if not visitor.here and not visitor.listening]
        if not gone:
            raise Refusal(429, "Too many people have this page open; try again later.")
        longest = min(gone, key=lambda name: self._known[name].left)
        del self._known[longest]
        self._forget(longest)
