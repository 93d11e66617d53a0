"""Files that processes of one user keep for each other: where they may lie, how they are read and written.

What is kept is run or believed by later processes, so that only files count which nobody but the user can
have written.  All of weft's caches are folders of this kind: ``cpp``, ``triton`` and ``programs`` under
``$WEFT_CACHE_DIR``, else in the user's cache directory.

A folder counts if it is the user's and only the user may write to it, and if nobody but the user and the
system can put another in its place: each folder above it, and each link on the way, belongs to one of these,
and others may write to it only where its sticky bit keeps them from moving what is not theirs (``/tmp``).

An entry is all files whose names begin with one hash (``KEY.so``, ``KEY.sum``, ``headers-KEY/``); other
files are nobody's and stay.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import re
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import platformdirs

# -- locations ----------------------------------------------------------------------------------------


MAX_LINKS = 40
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
PRIVATE_PREFIX = "weft-cache-"
ABANDONED_SECONDS = 24 * 3600.0

_warned: set[str] = set()
_private: dict[int, Path] = {}  # by process: a forked one has its own


class CacheWarning(UserWarning):
    """What is kept on disk is not used, or not kept for later processes."""


class UntrustedError(OSError):
    """Somebody else could have written what is there."""


def warn_once(message: str) -> None:
    """Warn of ``message`` if this process has not yet; a filter that makes warnings errors has it logged."""
    if message in _warned:
        return
    _warned.add(message)
    try:
        warnings.warn(message, CacheWarning, stacklevel=3)
    except CacheWarning:
        logging.getLogger("weft").warning(message)


def cache_folder(name: str, chosen: Path | None = None, limit: int | None = None) -> Path:
    """The folder of the cache ``name``, which is made if need be: ``chosen``, or one named so.

    From then on this process keeps it below ``limit`` bytes (0: any number; None: what
    :func:`~weft_loop_ir.disk_cache.size_limit` says).  Where that can't be used, this process has
    one of its own in the temporary directory, and a warning says why.  Raises OSError where there is no
    temporary directory either.
    """
    try:
        folder = chosen if chosen is not None else cache_base() / name
        trusted_folder(folder)
    except OSError as error:
        warn_once(f"weft: {_reason(error)}. What is compiled is not kept for other processes.")
        folder = private_folder(name)
    set_limit(folder, limit)
    return folder


def _reason(error: OSError) -> str:
    if isinstance(error, UntrustedError) or error.strerror is None:
        return str(error)
    folder = "" if error.filename is None else f" {error.filename}"
    return f"the cache{folder} cannot be used: {error.strerror}"


def cache_base() -> Path:
    """The folder that holds all caches, there or not; raises OSError where there can be none."""
    named = os.environ.get("WEFT_CACHE_DIR")
    if named:
        return Path(named)
    try:
        base = Path(platformdirs.user_cache_dir("weft"))
    except RuntimeError:  # as newer versions say it
        base = Path("~")
    if not base.is_absolute():  # "~/.cache/weft" of nobody
        raise FileNotFoundError("there is no home directory for a cache (WEFT_CACHE_DIR names one)")
    return base


def private_folder(name: str) -> Path:
    """The same in a temporary directory of this process, which goes with it."""
    root = _private.get(os.getpid())
    if root is None or not root.is_dir():
        _remove_abandoned()
        root = Path(tempfile.mkdtemp(prefix=f"{PRIVATE_PREFIX}{os.getpid()}-"))
        _private[os.getpid()] = root
        atexit.register(_remove_private, root, os.getpid())
    folder = root / name
    trusted_folder(folder)
    return folder


def _remove_private(root: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(root, ignore_errors=True)


def _remove_abandoned() -> None:
    """Remove such directories of processes that were killed."""
    with contextlib.suppress(OSError):
        for item in os.scandir(tempfile.gettempdir()):
            if not item.name.startswith(PRIVATE_PREFIX) or not item.is_dir(follow_symlinks=False):
                continue
            info = item.stat(follow_symlinks=False)
            is_old = time.time() - info.st_mtime > ABANDONED_SECONDS
            owner = item.name.removeprefix(PRIVATE_PREFIX).partition("-")[0]
            if is_old and info.st_uid == os.geteuid() and not os.path.exists(f"/proc/{owner}"):
                shutil.rmtree(item.path, ignore_errors=True)


def trusted_folder(folder: Path) -> str:
    """The true path of ``folder``, which is made if need be; raises OSError where it can't be used."""
    path = _walk(os.path.abspath(folder))
    info = os.lstat(path)
    if info.st_uid != os.geteuid():
        raise UntrustedError(f"the cache {path} belongs to user {info.st_uid}")
    if info.st_mode & WRITABLE_BY_OTHERS:
        raise UntrustedError(f"others may write to the cache {path} (chmod go-w)")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(13, "no permission to write", path)
    return path


def _walk(path: str) -> str:
    """The path without links; raises :class:`UntrustedError` where somebody else could change one on the way.

    Folders that are missing are made, for the user only.
    """
    trusted = {0, os.geteuid(), os.lstat("/").st_uid}  # in a user namespace the system is "nobody"
    pending, at, links = path.split("/")[::-1], "/", 0
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        if part == "..":
            at = os.path.dirname(at)
            continue
        here = os.path.join(at, part)
        info = _existing(here)
        if info.st_uid not in trusted:
            raise UntrustedError(f"{here}, on the way to a cache, belongs to user {info.st_uid}")
        if stat.S_ISLNK(info.st_mode):
            links += 1
            if links > MAX_LINKS:
                raise UntrustedError(f"{path} has too many links")
            target = os.readlink(here)
            at = "/" if target.startswith("/") else at
            pending += target.split("/")[::-1]
            continue
        if not stat.S_ISDIR(info.st_mode):
            raise NotADirectoryError(20, "no folder", here)
        is_last = not any(pending)
        if not is_last and info.st_mode & WRITABLE_BY_OTHERS and not info.st_mode & stat.S_ISVTX:
            raise UntrustedError(f"others may write to {here}, on the way to a cache")
        at = here
    return at


