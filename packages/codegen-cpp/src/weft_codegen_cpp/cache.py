"""Compiled libraries on disk, found by a hash of everything that they depend on."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from weft_loop_ir.disk_cache import (
    DamagedEntry,
    cache_folder,
    discard_entry,
    install_entry,
    locked,
    mark_used,
    private_folder,
    read_entry,
    trusted_folder,
    warn_once,
    write_entry,
)

from weft_codegen_cpp.cpu import cpu_flags
from weft_codegen_cpp.errors import CompileError
from weft_codegen_cpp.toolchain import HOST_OBJECT, PRECOMPILED, RUNTIME, Toolchain

_MARK = b"weft library "
FULL = 1 << 20
"""Bytes that are left of a file system where a compiler's failure may be its."""


def cache_directory(chosen: Path | None, limit: int | None = None) -> Path:
    """``chosen``, else ``$WEFT_CACHE_DIR/cpp``, else in the user's cache directory, or a private one."""
    return cache_folder("cpp", chosen, limit)


@functools.cache
def _runtime_digest() -> bytes:
    digest = hashlib.sha256()
    for header in sorted(RUNTIME.glob("*.h")):
        digest.update(header.read_bytes())
    return digest.digest()


def library_key(source: str, toolchain: Toolchain) -> str:
    """The name of the library that ``toolchain`` makes of ``source`` on this CPU."""
    digest = hashlib.sha256(_runtime_digest())
    for part in (
        source,
        *toolchain.compiler,
        toolchain.version,
        *toolchain.flags,
        *sorted(cpu_flags()),
    ):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:32]


def cached_library(
    folder: Path,
    key: str,
    source: str,
    build: Callable[[Path, Path], None],
    keep_source: bool,
    seconds: float = 900.0,
) -> Path:
    """The library ``key`` in ``folder``, built by ``build(source path, library path)`` if need be.

    A library counts only if the checksum beside it fits, so that a truncated or damaged file is rebuilt.
    Several processes may ask at once: one builds, under a lock, and renames what it built into place; another
    waits for it for ``seconds``.  Where the folder takes no more files the library is in a private one.
    """
    if _is_sound(folder, f"{key}.so", f"{key}.sum"):
        return folder / f"{key}.so"
    try:
        return _built(folder, key, source, build, keep_source, seconds)
    except (OSError, CompileError) as error:
        private = private_folder("cpp")
        if private == folder or not (isinstance(error, OSError) or _is_full(folder)):
            raise
        warn_once(
            f"weft: {folder} takes no more files. What is compiled is not kept for other processes."
        )
        return _built(private, key, source, build, keep_source, seconds)


def _built(
    folder: Path,
    key: str,
    source: str,
    build: Callable[[Path, Path], None],
    keep_source: bool,
    seconds: float,
) -> Path:
    library, seal = folder / f"{key}.so", f"{key}.sum"
    with locked(folder, key, seconds):
        if _is_sound(folder, library.name, seal):
            return library
        source_path = folder / f"{key}.cpp"
        write_entry(folder, source_path.name, source.encode())  # stays if the compiler fails
        with _new_file(folder, ".so") as built:
            build(source_path, built)
            _install(folder, library.name, seal, built)
        if not keep_source:
            source_path.unlink(missing_ok=True)
    return library


def discard_library(library: Path) -> None:
    """Forget a library that is as it was written, and can't be loaded."""
    for name in (library.with_suffix(".sum").name, library.name):
        discard_entry(library.parent, name)


def precompiled_headers(folder: Path, toolchain: Toolchain) -> Path | None:
    """The folder, in ``folder``, of what ``toolchain`` has compiled for every program; None without any.

    These are headers and the host's functions.  They are made for the second library of a cache: making them
    takes as long as they do in two programs, and who compiles only one program should not wait for them.
    """
    if not toolchain.precompiles:
        return None
    headers = folder / f"headers-{library_key('', toolchain)}"
    try:
        if headers.is_dir() and _are_sound(headers):
            return headers
        if not any(folder.glob("*.sum")):
            return None
        if not headers.is_dir():
            discard_entry(folder, headers.name)
        trusted_folder(headers)
        with locked(headers, "headers", toolchain.seconds):
            if _are_sound(headers):
                return headers
            with _new_file(headers, "") as made, _new_file(headers, ".o") as functions:
                toolchain.precompile(made, functions)
                _install(headers, PRECOMPILED, _SEALS[PRECOMPILED], made)
                _install(headers, HOST_OBJECT, _SEALS[HOST_OBJECT], functions)
    except (CompileError, OSError):
        return None  # programs compile without, or say what is wrong
    return headers


_SEALS = {PRECOMPILED: "seal", HOST_OBJECT: "functions-seal"}
"""Of what is compiled for every program."""


def _are_sound(headers: Path) -> bool:
    """Whether all of it is there as it was written; megabytes are read again only after a change."""
    try:
        found = [os.lstat(headers / name) for name in _SEALS]
    except OSError:
        return False
    identities = tuple((f.st_dev, f.st_ino, f.st_size, f.st_mtime_ns, f.st_ctime_ns) for f in found)
    if not _were_sound(headers, identities):
        return False
    for seal in _SEALS.values():
        mark_used(headers / seal)
    return True


@functools.lru_cache(maxsize=16)
def _were_sound(headers: Path, identities: tuple[tuple[int, ...], ...]) -> bool:
    """:func:`_are_sound` of the files that are these."""
    return all(_is_sound(headers, name, seal) for name, seal in _SEALS.items())


@contextlib.contextmanager
def _new_file(folder: Path, suffix: str) -> Iterator[Path]:
    """A new file in ``folder``, which is removed unless it gets another name."""
    handle, name = tempfile.mkstemp(dir=folder, suffix=suffix)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _install(folder: Path, name: str, seal: str, made: Path) -> None:
    if not stat.S_ISREG(os.lstat(made).st_mode):  # a FIFO would be read for ever
        raise FileNotFoundError(errno.ENOENT, "the compiler made no file", str(made))
    checksum = hashlib.sha256(made.read_bytes()).digest()
    install_entry(folder, name, made)
    write_entry(folder, seal, _MARK + checksum)


def _is_sound(folder: Path, name: str, seal: str) -> bool:
    try:
        sealed = read_entry(folder, seal)
        if sealed != _MARK + hashlib.sha256(read_entry(folder, name)).digest():
            return False
    except (OSError, DamagedEntry):
        return False
    mark_used(folder / seal)
    return True


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < FULL
    except OSError:
        return True
