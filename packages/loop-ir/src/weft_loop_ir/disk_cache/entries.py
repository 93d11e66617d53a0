"""Reading and writing entries: plain files of the user's own, written in one step."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import filelock

from weft_loop_ir.disk_cache.eviction import note_written
from weft_loop_ir.disk_cache.locations import WRITABLE_BY_OTHERS, trusted_folder, warn_once

READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO makes nobody wait
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
DAMAGED = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV, errno.EACCES, errno.EIO)


class DamagedEntry(Exception):
    """There is something else than an entry of the user's own; it is gone now."""


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(trusted_folder(folder), FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_entry(folder: Path, name: str) -> bytes:
    """What the entry holds.

    Raises FileNotFoundError where there is none, :class:`DamagedEntry` where somebody else could have written
    it or it is no plain file, and OSError where the folder can't be used.
    """
    with _opened(folder) as place:
        try:
            with os.fdopen(_open(place, folder, name), "rb") as file:
                return file.read()
        except OSError as error:
            if error.errno not in DAMAGED:
                raise
            _remove(place, name)
            raise DamagedEntry(f"{folder / name}: {error.strerror}") from error


def has_entry(folder: Path, name: str) -> bool:
    """Whether there is an entry that can be read; what is there else is removed."""
    try:
        with _opened(folder) as place:
            os.close(_open(place, folder, name))
    except FileNotFoundError:
        return False
    except (OSError, DamagedEntry):
        discard_entry(folder, name)
        return False
    return True


def _open(place: int, folder: Path, name: str) -> int:
    """A descriptor of the entry; removes what is none, and raises :class:`DamagedEntry`."""
    descriptor = os.open(name, READING, dir_fd=place)
    info = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(info.st_mode):
        problem = "is no file"
    elif info.st_uid != os.geteuid():
        problem = f"belongs to user {info.st_uid}"
    elif info.st_mode & WRITABLE_BY_OTHERS:
        problem = "may be written by others"
    if problem is None:
        return descriptor
    os.close(descriptor)
    if problem != "is no file":
        warn_once(f"weft: an entry of the cache {folder} is not used: {name} {problem}")
    _remove(place, name)
    raise DamagedEntry(f"{folder / name} {problem}")


def write_entry(folder: Path, name: str, content: bytes) -> None:
    """Write the entry in one step, so that no other process reads half of it; raises OSError."""
    trusted_folder(folder)
    handle, made = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        install_entry(folder, name, Path(made))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise


def install_entry(folder: Path, name: str, made: Path) -> None:
    """Make ``made``, a file in ``folder``, the entry; raises OSError."""
    made.chmod(0o700 if made.stat().st_mode & 0o100 else 0o600)
    size = made.stat().st_size
    try:
        os.replace(made, folder / name)
    except OSError:  # a folder has that name
        discard_entry(folder, name)
        os.replace(made, folder / name)
    note_written(folder, size)


def discard_entry(folder: Path, name: str) -> None:
    """Remove what has that name, if that is possible."""
    with contextlib.suppress(OSError), _opened(folder) as place:
        _remove(place, name)


def _remove(place: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=place)
    except FileNotFoundError:
        return
    except OSError:
        shutil.rmtree(name, ignore_errors=True, dir_fd=place)


@contextlib.contextmanager
def locked(folder: Path, name: str, seconds: float) -> Iterator[None]:
    """Be the only process inside, if that can be had in ``seconds``: who waits longer goes on beside it."""
    lock = f"{name}.lock"
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(os.lstat(folder / lock).st_mode):
            discard_entry(folder, lock)
    held = filelock.FileLock(folder / lock, timeout=seconds, mode=0o600)
    with contextlib.suppress(OSError, NotImplementedError):  # late, or no locks in this file system
        held.acquire()
    try:
        yield
    finally:
        if held.is_locked:
            discard_entry(folder, lock)  # first, or it could be another process's
        held.release()
