"""Recurrent networks with dropout between their layers, recorded as a call for each layer.

What torch runs where sizes are symbols leaves that dropout out, which eager's kernels apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ._torch import without_python_forms
from .unsupported import Unsupported

_RECURRENT: tuple[Callable[..., Any], ...] = (
    torch.gru,
    torch.lstm,
    torch.rnn_relu,
    torch.rnn_tanh,
)


def call_by_layers(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    call: Callable[..., Any],
) -> Any:
    """The network's results where dropout lies between its layers, each by ``call``; else NotImplemented."""
    if function not in _RECURRENT:
        return NotImplemented
    if kwargs:
        raise Unsupported("argument by name", f"{function.__name__}({', '.join(kwargs)}=...)")
    network = _read(args)
    if not (network.train and network.dropout and network.layers > 1):
        return NotImplemented
    data = network.data.transpose(0, 1) if network.batch_first else network.data
    finals: list[Sequence[torch.Tensor]] = []
    for number in range(network.layers):
        if number > 0:
            with without_python_forms():
                data = torch.dropout(data, network.dropout, True)
        data, *final = call(function, *network.layer(number, data).arguments())
        finals.append(final)
    states = [torch.cat(parts) for parts in zip(*finals, strict=True)]
    return (data.transpose(0, 1) if network.batch_first else data, *states)


def with_states_by_layer(output: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What ``torch.lstm`` gives, each state ``[layers, rows, size]``.

    The steps that torch 2.11 runs where sizes are symbols leave a dim of size 1 in front of the rows.
    """
    return (output, *(state.squeeze(1) if state.dim() > 3 else state for state in states))


@dataclass(frozen=True)
class _Network:
    """The arguments of a call; ``batch_sizes`` of a packed sequence, whose steps come first."""

    data: torch.Tensor
    batch_sizes: torch.Tensor | None
    states: torch.Tensor | Sequence[torch.Tensor]
    parameters: Sequence[torch.Tensor]
    has_biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool = False

    def layer(self, number: int, data: torch.Tensor) -> _Network:
        """The network that is one layer of this one, given ``data``."""
        directions = 2 if self.bidirectional else 1
        each = len(self.parameters) // self.layers
        one = isinstance(self.states, torch.Tensor)
        given: Any = [self.states] if one else self.states
        states = [state.narrow(0, number * directions, directions) for state in given]
        return replace(
            self,
            data=data,
            states=states[0] if one else states,
            parameters=self.parameters[number * each : (number + 1) * each],
            layers=1,
            batch_first=False,
        )

    def arguments(self) -> tuple[Any, ...]:
        settings = (self.has_biases, self.layers, self.dropout, self.train, self.bidirectional)
        if self.batch_sizes is not None:
            return (self.data, self.batch_sizes, self.states, self.parameters, *settings)
        return (self.data, self.states, self.parameters, *settings, self.batch_first)


def _read(args: Sequence[Any]) -> _Network:
    if isinstance(args[3], (tuple, list)):  # behind the sizes of a packed sequence's batches
        return _Network(*args)
    return _Network(args[0], None, *args[1:])
