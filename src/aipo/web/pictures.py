"""Pictures that strangers send: as many at once as their memory allows. The others wait for their turn.

A picture is not sent through Gradio, which would hold it six times over: as bytes, as text, and as parsed JSON. It
becomes one of the prior's size, and travels on as text. The page gets it back in that form and sends it along when it
is used, so nothing is kept here between the two.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from aipo.errors import InputError
from aipo.images import to_uint8
from aipo.images.windows import Window, place_window
from aipo.web.budget import Budget
from aipo.web.decode import decode, decoding_memory
from aipo.web.http import Body, Receive, Refusal
from aipo.web.jobs import Cores

__all__ = ["UPLOAD_MEMORY", "WORKSPACE", "Pictures", "pack", "read_upload", "unpack"]

FILES = 200_000_000  # bytes for files that are arriving or wait to be decoded
DECODING = 1_000_000_000  # bytes for pictures that are being decoded; the heaviest picture needs 0.92 GB
UPLOAD_MEMORY = FILES + DECODING  # all that uploads take together, however many there are
FIRST = 65_536  # bytes of a file that must have come before room is made for the rest
PATIENCE = 120.0  # seconds an upload waits for its turn
PHOTO = 2  # times the prior's size; a larger image may show more than a face
LONGEST_NOTE = 200  # characters
WORKSPACE = 200_000_000  # bytes that `read_upload` takes at most, beside those of the decoder

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


def read_upload(content: bytes, size: tuple[int, int]) -> tuple[Tensor, str]:
    """The image (3, H, W) in [0,1], and a sentence that says what was done to it.

    In a photo the largest face is rotated and scaled to where the priors expect it. Otherwise the largest square in the
    middle is scaled to `size` (H, W). Transparent pixels become white.

    Raises:
        InputError: it is too large, damaged, or not an image.
    """
    upright, (width, height) = decode(content)
    x = torch.from_numpy(np.array(upright)).permute(2, 0, 1).contiguous().float().div_(255)
    wanted, found = f"{size[1]}x{size[0]}", f"Your picture has {width}x{height} pixels;"
    if x.shape[1:] == size:
        unchanged = (height, width) == size
        return x, f"Used as it is: {wanted} pixels." if unchanged else f"{found} it was scaled to {wanted}."
    window = _face(x, size)
    if window:
        return window.cut(x).clamp(0, 1), f"{found} its face was found, set upright and scaled to {wanted}."
    crop = "it" if width == height else "the square in its middle"
    return place_window(x, size, "resize").cut(x).clamp(0, 1), f"{found} {crop} was scaled to {wanted}."


def pack(image: Tensor, note: str) -> dict[str, str]:
    """An image (3, H, W) in [0,1] and its sentence as text: 8 bits for each value, row by row, in base64."""
    levels = to_uint8(image).permute(1, 2, 0).contiguous().numpy()
    return {"picture": base64.b64encode(levels.tobytes()).decode("ascii"), "note": note}


def unpack(sent: object, size: tuple[int, int]) -> tuple[Tensor, str]:
    """The inverse of `pack`, up to rounding, for an image of `size` (H, W).

    Raises:
        InputError: it is something else.
    """
    height, width = size
    picture, note = (sent.get("picture"), sent.get("note")) if isinstance(sent, dict) else (None, None)
    if not isinstance(picture, str) or not isinstance(note, str) or len(note) > LONGEST_NOTE:
        raise InputError("no picture has arrived; try again")
    try:
        levels = base64.b64decode(picture, validate=True)
    except (binascii.Error, ValueError):
        levels = b""
    if len(levels) != height * width * 3:
        raise InputError("the picture did not arrive complete; try again")
    x = torch.from_numpy(np.frombuffer(levels, np.uint8).copy()).view(height, width, 3)
    return x.permute(2, 0, 1).contiguous().float() / 255, note


def _face(x: Tensor, size: tuple[int, int]) -> Window | None:
    """Where the face is in a photo; None if there is none. An image hardly larger than needed counts as a crop."""
    if min(x.shape[1:]) < PHOTO * max(size):
        return None
    try:
        return place_window(x, size, "align")
    except InputError:
        return None
