"""Writing files so that nobody ever sees half of one, and so that no two commands write to one folder.

While a file is being written, its temporary is locked by the operating system, and so is a folder that a command writes
to. Such a lock ends with its process, however that ends: a temporary without a lock was left by a process that was
killed. Without such locks, on Windows and on some network drives, nothing is locked and nothing is cleared away.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from aipo.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["FolderLock", "ensure_folder", "fitting_stem", "is_storage_error", "write_atomically"]

LEFTOVER = re.compile(r"\.aipo-[0-9a-f]{16}\.tmp")
LOCK_NAME = ".aipo-lock"
LONGEST_NAME = 255  # bytes; no usual file system takes more, and encrypted ones take less
TRIES = 100  # to lock a file before it is removed; a drive on which a file never seems to be itself has no usable locks
SHORTEST_LIMIT = 64  # less than this is not an answer that a file system could mean
STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


def write_atomically(path: str | Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write `content` to `path`, or leave what was there before untouched.

    `content` is the bytes themselves or a function that writes them to the binary file it is given.
    The bytes go to a temporary file in the same folder, which then takes the target's name in one step.
    Whatever goes wrong, an interrupt included, the temporary file is removed and the error is raised again.

    Raises:
        InputError: the target is a folder, its name is too long, or its folder is missing or cannot be written.
    """
    path = Path(path)
    if os.path.isdir(path):
        raise InputError(f"cannot write {path}: it is a folder; give a file name")
    try:
        temporary, file = _new_temporary(path.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose a folder you can write to") from error
    with file:
        try:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())  # otherwise a power cut could leave the new name on an empty file
            if fcntl is None:
                file.close()  # Windows does not rename an open file
            os.replace(temporary, path)  # while the lock still says that the temporary is in use
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
                raise InputError(f"cannot write {path}: the name is too long; choose a shorter one") from error
            raise


def ensure_folder(path: str | Path) -> Path:
    """Create the output folder `path` and its parents if needed, and return it.

    Temporary files that a killed process has left there are removed.

    Raises:
        InputError: it cannot be created or written to, for example because a file is in the way.
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot create the folder {path}: {reason}; choose another one") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to the folder {path}: permission denied; choose another one")
    _clear_leftovers(path)
    return path


class FolderLock:
    """The right to write to a folder, which only one process has at a time.

    `acquire` creates the folder if needed, and may be called again. The lock ends with the `with` block, and a process
    that is killed leaves nothing that stops the next one.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, FolderLock(folder) as lock:
        ...     lock.acquire()
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self._file: BinaryIO | None = None

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with self._file:
                # Before the lock ends: afterwards the file may be another process's lock.
                (self.folder / LOCK_NAME).unlink(missing_ok=True)
            self._file = None

    @property
    def held(self) -> bool:
        """Whether we have it."""
        return self._file is not None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            InputError: another process has it, or the folder cannot be written to.
        """
        if self._file is not None:
            return
        ensure_folder(self.folder)
        path = self.folder / LOCK_NAME
        for _ in range(TRIES if fcntl is not None else 0):
            file = _open_lock(path)
            mine = _lock(file)
            if mine is False:
                raise InputError(
                    f"{_owner(file)} is writing to the folder {self.folder}; wait until it has finished, or choose "
                    "another folder"
                )
            if mine is None:  # a file system without locks
                path.unlink(missing_ok=True)
                file.close()
                return
            if _is_at(file, path):
                self._file = file
                file.write(str(os.getpid()).encode())
                file.truncate()
                file.flush()
                return
            file.close()  # the process that had it has just removed it


def fitting_stem(stem: str, ending: str, folder: Path) -> str:
    """`stem`, or if `stem + ending` is too long for a file name in `folder`, its beginning and a hash of all of it.

    The same stem always gives the same name, and two that begin alike do not share one.

    Examples:
        >>> fitting_stem("photo", ".restored.png", Path())
        'photo'
        >>> len(fitting_stem("á" * 200, ".restored.png", Path()).encode())
        241
    """
    room = _longest_name(folder) - len(os.fsencode(ending))
    if len(os.fsencode(stem)) <= room:
        return stem
    digest = hashlib.sha256(os.fsencode(stem)).hexdigest()[:12]
    while len(os.fsencode(stem)) > room - len(digest) - 1:
        stem = stem[:-1]
    return f"{stem}-{digest}"


def is_storage_error(error: OSError) -> bool:
    """Whether the disk is full or broken: what is written next would fail too."""
    return error.errno in STORAGE_ERRORS


def _new_temporary(folder: Path) -> tuple[Path, BinaryIO]:
    """A new temporary file in the folder, open and locked."""
    for tries in range(TRIES):
        path = folder / f".aipo-{secrets.token_hex(8)}.tmp"
        # Opened by hand rather than with `tempfile`, whose files nobody but their owner may read.
        file = open(path, "xb")  # noqa: SIM115 (closed by the caller)
        # Before it was locked, another process may have taken it for a leftover.
        if _lock(file) is not False and (fcntl is None or _is_at(file, path) or tries == TRIES - 1):
            break
        file.close()
        path.unlink(missing_ok=True)
    return path, file


def _clear_leftovers(folder: Path) -> None:
    with suppress(OSError):  # whatever cannot be cleared away is in nobody's way
        for entry in list(os.scandir(folder)):
            if LEFTOVER.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(OSError), open(entry.path, "r+b") as file:
                    if _lock(file):
                        os.unlink(entry.path)


def _lock(file: BinaryIO) -> bool | None:
    """Lock an open file until it is closed; False if another process has it, None if there are no locks here."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _open_lock(path: Path) -> BinaryIO:
    # Never through a link, which could lead to a file of the user's; and a pipe must not make us wait.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return open(path, "r+b", opener=lambda name, _: os.open(name, flags, 0o666))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another folder") from error


def _owner(lock: BinaryIO) -> str:
    """The process that holds a lock, for people."""
    with lock:
        number = re.fullmatch(rb"\d{1,20}", lock.read(21))
    return f"process {number[0].decode()}" if number else "another process"


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is the one that has this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except OSError:
        return False


def _longest_name(folder: Path) -> int:
    """Bytes in a file name of the folder, which need not exist yet."""
    existing = next((parent for parent in (folder, *folder.parents) if os.path.isdir(parent)), Path())
    try:
        found = os.pathconf(existing, "PC_NAME_MAX")
    except (AttributeError, OSError, ValueError):
        return LONGEST_NAME
    return found if SHORTEST_LIMIT <= found < LONGEST_NAME else LONGEST_NAME
