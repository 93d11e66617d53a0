"""Packed sequences and recurrent layers over them, with the lengths as data of the graph.

``inside [steps, batch]`` says which rows of a padded sequence there are, ``lengths[b]`` of sequence ``b``.  A
packed sequence holds these rows step by step, as a mask chooses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def pack(padded: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Rows of ``padded [steps, batch, ...]``, how many each step has, and ``inside``.

    Lengths that are not in order, of nothing or of more than there is run as they were written, in eager.
    None for sizes that it refuses.
    """
    if padded.shape[1] != lengths.shape[0] or padded.numel() == 0:
        return None
    steps = padded.shape[0]
    refused = ((lengths < 1) | (lengths > steps)).any() | (lengths[1:] > lengths[:-1]).any()
    torch._check(refused.long().item() == 0)
    inside = torch.arange(steps, device=lengths.device).unsqueeze(1) < lengths
    counts = inside.sum(1)
    batch_sizes = counts[counts > 0]
    torch._check(batch_sizes.shape[0] <= steps)
    return padded[inside.to(padded.device)], batch_sizes, inside


def inside_of(batch_sizes: Tensor, batch: int) -> Tensor:
    """``inside`` for the sizes of a packed sequence's batches."""
    return torch.arange(batch, device=batch_sizes.device) < batch_sizes.unsqueeze(1)


def first_size(batch_sizes: Tensor) -> int:
    """The size of the batch, which all sequences have rows of."""
    return int(batch_sizes[0].item())


def pad(data: Tensor, inside: Tensor) -> Tensor:
    """``data`` padded with zeros."""
    inside = inside.to(data.device)
    position = inside.flatten().cumsum(0).sub(1).clamp(min=0).reshape(inside.shape)
    return filled(data[position], inside, 0)


def filled(padded: Tensor, inside: Tensor, value: float) -> Tensor:
    """``padded`` with ``value`` in the rows that are not inside."""
    mask = inside.to(padded.device)
    return padded.masked_fill(~mask.reshape(mask.shape + (1,) * (padded.dim() - 2)), value)


def padded_to(
    padded: Tensor, inside: Tensor, length: int, value: float, batch_first: bool
) -> Tensor:
    """The first ``length`` steps, with ``value`` in the rows that are not inside, as eager lays them out."""
    rows = filled(padded, inside, value)
    steps = rows.shape[0]
    if length > steps:
        rows = F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, length - steps), value=value)
    else:
        rows = rows[:length].contiguous()
    return rows.transpose(0, 1) if batch_first else rows


def lengths_of(inside: Tensor) -> Tensor:
    return inside.sum(0)


States = tuple[Tensor, ...]
Cell = Callable[[Tensor, States, Sequence[Tensor], "Tensor | None"], States]


def _lstm(given: Tensor, states: States, weights: Sequence[Tensor], bias: Tensor | None) -> States:
    hidden, cell = states
    gates = given + F.linear(hidden, weights[0], bias)
    input_gate, forget, new, output = gates.chunk(4, 1)
    cell = forget.sigmoid() * cell + input_gate.sigmoid() * new.tanh()
    hidden = output.sigmoid() * cell.tanh()
    return (F.linear(hidden, weights[1]) if len(weights) > 1 else hidden), cell


def _gru(given: Tensor, states: States, weights: Sequence[Tensor], bias: Tensor | None) -> States:
    hidden = states[0]
    reset, update, new = given.chunk(3, 1)
    own_reset, own_update, own_new = F.linear(hidden, weights[0], bias).chunk(3, 1)
    kept = (update + own_update).sigmoid()
    proposed = (new + (reset + own_reset).sigmoid() * own_new).tanh()
    return ((hidden - proposed) * kept + proposed,)


def _tanh(given: Tensor, states: States, weights: Sequence[Tensor], bias: Tensor | None) -> States:
    return ((given + F.linear(states[0], weights[0], bias)).tanh(),)


def _relu(given: Tensor, states: States, weights: Sequence[Tensor], bias: Tensor | None) -> States:
    return ((given + F.linear(states[0], weights[0], bias)).relu(),)


def _direction(
    cell: Cell,
    rows: Tensor,
    inside: Tensor,
    states: States,
    parameters: Sequence[Tensor],
    has_biases: bool,
    reverse: bool,
) -> tuple[Tensor, States]:
    """One layer in one direction: what each step gives, and the states behind each sequence's last row.

    Backwards a sequence begins at its last row: until then its states stay as they are.
    """
    weights = (parameters[1], *parameters[4 if has_biases else 2 :])
    given = F.linear(rows, parameters[0], parameters[2] if has_biases else None)
    bias = parameters[3] if has_biases else None
    steps, outputs = rows.shape[0], []
    for step in range(steps):
        row = steps - 1 - step if reverse else step
        there = inside[row].unsqueeze(1)
        new = cell(given[row], states, weights, bias)
        states = tuple([torch.where(there, n, s) for n, s in zip(new, states, strict=True)])
        outputs.append(states[0])
    stacked = torch.stack(outputs)
    return (stacked.flip(0) if reverse else stacked), states


_CELLS: dict[str, Cell] = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _tanh, "rnn_relu": _relu}


def _dropped(rows: Tensor, dropout: float) -> Tensor:
    """``F.dropout``, which asks whether there are any rows."""
    if dropout == 1:
        return rows * torch.zeros_like(rows)
    return rows * torch.empty_like(rows.detach()).bernoulli_(1 - dropout).div(1 - dropout)


def recurrent(
    name: str,
    padded: Tensor,
    inside: Tensor,
    states: States,
    parameters: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, ...]:
    """What a recurrent network gives for the rows inside: all rows of the last layer, and each state.

    ``padded [steps, batch, features]``, ``states`` each of ``[layers * directions, batch, hidden]``.
    """
    directions = 2 if bidirectional else 1
    each = len(parameters) // (layers * directions)
    inside = inside.to(padded.device)
    rows = filled(padded, inside, 0)
    finals: list[States] = []
    for layer in range(layers):
        if layer > 0 and train and dropout > 0:  # drawn for the rows that there are, as eager does
            rows = pad(_dropped(rows[inside], dropout), inside)
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            own = parameters[number * each : (number + 1) * each]
            begin = tuple([state[number] for state in states])
            output, final = _direction(
                _CELLS[name], rows, inside, begin, own, has_biases, direction == 1
            )
            outputs.append(output)
            finals.append(final)
        rows = torch.cat(outputs, -1) if directions > 1 else outputs[0]
    return (rows, rows[inside], *[torch.stack(parts) for parts in zip(*finals, strict=True)])
