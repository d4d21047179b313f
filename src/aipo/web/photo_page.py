"""The page for photographs: its files, which the browser gets as they are, and the requests behind it."""

from __future__ import annotations

from importlib.resources import files

import torch

from aipo.images import png_bytes, samples
from aipo.web.http import Answer
from aipo.web.photo_job import restore_photo
from aipo.web.photo_request import PhotoRequest, settings_for
from aipo.web.photos import Photos

__all__ = ["PhotoPage"]

SAMPLE_SIGMA = 0.1  # of the noise that the sample gets
TYPES = {"/": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "png": "image/png"}
ASSETS = ("photo.html", "photo.css", "photo.js", "stage.js", "marks.js")


class PhotoPage:
    """What is served.

    Attributes:
        photos: answers the requests of the page.
        files: path -> type and content.
    """

    def __init__(self, photos: Photos) -> None:
        self.photos = photos
        sent = {f"/photo/{name}": (files("aipo.web") / name).read_bytes() for name in ASSETS}
        sent["/"] = sent.pop("/photo/photo.html").replace(b"{prior}", photos.prior.name.encode())
        sent["/photo/sample.png"] = _sample()
        self.files = {path: (TYPES[path.rpartition(".")[2]], content) for path, content in sent.items()}

    async def send_file(self, path: str, answer: Answer, head: bool = False) -> None:
        """One of the files, or only what there is to say about it."""
        kind, content = self.files[path]
        about = [
            (b"content-type", kind.encode()),
            (b"content-length", b"%d" % len(content)),
            (b"cache-control", b"no-cache"),
        ]
        await answer({"type": "http.response.start", "status": 200, "headers": about})
        await answer({"type": "http.response.body", "body": b"" if head else content})

    def warm_up(self) -> None:
        """The first evaluation packs weights and wakes threads; no user should have to wait for that."""
        prior = self.photos.prior
        restore_photo(prior, PhotoRequest(settings_for(prior, task="denoise")), _sample(), lambda *_: None)


def _sample() -> bytes:
    x = samples.photograph()
    return png_bytes(x + SAMPLE_SIGMA * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)))
