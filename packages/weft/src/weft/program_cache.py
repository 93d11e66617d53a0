"""Compiled programs on disk, found by a description of the captured graph.

A process that captures a graph which another one has compiled loads what the code generator made of it, and
runs none of the stages before.  An entry is the functional graph's descriptors and the generated programs,
pickled (see :mod:`.kept_values`), and before them the relations between sizes that these rely on; tensors of
the captured module are names in it, so that it holds no parameter.
"""

from __future__ import annotations

import collections
import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.fx
from weft_aot_autograd import ExpectedBackward, PartitionedGraph
from weft_functionalize import FunctionalGraph, InputDescriptor, OutputDescriptor, SharedBase
from weft_loop_ir.disk_cache import (
    DamagedEntry,
    cache_folder,
    mark_used,
    read_entry,
    write_entry,
)

from .graph_description import GraphDescription
from .kept_values import ValuePickler, ValueUnpickler, find_tensor
from .shared_cache import SharedCache

DAMAGES = (
    pickle.UnpicklingError, AttributeError, ImportError, EOFError, IndexError, KeyError, TypeError,
    ValueError,
)  # fmt: skip
"""What reading an entry raises that is not what this version writes."""


@dataclass(frozen=True)
class KeptTraining:
    """What a :class:`~weft_aot_autograd.TrainingProgram` needs besides forward's program.

    ``partitioned`` has no graph of forward, ``generated`` is the code generator's for backward: that of
    ``expected``, which has no graph either, or of the whole.
    """

    partitioned: PartitionedGraph
    generated: Any
    expected: ExpectedBackward | None = None


@dataclass(frozen=True)
class CachedProgram:
    """What an entry holds: ``generated`` is the code generator's, ``lifted`` the paths of lifted tensors.

    Literals of the program are in ``lifted`` themselves: they are not the captured module's.
    ``graph`` is that of :class:`~weft_functionalize.FunctionalGraph`: whole for training, else the
    placeholders if sizes vary and none otherwise.  The other fields are those of it and of a report.
    """

    device_type: str
    generated: Any
    training: KeptTraining | None
    graph: torch.fx.GraphModule | None
    inputs: tuple[InputDescriptor, ...]
    outputs: tuple[OutputDescriptor, ...]
    shared_bases: tuple[SharedBase, ...]
    has_writes: bool
    lifted: Mapping[int, str | torch.Tensor]
    fallbacks: Mapping[str, int]

    def functional(self, source: torch.fx.GraphModule) -> FunctionalGraph:
        """The functional graph of ``source``, as far as it is kept."""
        return FunctionalGraph(
            empty_graph() if self.graph is None else self.graph,
            self.inputs,
            self.outputs,
            {
                index: kept if isinstance(kept, torch.Tensor) else find_tensor(source, kept)
                for index, kept in self.lifted.items()
            },
            source,
            self.has_writes,
            self.shared_bases,
        )


def empty_graph() -> torch.fx.GraphModule:
    """A graph without nodes, where one is needed that nobody reads."""
    graph = torch.fx.Graph()
    graph.output(())
    return torch.fx.GraphModule({}, graph)


@dataclass
class ProgramCache:
    """The entries in ``folder``, and how often they served; None: ``programs`` among weft's caches.

    ``limit``: bytes that they may have, as of ``cache_limit`` of :class:`~weft.CompileOptions`.
    ``shared``: a store that is asked for what is not in the folder, and given what has been compiled.
    ``counts``: ``hit``, ``fetched`` (from the store, besides the hit), ``miss``, ``damaged`` (an entry that
    cannot be read: its program is compiled again), ``stored``, ``sent`` (to the store), and ``not stored:
    REASON`` for programs that no entry can hold.
    """

    folder: Path | None = None
    limit: int | None = None
    shared: SharedCache | None = None
    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    def find(
        self, description: GraphDescription, source: torch.fx.GraphModule
    ) -> CachedProgram | None:
        """The program of the graph so described, with the tensors of ``source`` in it.

        What its compilation relied on has to hold in this call and becomes relations of the capture.
        """
        name = _name(description)
        try:
            folder = cache_folder("programs", self.folder, self.limit)
            content = self._read(folder, name)
        except OSError:
            self.counts["miss"] += 1
            return None
        except DamagedEntry:
            self.counts["damaged"] += 1
            return None
        digest, pickled = content[:32], content[32:]
        if hashlib.sha256(pickled).digest() != digest:
            self.counts["damaged"] += 1
            return None
        reader = ValueUnpickler(io.BytesIO(pickled), source, description.fake_mode)
        try:
            if not description.rely_on(*reader.load()):
                self.counts["miss"] += 1
                return None
            entry = reader.load()
        except DAMAGES:
            entry = None
        if not isinstance(entry, CachedProgram):
            self.counts["damaged"] += 1
            return None
        self.counts["hit"] += 1
        mark_used(folder / name)
        return entry

    def _read(self, folder: Path, name: str) -> bytes:
        """The entry, fetched where there is none; raises as ``read_entry`` does."""
        try:
            return read_entry(folder, name)
        except (OSError, DamagedEntry):
            if self.shared is None or not self.shared.fetch(name):
                raise
        self.counts["fetched"] += 1
        return read_entry(folder, name)

    def store(
        self, description: GraphDescription, entry: CachedProgram, source: torch.fx.GraphModule
    ) -> None:
        """Keep ``entry``, if everything in it can be found again in another process."""
        pickled = io.BytesIO()
        try:
            relied_on = description.relations_since(), description.symbols_since()
            paths = [kept for kept in entry.lifted.values() if isinstance(kept, str)]
            writer = ValuePickler(pickled, source, paths)
            for part in (relied_on, entry):
                writer.dump(part)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.skip(str(error))
            return
        content = pickled.getvalue()
        try:
            folder = cache_folder("programs", self.folder, self.limit)
            write_entry(folder, _name(description), hashlib.sha256(content).digest() + content)
        except OSError as error:  # a cache that cannot be written to is no reason to fail
            self.skip(str(error))
            return
        self.counts["stored"] += 1
        if self.shared is not None and self.shared.send(_name(description)):
            self.counts["sent"] += 1

    def skip(self, reason: str) -> None:
        """Count a program that is not kept."""
        self.counts[f"not stored: {reason}"] += 1


def _name(description: GraphDescription) -> str:
    return f"{hashlib.sha256(description.text.encode()).hexdigest()[:40]}.program"
