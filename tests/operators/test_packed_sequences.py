"""Packed sequences in one graph, with their lengths as data: values, gradients and errors are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor, nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    unpack_sequence,
)
from weft_bytecode_capture import CaptureOptions, CaptureReport, compile_frames

from tests.staged_backend import by_operators

HIDDEN = 3


class Encoder(nn.Module):
    """A classifier of texts, as most are written."""

    def __init__(self, network: nn.RNNBase, enforce_sorted: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, network.input_size, padding_idx=0)
        self.network = network
        self.enforce_sorted = enforce_sorted

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        embedded = self.embedding(ids)
        if not self.network.batch_first:
            embedded = embedded.transpose(0, 1)
        packed = pack_padded_sequence(
            embedded, lengths.cpu(), self.network.batch_first, self.enforce_sorted
        )
        output, states = self.network(packed)
        last = states[0] if isinstance(states, tuple) else states
        padded, found = pad_packed_sequence(output, self.network.batch_first, padding_value=0.5)
        return padded, last * 2, found


NETWORKS: dict[str, Callable[[], nn.RNNBase]] = {
    "lstm": lambda: nn.LSTM(4, HIDDEN, 2, bidirectional=True, proj_size=2),
    "gru": lambda: nn.GRU(4, HIDDEN, batch_first=True, bidirectional=True),
    "rnn": lambda: nn.RNN(4, HIDDEN, nonlinearity="relu", bias=False),
}


def ids(steps: int, lengths: Tensor) -> Tensor:
    made = torch.randint(1, 10, (len(lengths), steps))
    return made.masked_fill(torch.arange(steps) >= lengths.unsqueeze(1), 0)


def with_gradients(model: nn.Module, function: Callable[..., Any], *given: Any) -> list[Any]:
    model.zero_grad()
    results = function(*given)
    sum(r.cos().sum() for r in results if r.is_floating_point()).backward()
    return [*results, *(p.grad for p in model.parameters())]


def graphs(log: weft.CompileLog) -> list[Any]:
    return [report.graph for report in log.conversions if report.graph is not None]


@pytest.mark.parametrize("name", NETWORKS)
def test_lengths_are_data(name: str) -> None:
    enforce_sorted = name == "rnn"
    model = Encoder(NETWORKS[name](), enforce_sorted)
    log = weft.CompileLog()
    compiled = weft.compile(model, backend=by_operators, fullgraph=True)
    lengths = [[3, 2, 1], [2, 2, 1]] if enforce_sorted else [[1, 3, 2], [1, 1, 2]]
    for given in map(torch.tensor, lengths):
        arguments = ids(3, given), given
        with weft.observe(log):
            found = with_gradients(model, compiled, *arguments)
            with torch.no_grad():
                inferred = compiled(*arguments)
        plain = with_gradients(model, model, *arguments)
        torch.testing.assert_close(found, plain)
        assert [f.stride() for f in found[:3]] == [p.stride() for p in plain[:3]]
        torch.testing.assert_close(list(inferred), plain[:3], check_device=False)
    assert len(graphs(log)) == 2  # one for training


@torch.no_grad()
def test_long_sequences_are_a_loop() -> None:
    """Of sizes that vary, too."""
    model = Encoder(nn.GRU(4, HIDDEN, batch_first=True), False)
    reports: list[CaptureReport] = []
    options = CaptureOptions(fullgraph=True)
    compiled = compile_frames(model, lambda g, _: g.forward, options, None, reports.append)
    for steps, lengths in ((20, [20, 3]), (24, [5, 22]), (31, [31, 30])):
        arguments = ids(steps, torch.tensor(lengths)), torch.tensor(lengths)
        torch.testing.assert_close(compiled(*arguments), model(*arguments))
    graphs = [report.graph for report in reports if report.graph is not None]
    assert len(graphs) == 2
    assert all(len(graph.graph_module.graph.nodes) < 100 for graph in graphs)


@torch.no_grad()
def test_parts_of_packed_sequences() -> None:
    network = nn.LSTM(4, HIDDEN, 2, dropout=0.5)

    def f(x: Tensor, lengths: Tensor, given: PackedSequence, parts: list[Tensor]) -> list[Any]:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        changed = packed._replace(data=packed.data.tanh())
        first, (_, cell) = network(changed)  # draws its dropout for the rows that there are
        second = network(given)[0]
        total = pad_packed_sequence(second, total_length=9)[0]
        unpacked = unpack_sequence(pack_sequence(parts, enforce_sorted=False))
        loss = first.data.pow(2).mean()
        return [changed.data, changed.batch_sizes, cell, total, loss, torch.rand(2), *unpacked]

    compiled = compile_frames(f, lambda g, _: g.forward, CaptureOptions(fullgraph=True))
    for lengths in ([1, 3, 2], [2, 2, 1]):
        x = torch.randn(3, 3, 4)
        given = pack_padded_sequence(torch.randn(3, 3, 4), lengths, enforce_sorted=False)
        parts = [torch.randn(n, 4) for n in (1, 2)]
        torch.manual_seed(0)
        plain = f(x, torch.tensor(lengths), given, parts)
        torch.manual_seed(0)
        found = compiled(x, torch.tensor(lengths), given, parts)
        torch.testing.assert_close(found, plain)


def test_nothing_of_the_padding_counts() -> None:
    network = nn.LSTM(4, HIDDEN, batch_first=True)
    x = torch.randn(2, 3, 4)
    x[1, 2:] = float("nan")
    lengths = torch.tensor([3, 2])

    def f(x: Tensor) -> Tensor:
        return network(pack_padded_sequence(x, lengths, True))[1][1]

    compiled = weft.compile(f, backend=by_operators, fullgraph=True)
    gradients = []
    for function in (f, compiled):
        given = x.clone().requires_grad_()
        gradients.append(torch.autograd.grad(function(given).sum(), given)[0])
    assert bool(gradients[0].isfinite().all())
    torch.testing.assert_close(gradients[1], gradients[0])


def test_refusals_are_eagers() -> None:
    def f(x: Tensor, lengths: Tensor) -> Tensor:
        return pack_padded_sequence(x, lengths).data * 2

    compiled = weft.compile(f, backend=by_operators)
    x = torch.randn(4, 3, 2)
    assert torch.equal(compiled(x, torch.tensor([4, 2, 1])), f(x, torch.tensor([4, 2, 1])))
    for lengths in ([2, 4, 1], [4, 2, 0], [4, 2]):
        raised = []
        for function in (f, compiled):
            with pytest.raises(RuntimeError) as caught:
                function(x, torch.tensor(lengths))
            raised.append(str(caught.value))
        assert raised[0] == raised[1]
    more = torch.tensor([5, 2, 1])  # than there are: rows are left out
    assert torch.equal(compiled(x, more), f(x, more))
