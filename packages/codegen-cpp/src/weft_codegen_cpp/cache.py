"""Compiled libraries on disk, found by a hash of everything that they depend on."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import filelock
import platformdirs

from weft_codegen_cpp.errors import CompileError
from weft_codegen_cpp.toolchain import PRECOMPILED, RUNTIME, Toolchain, cpu_flags

_MARK = b"weft library "


def cache_directory(chosen: Path | None) -> Path:
    """``chosen``, else ``$WEFT_CACHE_DIR/cpp``, else the user's cache directory."""
    if chosen is not None:
        return chosen
    named = os.environ.get("WEFT_CACHE_DIR")
    return Path(named if named else platformdirs.user_cache_dir("weft")) / "cpp"


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
    folder: Path, key: str, source: str, build: Callable[[Path, Path], None], keep_source: bool
) -> Path:
    """The library ``key`` in ``folder``, built by ``build(source path, library path)`` if need be.

    A library counts only if the checksum beside it fits, so that a truncated or damaged file is rebuilt.
    Several processes may ask at once: one builds, under a lock, and renames what it built into place.
    """
    library, seal = folder / f"{key}.so", folder / f"{key}.sum"
    if _is_sound(library, seal):
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / f"{key}.lock"):
        if _is_sound(library, seal):
            return library
        source_path = folder / f"{key}.cpp"
        _put(source.encode(), source_path)  # stays if the compiler fails
        handle, name = tempfile.mkstemp(dir=folder, suffix=".so")
        os.close(handle)
        built = Path(name)
        try:
            build(source_path, built)
            checksum = hashlib.sha256(built.read_bytes()).digest()
            os.replace(built, library)
            _put(_MARK + checksum, seal)
        finally:
            built.unlink(missing_ok=True)
        if not keep_source:
            source_path.unlink()
    return library


def precompiled_headers(folder: Path, toolchain: Toolchain) -> Path | None:
    """The folder, in ``folder``, of the headers that ``toolchain`` has precompiled; None without any.

    They are made for the second library of a cache: making them takes as long as two programs' headers, and
    who compiles only one program should not wait for them.
    """
    if not toolchain.precompiles:
        return None
    headers = folder / f"headers-{library_key('', toolchain)}"
    precompiled, seal = headers / PRECOMPILED, headers / "seal"
    if _is_sound(precompiled, seal):
        return headers
    if not any(folder.glob("*.sum")):
        return None
    headers.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(headers / "lock"):
        if _is_sound(precompiled, seal):
            return headers
        handle, name = tempfile.mkstemp(dir=headers)
        os.close(handle)
        made = Path(name)
        try:
            toolchain.precompile(made)
            checksum = hashlib.sha256(made.read_bytes()).digest()
            os.replace(made, precompiled)
            _put(_MARK + checksum, seal)
        except CompileError:
            return None  # programs compile without, or say what is wrong
        finally:
            made.unlink(missing_ok=True)
    return headers


def _put(content: bytes, path: Path) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(name, path)


def _is_sound(library: Path, seal: Path) -> bool:
    try:
        return seal.read_bytes() == _MARK + hashlib.sha256(library.read_bytes()).digest()
    except OSError:
        return False
