"""The file of a saved program: a header in JSON, then blocks of bytes, each at a multiple of 64.

First :data:`MAGIC`, then the header's length in 8 bytes (little-endian), the header, the blocks.  ``blocks``
in the header has begin and length of each, from the first block on.  Nothing in a file is run by reading it.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import WeftError

MAGIC = b"weft\0\0\0\1"
ALIGNMENT = 64
MAX_HEADER = 1 << 28


class SavedProgramError(WeftError):
    """A program can't be saved, a file is no saved program, or it does not fit this machine or call."""


def write_file(path: Path, header: Mapping[str, Any], blocks: Sequence[bytes | memoryview]) -> None:
    """Write the file in one step; raises OSError."""
    places = []
    at = 0
    for block in blocks:
        places.append((at, len(block)))
        at = _aligned(at + len(block))
    text = json.dumps({**header, "blocks": places}).encode()
    made = path.with_name(f".{path.name}.part")
    try:
        with made.open("wb") as file:
            file.write(MAGIC + len(text).to_bytes(8, "little") + text)
            for block in blocks:
                file.write(b"\0" * (_aligned(file.tell()) - file.tell()))
                file.write(block)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def read_file(path: Path) -> tuple[dict[str, Any], list[memoryview]]:
    """The header and the blocks, which are the file's own pages, copied where they are written to.

    :raises SavedProgramError: it is no such file, or not a whole one.
    :raises OSError: it can't be read.
    """
    with path.open("rb") as file:
        start = file.read(16)
        length = int.from_bytes(start[8:], "little")
        if start[:8] != MAGIC or len(start) < 16 or length > MAX_HEADER:
            raise SavedProgramError(f"{path} is no program that weft has saved")
        try:
            header = json.loads(file.read(length))
            places = [(int(at), int(size)) for at, size in header["blocks"]]
        except (ValueError, KeyError, TypeError) as error:
            raise SavedProgramError(f"{path} is damaged: {error}") from error
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    first = _aligned(16 + length)
    for at, size in places:
        if at < 0 or size < 0 or (size and first + at + size > len(content)):
            raise SavedProgramError(f"{path} is damaged: it ends before its last block")
    return header, [content[first + at : first + at + size] for at, size in places]


def _aligned(place: int) -> int:
    return -(-place // ALIGNMENT) * ALIGNMENT
