"""Images as people have them: files, masks, faces, samples, and how close one image is to another."""

from aipo.images.masks import color_mask, read_mask
from aipo.images.reading import SUFFIXES, OpenedImage, open_image, read_image, read_kernel, read_numbers
from aipo.images.writing import png_bytes, tile, to_uint8, write_image

__all__ = [
    "SUFFIXES",
    "OpenedImage",
    "color_mask",
    "open_image",
    "png_bytes",
    "read_image",
    "read_kernel",
    "read_mask",
    "read_numbers",
    "tile",
    "to_uint8",
    "write_image",
]
