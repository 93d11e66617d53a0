"""Where caches lie, and that nobody else can write there.

A folder counts if it is the user's and only the user may write to it, and if nobody but the user and the
system can put another in its place: each folder above it, and each link on the way, belongs to one of these,
and others may write to it only where its sticky bit keeps them from moving what is not theirs (``/tmp``).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import stat
import tempfile
import time
import warnings
from pathlib import Path

import platformdirs

from weft_loop_ir.disk_cache.eviction import set_limit

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
    :func:`~weft_loop_ir.disk_cache.eviction.size_limit` says).  Where that can't be used, this process has
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
    return f"the cache {error.filename} cannot be used: {error.strerror}"


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
