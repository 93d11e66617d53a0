"""Packing and padding of sequences, and recurrent networks over packed ones: by their polyfills.

The graph takes lengths as data.  Which rows a packed sequence has is kept beside the sizes of its batches,
and the padded form beside its data, so that nothing in between has a size that depends on data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ...._torch import pack_padded_sequence, pad_packed_sequence
from ...graph.storages import version_of
from ...polyfills import packed_sequences as polyfills
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import ConstantVariable
from ..containers.sequences import SequenceVariable, TupleVariable
from ..table import models
from .tensor import TensorVariable

_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


@dataclass(frozen=True)
class _Padded:
    """What a packed tensor was made of; ``version`` is that of the packed one then."""

    tensor: TensorVariable
    inside: TensorVariable
    version: int


def _call(evaluator: Evaluator, function: Any, *arguments: Variable) -> Any:
    return evaluator.wrap_known(function).call(evaluator, list(arguments), {})


def _note(packed: Any, padded: Any, inside: Any) -> None:
    packed.node.meta["padded"] = _Padded(padded, inside, version_of(packed.fake))


def _noted(packed: TensorVariable) -> _Padded | None:
    noted: _Padded | None = packed.node.meta.get("padded")
    return noted if noted is not None and noted.version == version_of(packed.fake) else None


def _is_plain(evaluator: Evaluator, *tensors: Variable) -> bool:
    """Whether no level, mode, class or region stands between."""
    graph = evaluator.graph
    return (
        all(type(tensor) is TensorVariable for tensor in tensors)
        and not evaluator.state.overrides.modes
        and not graph.transforms.active
        and not graph.is_in_region
    )


@models(pack_padded_sequence)
def _pack(
    function: Any, evaluator: Evaluator, /, input: Any, lengths: Any, batch_first: Variable
) -> Variable:
    result: Any = ConstantVariable(None)
    if _is_plain(evaluator, input, lengths) and _can_pack(input.fake, lengths.fake):
        dims = [ConstantVariable(0), ConstantVariable(1)]
        by_step = batch_first.truth(evaluator)
        padded = input.call_method(evaluator, "transpose", dims, {}) if by_step else input
        result = _call(evaluator, polyfills.pack, padded, lengths)
    if result.is_none():
        return evaluator.graph.call_function(evaluator, function, [input, lengths, batch_first], {})
    data, sizes, inside = result.items(evaluator)
    sizes.node.meta["batch"] = lengths.fake.shape[0]
    _note(data, padded, inside)
    _note(sizes, sizes, inside)
    return TupleVariable([data, sizes])


def _can_pack(padded: torch.Tensor, lengths: torch.Tensor) -> bool:
    """What eager takes, as far as no data decides."""
    if padded.dim() < 2 or lengths.dim() != 1 or lengths.dtype is not torch.int64:
        return False
    return lengths.device.type == "cpu"


@models(pad_packed_sequence)
def _pad(
    function: Any,
    evaluator: Evaluator,
    /,
    data: Any,
    batch_sizes: Any,
    batch_first: Variable,
    padding_value: Variable,
    total_length: Variable,
) -> Variable:
    if not _is_plain(evaluator, data, batch_sizes):
        operands = [data, batch_sizes, batch_first, padding_value, total_length]
        return evaluator.graph.call_function(evaluator, function, operands, {})
    noted = _noted(batch_sizes)
    if noted is None:
        batch = _call(evaluator, polyfills.first_size, batch_sizes)
        inside = _call(evaluator, polyfills.inside_of, batch_sizes, batch)
    else:
        inside = noted.inside
    padded = _padded(evaluator, data, inside)
    given = (padded, inside, total_length, padding_value, batch_first)
    rows = _call(evaluator, polyfills.padded_to, *given)
    return TupleVariable([rows, _call(evaluator, polyfills.lengths_of, inside)])


def _padded(evaluator: Evaluator, data: Any, inside: Any) -> Any:
    noted = _noted(data)
    if noted is not None and noted.inside is inside:
        return noted.tensor
    return _call(evaluator, polyfills.pad, data, inside)


def packed_network(
    evaluator: Evaluator, function: Any, arguments: Arguments, keywords: Keywords
) -> Variable | None:
    """What a recurrent function gives for a packed sequence on the CPU; None for any other call."""
    if function not in _RECURRENT or len(arguments) != 9 or keywords:
        return None
    data, batch_sizes, states, parameters, *settings = arguments
    if not isinstance(parameters, SequenceVariable) or not _is_plain(evaluator, data, batch_sizes):
        return None
    several = isinstance(states, SequenceVariable)
    each = states.items(evaluator) if isinstance(states, SequenceVariable) else [states]
    if not _is_plain(evaluator, *each, *parameters.items(evaluator)):
        return None
    if data.fake.device.type != "cpu" or torch.is_autocast_enabled("cpu"):  # type: ignore[attr-defined]
        return None
    inside = _inside(evaluator, batch_sizes, each[0])
    padded = _padded(evaluator, data, inside)
    given = (ConstantVariable(function.__name__), padded, inside, TupleVariable(list(each)))
    results = _call(evaluator, polyfills.recurrent, *given, parameters, *settings)
    rows, packed, *finals = results.items(evaluator)
    _note(packed, rows, inside)
    return TupleVariable([packed, *finals]) if several or finals else None


def _inside(evaluator: Evaluator, batch_sizes: Any, state: Any) -> Any:
    noted = _noted(batch_sizes)
    if noted is not None:
        return noted.inside
    batch = state.call_method(evaluator, "size", [ConstantVariable(1)], {})
    return _call(evaluator, polyfills.inside_of, batch_sizes, batch)