def _existing(path: str) -> os.stat_result:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        return os.lstat(path)


# -- keeping caches small: what was used longest ago goes ----------------------------------------------


DEFAULT_LIMIT = 4 << 30
RECENT_SECONDS = 60.0
"""What was used so lately may be in use: a library that is built, but not loaded yet."""

ORPHAN_SECONDS = 3600.0
"""How old a temporary file, a lock or half of an entry is that nobody can be working on."""

KEY = re.compile(r"(?:headers-)?([0-9a-f]{32,64})(?![0-9a-z])")
TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}(?![a-z0-9_])")
INNER = "work"
"""A folder in a cache whose folders are entries too, by names of another kind (Triton's own cache)."""

PARTNERS = ((".so", ".sum"), (".cubin", ".json"))
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_written: dict[Path, int] = {}  # bytes since the folder was looked through
_limits: dict[Path, int] = {}  # that this process was asked to keep


def size_limit() -> int:
    """Bytes that a cache may have: ``$WEFT_CACHE_LIMIT`` (``500M``, ``2G``, bytes), or 4 GiB; 0 is any."""
    text = (
        os.environ.get("WEFT_CACHE_LIMIT", "").strip().upper().removesuffix("B").removesuffix("I")
    )
    unit = text[-1:] if text[-1:] in UNITS else ""
    try:
        return max(0, int(float(text.removesuffix(unit)) * UNITS[unit]))
    except (ValueError, OverflowError):
        return DEFAULT_LIMIT


def set_limit(folder: Path, limit: int | None) -> None:
    """Have this process keep ``folder`` below ``limit`` bytes; None: as :func:`size_limit` says."""
    if limit is None:
        _limits.pop(folder, None)
    else:
        _limits[folder] = limit


def _limit_of(folder: Path) -> int:
    limit = _limits.get(folder)
    return size_limit() if limit is None else limit


def note_written(folder: Path, size: int) -> None:
    """Count bytes written to ``folder``, which is looked through at the first and now and then."""
    limit = _limit_of(folder)
    is_first = folder not in _written
    _written[folder] = _written.get(folder, 0) + size
    if is_first or (limit and _written[folder] > limit / 16):
        _written[folder] = 0
        collect(folder)


def mark_used(path: Path) -> None:
    """Note that the entry of this file was used now."""
    with contextlib.suppress(OSError):
        os.utime(path, follow_symlinks=False)


@dataclass
class _Entry:
    """The paths of one entry, their bytes, and when one of them was written or used last."""

    paths: list[str] = field(default_factory=list)
    size: int = 0
    used: float = 0.0

    def add(self, item: os.DirEntry[str]) -> None:
        info = item.stat(follow_symlinks=False)
        self.paths.append(item.path)
        self.size += info.st_blocks * 512
        self.used = max(self.used, info.st_mtime)
        if item.is_dir(follow_symlinks=False):
            for inner in _items(item.path):
                with contextlib.suppress(OSError):
                    self.add(inner)

    def is_orphan(self, now: float) -> bool:
        """Whether what was left of an entry can't be used by anybody."""
        ends = {os.path.splitext(path)[1] for path in self.paths}
        halves = any((a in ends) != (b in ends) for a, b in PARTNERS)
        return now - self.used > ORPHAN_SECONDS and (halves or ends == {".lock"})

    def remove(self) -> None:
        for path in self.paths:
            try:
                os.unlink(path)
            except OSError:
                shutil.rmtree(path, ignore_errors=True)


def collect(folder: Path, limit: int | None = None) -> None:
    """Remove orphans from ``folder``, then the oldest entries until ``limit`` bytes are left at most.

    None: what the folder was given as its limit.
    """
    limit = _limit_of(folder) if limit is None else limit
    now = time.time()
    entries = _entries(folder, now)
    for entry in [e for e in entries if e.is_orphan(now)]:
        entry.remove()
        entries.remove(entry)
    total = sum(entry.size for entry in entries)
    for entry in sorted(entries, key=lambda e: e.used):
        if not limit or total <= limit or now - entry.used < RECENT_SECONDS:
            break
        entry.remove()
        total -= entry.size


def _entries(folder: Path, now: float) -> list[_Entry]:
    """The entries in ``folder``; removes temporary files and locks that nobody has any more."""
    found: dict[str, _Entry] = {}
    for item in _items(folder):
        with contextlib.suppress(OSError):
            key = KEY.match(item.name)
            is_old = now - item.stat(follow_symlinks=False).st_mtime > ORPHAN_SECONDS
            if is_old and (TEMPORARY.match(item.name) or (key and item.name.endswith(".lock"))):
                (leftover := _Entry()).add(item)
                leftover.remove()
            elif key:
                found.setdefault(item.name[: key.end()], _Entry()).add(item)
            elif item.name == INNER and item.is_dir(follow_symlinks=False):
                for inner in _items(item.path):
                    found.setdefault(inner.path, _Entry()).add(inner)
    return list(found.values())


def _items(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            yield from items
    except OSError:
        return


# -- entries ------------------------------------------------------------------------------------------


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
