"""Compiled programs on disk, found by a description of the captured graph.

A process that captures a graph which another one has compiled loads what the code generator made of it, and
runs none of the stages before.  An entry is the functional graph's descriptors and the generated program,
pickled; tensors of the captured module are names in it, so that it holds no parameter.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import io
import os
import pickle
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.fx
from weft_functionalize import FunctionalGraph, InputDescriptor, OutputDescriptor, SharedBase

from ._torch import OpOverload, storage_identity

LARGEST_CONSTANT = 1 << 20
"""Bytes of a tensor that belongs to the program, up to which it is kept in an entry."""


def program_directory() -> Path:
    """``$WEFT_CACHE_DIR/programs``, else ``weft/programs`` in the user's cache directory."""
    named = os.environ.get("WEFT_CACHE_DIR")
    if named:
        return Path(named) / "programs"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft" / "programs"


@dataclass(frozen=True)
class CachedProgram:
    """What an entry holds: ``generated`` is the code generator's, ``lifted`` the paths of lifted tensors.

    The other fields are those of :class:`~weft_functionalize.FunctionalGraph` and of a report.
    """

    device_type: str
    generated: Any
    inputs: tuple[InputDescriptor, ...]
    outputs: tuple[OutputDescriptor, ...]
    shared_bases: tuple[SharedBase, ...]
    has_writes: bool
    lifted: Mapping[int, str]
    fallbacks: Mapping[str, int]

    def functional(self, source: torch.fx.GraphModule) -> FunctionalGraph:
        """The descriptors as those of a functional graph of ``source``; it has no nodes of its own."""
        return FunctionalGraph(
            torch.fx.GraphModule({}, torch.fx.Graph()),
            self.inputs,
            self.outputs,
            {index: find_tensor(source, path) for index, path in self.lifted.items()},
            source,
            self.has_writes,
            self.shared_bases,
        )


@dataclass
class ProgramCache:
    """The entries in ``folder``, and how often they served.

    ``counts``: ``hit``, ``miss``, ``damaged`` (an entry that cannot be read: its program is compiled again),
    ``stored``, and ``not stored: REASON`` for programs that no entry can hold.
    """

    folder: Path
    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    def find(self, description: str, source: torch.fx.GraphModule) -> CachedProgram | None:
        """The program of the graph so described, with the tensors of ``source`` in it."""
        path = self._path(description)
        try:
            content = path.read_bytes()
        except OSError:
            self.counts["miss"] += 1
            return None
        digest, pickled = content[:32], content[32:]
        if hashlib.sha256(pickled).digest() != digest:
            self.counts["damaged"] += 1
            return None
        try:
            entry = _Unpickler(io.BytesIO(pickled), source).load()
        except (pickle.UnpicklingError, AttributeError, ImportError, EOFError):
            self.counts["damaged"] += 1
            return None
        assert isinstance(entry, CachedProgram)
        self.counts["hit"] += 1
        return entry

    def store(self, description: str, entry: CachedProgram, source: torch.fx.GraphModule) -> None:
        """Keep ``entry``, if everything in it can be found again in another process."""
        pickled = io.BytesIO()
        try:
            _Pickler(pickled, entry, source).dump(entry)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.skip(str(error))
            return
        content = pickled.getvalue()
        path = self._path(description)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, hashlib.sha256(content).digest() + content)
        except OSError as error:  # a cache that cannot be written to is no reason to fail
            self.skip(str(error))
            return
        self.counts["stored"] += 1

    def skip(self, reason: str) -> None:
        """Count a program that is not kept."""
        self.counts[f"not stored: {reason}"] += 1

    def _path(self, description: str) -> Path:
        return self.folder / f"{hashlib.sha256(description.encode()).hexdigest()[:40]}.program"


def find_tensor(source: torch.fx.GraphModule, path: str) -> torch.Tensor:
    """The attribute ``path`` of ``source``; AttributeError where there is none."""
    found: Any = source
    for name in path.split("."):
        found = getattr(found, name)
    if not isinstance(found, torch.Tensor):
        raise AttributeError(f"{path} is no tensor")
    return found


class _Pickler(pickle.Pickler):
    """Writes the lifted tensors of ``entry``, attributes of ``source``, and operators by name."""

    def __init__(
        self, file: io.BytesIO, entry: CachedProgram, source: torch.fx.GraphModule
    ) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        lifted = {path: find_tensor(source, path) for path in entry.lifted.values()}
        self._names = {id(tensor): path for path, tensor in lifted.items()}
        self._storages = {storage_identity(tensor) for tensor in lifted.values()}

    def persistent_id(self, value: Any) -> tuple[str, str] | None:
        """What stands for ``value``; raises PicklingError for a tensor that is not the program's own."""
        if isinstance(value, OpOverload):
            return "operator", str(value)
        if not isinstance(value, torch.Tensor):
            return None
        if id(value) in self._names:
            return "tensor", self._names[id(value)]
        if type(value) is not torch.Tensor or storage_identity(value) in self._storages:
            raise pickle.PicklingError(f"a {type(value).__name__} beside the lifted ones")
        if value.untyped_storage().nbytes() > LARGEST_CONSTANT:
            raise pickle.PicklingError("a large constant")
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, source: torch.fx.GraphModule) -> None:
        super().__init__(file)
        self._source = source

    def persistent_load(self, name: tuple[str, str]) -> Any:
        """What ``name`` stands for here."""
        kind, text = name
        if kind == "tensor":
            return find_tensor(self._source, text)
        namespace, packet, overload = text.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _write(path: Path, content: bytes) -> None:
    """Write a file in one step, so that no other process reads half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
