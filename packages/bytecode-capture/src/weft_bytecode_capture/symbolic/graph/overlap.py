"""Guards on which inputs of a graph share storage with one that it writes to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from weft_guards import Source, StoragesApart, StorageShared, storage_address

from ..protocol import Evaluator

Given = tuple[Source, torch.Tensor, bool]  # where an input is from, and whether it is written to


def guard_overlap(evaluator: Evaluator, inputs: Sequence[Given]) -> None:
    """Guard that storages that are written to are shared as they are now: by whom, and at which places.

    Who shares a storage that is only read does not matter.
    """
    if len(inputs) < 2 or not any(written for _, _, written in inputs):
        return
    storages: dict[object, list[Given]] = {}
    for given in inputs:
        address = storage_address(given[1])
        storages.setdefault(address or given[0], []).append(
            given
        )  # without memory: shared by nobody
    apart_written: list[Source] = []
    apart_read: list[Source] = []
    for sharing in storages.values():
        sources = tuple(source for source, _, _ in sharing)
        if not any(written for _, _, written in sharing):
            apart_read.extend(sources)
            continue
        apart_written.append(sources[0])
        if len(sharing) > 1:
            offsets = tuple(int(tensor.storage_offset()) for _, tensor, _ in sharing)
            evaluator.guard(sources[0], StorageShared(sources, offsets))
    if len(apart_written) + len(apart_read) > 1:
        evaluator.guard(apart_written[0], StoragesApart(tuple(apart_written), tuple(apart_read)))
