"""The caches on disk as a user handles them: what they hold, emptying them, carrying them elsewhere.

An archive is a zip file: ``manifest.json``, and the files of entries under the names of their caches.  What
it holds is run by later processes (compiled libraries are among it), so unpack only what you trust.
"""

from __future__ import annotations

import io
import json
import os
import re
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft_loop_ir.disk_cache import cache_base, discard_entry, trusted_folder, write_entry

from .errors import WeftError

CACHES = ("cpp", "triton", "programs")
"""Compiled libraries for CPUs, kernels for GPUs, programs by their graphs."""

FORMAT = 1
MANIFEST = "manifest.json"
_ENTRY = re.compile(r"(?P<key>[0-9a-f]{32,64})\.(?!lock$)[a-z0-9_]{1,16}")
_MAX_ENTRY = 1 << 30

_started = time.time()


class ArchiveError(WeftError):
    """A file that is no archive of weft's caches, or one of another version."""


@dataclass(frozen=True)
class CacheInfo:
    """One of the caches: ``problem`` says why it can't be used, None if it can."""

    name: str
    folder: Path
    entries: int
    size: int
    problem: str | None = None


@dataclass(frozen=True)
class Packed:
    """What was written to an archive or read from one: entries and bytes of each cache."""

    entries: int
    size: int


def cache_infos() -> tuple[CacheInfo, ...]:
    """What each cache holds; nothing is made or removed, but for a folder that isn't there yet."""
    return tuple(_info(name) for name in CACHES)


def _info(name: str) -> CacheInfo:
    try:
        folder = cache_base() / name
    except OSError as error:
        return CacheInfo(name, Path(), 0, 0, str(error))
    try:
        trusted_folder(folder)
    except OSError as error:
        return CacheInfo(name, folder, 0, 0, str(error))
    keys: set[str] = set()
    size = 0
    for item in _files(folder):
        try:
            size += item.stat().st_size
        except FileNotFoundError:
            continue  # another process has discarded it meanwhile
        match = _ENTRY.fullmatch(item.name)
        if match is not None:
            keys.add(match["key"])
    return CacheInfo(name, folder, len(keys), size)


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        found = os.scandir(folder)
    except FileNotFoundError:
        return  # another process has discarded it meanwhile
    with found as items:
        for item in items:
            if item.is_dir(follow_symlinks=False):
                yield from _files(Path(item.path))
            elif item.is_file(follow_symlinks=False):
                yield item


def clear_caches(names: Sequence[str] = CACHES) -> int:
    """Remove all that the caches ``names`` hold; gives the bytes that were there.

    :raises OSError: one of them is not the user's own.
    """
    removed = 0
    for name in names:
        info = _info(name)
        if info.problem is not None:
            raise OSError(info.problem)
        for item in list(info.folder.iterdir()):
            discard_entry(info.folder, item.name)
        removed += info.size
    return removed


def pack_caches(since: float | None = None) -> tuple[bytes, Packed]:
    """An archive of all entries, or of those that were used after ``since`` (as ``time.time()`` counts)."""
    packed = io.BytesIO()
    count = size = 0
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, json.dumps({"format": FORMAT, "program": "weft"}))
        for info in cache_infos():
            if info.problem is not None:
                continue
            for paths in _entries(info.folder, since):
                try:
                    contents = [path.read_bytes() for path in paths]
                except FileNotFoundError:
                    continue  # another process has discarded the entry meanwhile
                count += 1
                for path, content in zip(paths, contents, strict=True):
                    size += len(content)
                    archive.writestr(f"{info.name}/{path.name}", content)
    return packed.getvalue(), Packed(count, size)


def _entries(folder: Path, since: float | None) -> Iterator[list[Path]]:
    """The files of each entry that was used after ``since``."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _ENTRY.fullmatch(path.name)
        if match is not None and path.is_file() and not path.is_symlink():
            found.setdefault(match["key"], []).append(path)
    for paths in found.values():
        if since is None or any(_was_used(path, since) for path in paths):
            yield paths


def _was_used(path: Path, since: float) -> bool:
    """Whether the file is there, and was used after ``since``."""
    try:
        return path.stat().st_mtime >= since
    except FileNotFoundError:
        return False


def unpack_caches(content: bytes) -> Packed:
    """Put the entries of an archive into this user's caches.

    They are run by later processes: unpack only archives that you, or whom you trust, have made.

    :raises ArchiveError: it is no such archive, or has files that no cache has; then nothing is written.
    :raises OSError: a cache can't be written to.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        manifest = json.loads(archive.read(MANIFEST))
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError) as error:
        raise ArchiveError(f"no archive of weft's caches: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArchiveError(f"an archive of another version of weft: {manifest!r}")
    files = [item for item in archive.infolist() if item.filename != MANIFEST]
    for item in files:
        cache, _, name = item.filename.partition("/")
        if cache not in CACHES or not _ENTRY.fullmatch(name) or item.file_size > _MAX_ENTRY:
            raise ArchiveError(f"{item.filename!r} is no entry of a cache")
    try:
        read = [(item.filename, archive.read(item)) for item in files]
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, ValueError) as error:
        raise ArchiveError(f"a damaged archive: {error}") from error
    keys = set()
    for path, entry in read:
        cache, _, name = path.partition("/")
        write_entry(cache_base() / cache, name, entry)
        keys.add((cache, name.partition(".")[0]))
    return Packed(len(keys), sum(len(entry) for _, entry in read))


def write_place(place: str, content: bytes) -> None:
    """Write a file by its path, or by a URL that fsspec knows (``s3://bucket/caches.zip``).

    :raises OSError: it can't be written.
    :raises ArchiveError: nobody knows that kind of URL, or what it needs is not installed.
    """
    if "://" not in place:
        Path(place).write_bytes(content)
        return
    with _opened(place, "wb") as file:
        file.write(content)


def read_place(place: str) -> bytes:
    """The file of a path or URL; raises as :func:`write_place` does."""
    if "://" not in place:
        return Path(place).read_bytes()
    with _opened(place, "rb") as file:
        content: bytes = file.read()
        return content


def _opened(url: str, mode: str) -> Any:
    import fsspec  # type: ignore[import-untyped]  # only for this

    try:
        return fsspec.open(url, mode)
    except (ImportError, ValueError) as error:
        # A protocol that nobody knows, or whose driver is not installed.
        raise ArchiveError(f"{url} cannot be opened: {error}") from error


def save_cache_artifacts() -> bytes:
    """An archive of the cache entries that were made or used since this process imported weft.

    With :func:`load_cache_artifacts` another machine starts warm: it has to have the same versions of weft,
    torch and the compiler and the same kind of processor, or it compiles anew.
    """
    return pack_caches(_started)[0]


def load_cache_artifacts(artifacts: bytes) -> Packed:
    """Put what :func:`save_cache_artifacts` gave into this user's caches; see :func:`unpack_caches`."""
    return unpack_caches(artifacts)
