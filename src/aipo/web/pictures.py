"""Take uploads: as many at once as their memory allows. The others wait for their turn.

A picture is not sent through Gradio, which would hold it six times over: as bytes, as text, and as parsed JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aipo.errors import InputError
from aipo.web.bodies import Body, Receive
from aipo.web.budget import Budget
from aipo.web.decode import decoding_memory
from aipo.web.jobs import Cores
from aipo.web.refusal import Refusal
from aipo.web.upload import WORKSPACE, pack, read_upload

__all__ = ["UPLOAD_MEMORY", "Pictures"]

FILES = 200_000_000  # bytes for files that are arriving or wait to be decoded
DECODING = 1_000_000_000  # bytes for pictures that are being decoded; the heaviest picture needs 0.92 GB
UPLOAD_MEMORY = FILES + DECODING  # all that uploads take together, however many there are
FIRST = 65_536  # bytes of a file that must have come before room is made for the rest
PATIENCE = 120.0  # seconds an upload waits for its turn

T = TypeVar("T")


class Pictures:
    """The uploads of all users.

    Arguments:
        size: (H, W) of the images that are made of them.
        cores: shared with the restorations.
    """

    def __init__(self, size: tuple[int, int], cores: Cores) -> None:
        self.size, self.cores = size, cores
        self.files, self.decoding = Budget(FILES), Budget(DECODING)
        # Threads of their own, and few: the C library keeps some memory for every thread that has decoded a picture.
        self._threads = ThreadPoolExecutor(cores.count, "decode")

    async def take(self, receive: Receive, length: int) -> dict[str, str]:
        """Receive a file of `length` bytes. The answer is that of `pack`, or says why the file is `refused`.

        Raises:
            Refusal: it did not arrive, or its turn did not come.
        """
        body = Body(receive, length)
        await body.read(FIRST)  # so whoever only announces a file keeps no room from others
        try:
            # Twice its length: once in pieces as it came, once whole.
            async with self.files.share(2 * length, PATIENCE):
                content = await body.read()
                memory = await self._in_thread(decoding_memory, content)
                async with self.decoding.share(memory + WORKSPACE, PATIENCE):
                    return await self._in_thread(self._read, content)
        except InputError as error:
            return {"refused": f"Not accepted: {error}."}
        except TimeoutError:
            raise Refusal(429, "Too many pictures are waiting; try again in a minute.") from None

    def _read(self, content: bytes) -> dict[str, str]:
        with self.cores.job():
            self.cores.take_share()
            return pack(*read_upload(content, self.size))

    async def _in_thread(self, function: Callable[[bytes], T], content: bytes) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, content)
