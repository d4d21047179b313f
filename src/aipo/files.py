"""Writing files so that nobody ever sees half of one."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from aipo.errors import InputError

__all__ = ["ensure_folder", "write_atomically"]


def write_atomically(path: str | Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write `content` to `path`, or leave what was there before untouched.

    `content` is the bytes themselves or a function that writes them to the binary file it is given.
    The bytes go to a temporary file in the same folder, which then takes the target's name in one step.
    Whatever goes wrong, an interrupt included, the temporary file is removed and the error is raised again.

    Raises:
        InputError: the target is a folder, or its folder is missing or cannot be written.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; give a file name")

    # Opened by hand rather than with `tempfile`, whose files nobody but their owner may read.
    temporary = path.parent / f".aipo-{secrets.token_hex(8)}.tmp"
    try:
        file = open(temporary, "xb")  # noqa: SIM115 (closed by the `with` below)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose a folder you can write to") from error
    try:
        with file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())  # otherwise a power cut could leave the new name on an empty file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def ensure_folder(path: str | Path) -> Path:
    """Create the output folder `path` and its parents if needed, and return it.

    Raises:
        InputError: it cannot be created or written to, for example because a file is in the way.
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder {path}: {error.strerror}; choose another one") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to the folder {path}: permission denied; choose another one")
    return path
