"""What eager's autograd saves in regions for backward, and writes to that which it is not told of.

A region's graph is recorded once, on tensors of its own.  What is saved there is, to the block around it, an
operand or a result of the region; and in a loop the next iteration may write to what this one has saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._torch import storage_identity
from .aten_recorder import AtenRecorder
from .region_operands import RecordedRegion

Pair = tuple[torch.Tensor, torch.Tensor]


def note_saved_in_branches(
    parent: AtenRecorder,
    blocks: Sequence[RecordedRegion],
    orders: Sequence[Sequence[int]],
    values: Sequence[Any],
    results: Sequence[Any],
) -> None:
    """Let ``parent`` know what the ``blocks`` save of ``values``, its own, and of their ``results``.

    ``orders`` are the positions of the values among each block's inputs.
    :raises Unsupported: one writes to what it has saved, and autograd is not told.
    """
    for block, order in zip(blocks, orders, strict=True):
        for tensor, number in block.recorder.saved:
            parent.history.check_writes(tensor, number)
        _note(parent, block, _pairs(block, order, values, results))


def note_saved_in_loop(
    parent: AtenRecorder,
    body: RecordedRegion,
    order: Sequence[int],
    values: Sequence[Any],
    results: Sequence[Any],
) -> None:
    """The same for a loop's body, which begins with what it has left, at the same positions."""
    recorder, history = body.recorder, parent.history
    begun_with = [i.value for i in recorder.inputs if isinstance(i.value, torch.Tensor)]
    for tensor, number in recorder.saved:
        # What an iteration has made is new in the next.
        lasts = any(_lies_with(value, tensor) for value in begun_with)
        history.check_writes(tensor, recorder.first_write if lasts else number)
        for left, begun in zip(body.outputs, recorder.inputs, strict=False):
            if isinstance(left, torch.Tensor) and _lies_with(left, tensor):
                history.check_writes(begun.value, recorder.first_write)
    _note(parent, body, _pairs(body, order, values, results))


def _pairs(
    block: RecordedRegion, order: Sequence[int], values: Sequence[Any], results: Sequence[Any]
) -> list[Pair]:
    """The tensors inside of a region, each with what it is to the block around it."""
    inputs = [block.recorder.inputs[i].value for i in order]
    pairs = zip([*inputs, *block.outputs], [*values, *results], strict=True)
    return [p for p in pairs if all(isinstance(value, torch.Tensor) for value in p)]


def _lies_with(left: torch.Tensor, right: torch.Tensor) -> bool:
    return storage_identity(left) == storage_identity(right)


def _note(parent: AtenRecorder, block: RecordedRegion, pairs: Sequence[Pair]) -> None:
    """Have what the block saves and writes be what the ``pairs`` say that it is to the parent."""
    with parent.paused():
        for inside, outside in pairs:
            parent.history.hand_on_writes(inside, outside, block.recorder.first_write)
    number = parent.history.write_count
    for inside, outside in pairs:
        if any(_lies_with(inside, saved) for saved, _ in block.recorder.saved):
            parent.saved.append((outside, number))
