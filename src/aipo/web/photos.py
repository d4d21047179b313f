"""Photographs that strangers send, over HTTP: one request has the file and what is wanted, its answer has it all.

A request is a line of JSON and then the file. The answer is a stream of messages, each a line of JSON that says how
many bytes follow. Whoever closes the connection stops the work. Nothing is kept between two requests, so there is
nothing to find for anybody else.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from typing import Any

from aipo.errors import InputError
from aipo.priors.noise_prior import NoisePrior
from aipo.web.budget import Budget
from aipo.web.decode import PHOTOS
from aipo.web.http import Answer, Body, Receive, Refusal, sentence
from aipo.web.jobs import Cores, Job, Jobs
from aipo.web.photo_job import Stopped, Tell, blend, look_at, photo_memory, restore_photo
from aipo.web.photo_request import MAX_HEADER, PhotoRequest, parse_header, parse_request
from aipo.web.pictures import FIRST, PATIENCE

__all__ = ["LONGEST", "PHOTO_MEMORY", "Photos"]

FILES = 300_000_000  # bytes for files that are arriving, or whose turn has not come
WORK = 3_500_000_000  # bytes for photographs that are being restored or shown; the largest needs 2.7 GB
PHOTO_MEMORY = FILES + WORK  # all that photographs take together, however many there are
# Bytes of a request: the picture, or with "blend" two of them.
LONGEST = {"look": PHOTOS.bytes + MAX_HEADER, "restore": PHOTOS.bytes + MAX_HEADER, "blend": 2 * PHOTOS.bytes + 1000}
EVERY = 0.5  # seconds between two looks at the line
CHUNK = 262_144  # bytes that are sent at a time, so that whoever reads slowly is told from who does not read


class Photos:
    """The photographs of all users.

    Arguments:
        prior: restores them.
        cores, jobs: shared with the restorations of faces.
        time_limit: seconds after which a restoration is stopped.
    """

    def __init__(self, prior: NoisePrior, cores: Cores, jobs: Jobs, time_limit: float) -> None:
        self.prior, self.cores, self.jobs, self.time_limit = prior, cores, jobs, time_limit
        self.files, self.work = Budget(FILES), Budget(WORK)
        self._threads = ThreadPoolExecutor(cores.count + 1, "photo")

    async def serve(
        self, action: str, receive: Receive, length: int, answer: Answer, who: Callable[[object], str]
    ) -> None:
        """Answer a request to "look", "restore" or "blend".

        Arguments:
            who: the user that a tab belongs to, by what the tab calls itself.

        Raises:
            Refusal: it did not arrive, or its turn did not come.
        """
        body = Body(receive, length)
        await body.read(FIRST)  # so whoever only announces a file keeps no room from others
        try:
            async with self.files.share(2 * length, PATIENCE):
                line, _, content = (await body.read()).partition(b"\n")
                try:
                    header = parse_header(line)
                    if action == "restore":
                        await self._restore(header, content, receive, answer, who(header.get("tab")))
                    else:
                        await self._at_once(action, header, content, answer)
                except InputError as error:
                    await _send(answer, {"status": "failed", "text": sentence(error)})
        except TimeoutError:
            raise Refusal(429, "Too many pictures are waiting; try again in a minute.") from None
        await answer.finish()

    async def _at_once(self, action: str, header: dict[str, Any], content: bytes, answer: Answer) -> None:
        """What needs no place in the line."""
        sizes = _sizes(header, len(content)) if action == "blend" else (len(content), 0)
        first, second = content[: sizes[0]], content[sizes[0] :]
        memory = photo_memory(first, restored=action == "blend")
        async with self.work.share(memory, PATIENCE):
            if action == "look":
                message, shown = await self._in_thread(lambda: look_at(first))
            else:
                share = header.get("share")
                if not isinstance(share, int | float) or not 0 <= share <= 1:
                    raise InputError("the strength must be from 0 to 1")
                shown = await self._in_thread(lambda: blend(first, second, float(share)))
                message = {}
            await _send(answer, {"status": "done"} | message, shown)

    async def _restore(
        self, header: dict[str, Any], content: bytes, receive: Receive, answer: Answer, user: str
    ) -> None:
        request = parse_request(header, self.prior)
        factor = (request.settings.factor or 2) if request.settings.task == "superres" else 1
        memory = photo_memory(content, factor=factor)
        job = self.jobs.begin(user)
        listening = asyncio.create_task(_end_with(receive, job))
        try:
            async with AsyncExitStack() as held:
                with self.jobs.listening(user):
                    await self._wait(job, memory, held, answer)
                    await self._work(job, request, content, answer)
        finally:
            listening.cancel()
            self.jobs.end(job)

    async def _wait(self, job: Job, memory: int, held: AsyncExitStack, answer: Answer) -> None:
        """Until a core is free and there is memory."""
        told = -1
        while not self.jobs.is_over(job):
            ahead = self.jobs.ahead(job)
            if ahead is not None and ahead < self.cores.count:
                with suppress(TimeoutError):
                    await held.enter_async_context(self.work.share(memory, EVERY))
                    return
            if ahead is not None and ahead != told:
                line = f", number {ahead - self.cores.count + 1} in line" if ahead >= self.cores.count else ""
                await _send(answer, {"status": "waiting", "text": f"Waiting for a free core{line} …"})
                told = ahead
            await asyncio.sleep(EVERY)

    async def _work(self, job: Job, request: PhotoRequest, content: bytes, answer: Answer) -> None:
        """Restore in a thread, and send what it says until it ends. Who is gone is not told."""
        said: asyncio.Queue[tuple[dict[str, Any], bytes] | None] = asyncio.Queue()
        loop, until = asyncio.get_running_loop(), time.monotonic() + self.time_limit

        def tell(message: dict[str, Any], more: bytes) -> None:
            if message["status"] == "running":
                if self.jobs.is_over(job):
                    raise Stopped("Stopped by you")
                if time.monotonic() > until:
                    raise Stopped(f"Stopped after {self.time_limit:.0f} s, the time limit")
            self.cores.take_share()  # others may have come or gone
            loop.call_soon_threadsafe(said.put_nowait, (message, more))

        ended = loop.run_in_executor(self._threads, self._restored, request, content, tell)
        ended.add_done_callback(lambda _: said.put_nowait(None))
        while (message := await said.get()) is not None:
            if not job.gone.is_set():
                await _send(answer, *message)
        await ended

    def _restored(self, request: PhotoRequest, content: bytes, tell: Tell) -> None:
        with self.cores.job():
            self.cores.take_share()
            restore_photo(self.prior, request, content, tell)

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


async def _end_with(receive: Receive, job: Job) -> None:
    """Stop a job when its connection is closed."""
    while (await receive())["type"] != "http.disconnect":
        pass
    job.gone.set()
    job.stop.set()


def _sizes(header: dict[str, Any], length: int) -> tuple[int, int]:
    """How long the two files are that came as one."""
    first = header.get("first")
    if type(first) is not int or not 0 < first < length:
        raise InputError("the two pictures did not arrive; try again")
    return first, length - first


async def _send(answer: Answer, message: dict[str, Any], content: bytes = b"") -> None:
    if not answer.begun:
        about = [(b"content-type", b"application/octet-stream"), (b"cache-control", b"no-store")]
        await answer({"type": "http.response.start", "status": 200, "headers": about})
    line = json.dumps({**message, "bytes": len(content)}).encode() + b"\n"
    for start in range(0, len(line) + len(content), CHUNK):
        part = (line + content[: CHUNK - len(line)]) if start == 0 else content[start - len(line) :][:CHUNK]
        await answer({"type": "http.response.body", "body": part, "more_body": True})
