"""What operators gave on fake tensors, kept for captures of the same code in later processes.

An entry is plain data: by the text of a call, the layouts of what it gave.  The code names the entry only;
what is in it holds for any code, under the settings that are in the name too.
"""

from __future__ import annotations

import functools
import hashlib
import json
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import weft_bytecode_capture
import weft_functionalize
from weft_bytecode_capture import FakeLayout, KnownResult, KnownResults
from weft_loop_ir.disk_cache import (
    DamagedEntry,
    cache_folder,
    mark_used,
    read_entry,
    write_entry,
)

from .graph_description import describe_settings, describe_sources

MAX_RESULTS = 20_000
"""Of one code object: what a program of more sizes than that gives is computed in each process."""


class ResultsOnDisk:
    """The entries in ``folder``, None for ``programs`` of weft's caches; ``limit`` as of ``ProgramCache``."""

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        self._folder = folder
        self._limit = limit

    @contextmanager
    def __call__(self, code: types.CodeType) -> Iterator[KnownResults]:
        """What captures of ``code`` got; what this one adds is kept, also where it fails in the end."""
        name = _name(code)
        known = self._read(name)
        count = len(known)
        try:
            yield known
        finally:
            if count < len(known) <= MAX_RESULTS:
                self._write(name, known)

    def _read(self, name: str) -> KnownResults:
        try:
            folder = cache_folder("programs", self._folder, self._limit)
            content = read_entry(folder, name)
        except (OSError, DamagedEntry):
            return {}
        digest, text = content[:32], content[32:]
        if hashlib.sha256(text).digest() != digest:
            return {}
        mark_used(folder / name)
        return {key: _result(*parts) for key, parts in json.loads(text).items()}

    def _write(self, name: str, known: KnownResults) -> None:
        parts = {key: _parts(result) for key, result in known.items()}
        text = json.dumps(parts, separators=(",", ":")).encode()
        try:
            folder = cache_folder("programs", self._folder, self._limit)
            write_entry(folder, name, hashlib.sha256(text).digest() + text)
        except OSError:
            return  # a cache that cannot be written to is no reason to fail


def _name(code: types.CodeType) -> str:
    parts = [describe_settings(), _environment(), code.co_filename, code.co_qualname]
    digest = hashlib.sha256("\n".join(parts).encode())
    digest.update(code.co_code)
    return f"{digest.hexdigest()[:40]}.results"


@functools.cache
def _environment() -> str:
    """What fakes are computed by, and the processor, by whose kernels some strides go."""
    packages = (weft_bytecode_capture, weft_functionalize)
    folders = [folder for package in packages for folder in package.__path__]
    return f"{torch.backends.cpu.get_cpu_capability()}\n{describe_sources(folders)}"


def _parts(result: KnownResult) -> list[Any]:
    layouts = [
        [
            layout.shape,
            layout.strides,
            layout.offset,
            str(layout.dtype).removeprefix("torch."),
            str(layout.device),
        ]
        for layout in result.layouts
    ]
    return [result.kind, result.container, layouts, result.has_value]


def _result(kind: str, container: str, layouts: list[Any], has_value: bool) -> KnownResult:
    return KnownResult(
        kind,
        container,
        tuple(
            FakeLayout(
                tuple(shape), tuple(strides), offset, getattr(torch, dtype), torch.device(device)
            )
            for shape, strides, offset, dtype, device in layouts
        ),
        has_value,
    )
