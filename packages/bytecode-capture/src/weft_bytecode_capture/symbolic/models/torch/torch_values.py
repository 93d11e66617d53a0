"""Values of torch that are no tensors: number formats, sizes, tensors grouped by device and type."""

from __future__ import annotations

from typing import Any

import torch

from ...._torch import group_tensors
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import register_constant_types
from ...variables.constant import ConstantVariable
from ...variables.graph_arguments import graph_argument
from ...variables.hashing import HashedKey, hashed_key
from ...variables.python_protocols import pure_call
from ..containers.mappings import DictVariable
from ..containers.sequences import ListVariable, TupleVariable
from ..table import model, models
from .tuples_of_torch import SizeVariable

register_constant_types(torch.finfo, torch.iinfo)


@models(torch.finfo, torch.iinfo, torch.device)
def _new(
    kind: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """A class of immutable values: calls with constants are made at once."""
    return pure_call(evaluator, kind, arguments, keywords)


@model(torch.Size)
def _new_size(evaluator: Evaluator, sizes: Variable | None = None, /) -> Variable:
    return SizeVariable([] if sizes is None else sizes.iterate(evaluator))


@model(group_tensors)
def _group_tensors(
    evaluator: Evaluator, lists: Variable, with_indices: Variable | None = None
) -> Variable:
    """A dict from (device, dtype) to lists of tensors and their positions, in torch's own order."""
    rows = [row.iterate(evaluator) for row in lists.iterate(evaluator)]
    fakes = [[graph_argument(evaluator, item)[1] for item in row] for row in rows]
    known = {id(fake): item for row, part in zip(rows, fakes, strict=True)
             for item, fake in zip(row, part, strict=True)}  # fmt: skip
    wanted = with_indices is not None and with_indices.truth(evaluator)
    groups = evaluator.pure(group_tensors, fakes, wanted)
    entries: dict[HashedKey, Variable] = {}
    for key, (members, positions) in groups.items():
        parts = [ListVariable([known[id(fake)] for fake in row]) for row in members]
        value = TupleVariable([ListVariable(parts), evaluator.wrap_result(positions)])
        entries[hashed_key(evaluator, TupleVariable([*map(ConstantVariable, key)]))] = value
    return DictVariable(entries)
