"""Recurrent networks with dropout between their layers draw eager's random numbers, for any sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

NETWORKS: dict[str, Callable[[], nn.RNNBase]] = {
    "gru": lambda: nn.GRU(3, 4, 2, dropout=0.4),
    "three layers": lambda: nn.RNN(3, 4, 3, dropout=0.4, bias=False),
    "two directions": lambda: nn.RNN(3, 4, 2, dropout=0.4, bidirectional=True, batch_first=True),
    "tanh": lambda: nn.RNN(3, 4, 2, dropout=0.4, batch_first=True),
    "relu": lambda: nn.RNN(3, 4, 2, dropout=0.4, nonlinearity="relu"),
    "lstm": lambda: nn.LSTM(3, 4, 2, dropout=0.4, bidirectional=True),
    "projections": lambda: nn.LSTM(3, 4, 2, dropout=0.4, proj_size=2),
    "all dropped": lambda: nn.RNN(3, 4, 2, dropout=1.0),
    "one layer": lambda: nn.GRU(3, 4, 1),
    "one layer of an lstm": lambda: nn.LSTM(3, 4),
}
# It takes ten seconds; "projections" has its kind, "two directions" its directions.
SLOW = {"lstm": pytest.mark.slow}


def flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value if item is not None for tensor in flat(item)]


def called(network: nn.RNNBase, function: Any, given: Any) -> list[Tensor]:
    """Results, gradients of the parameters and the random numbers that follow."""
    torch.manual_seed(3)
    results = flat(function(given))
    following = torch.rand(3)
    floats = [result for result in results if result.requires_grad]
    weights = [torch.linspace(0.5, 1.5, x.numel()).view_as(x) for x in floats]
    total = sum((x * w).sum() for x, w in zip(floats, weights, strict=True))
    return [*results, following, *torch.autograd.grad(total, list(network.parameters()))]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW.get(n, ())) for n in NETWORKS])
def test_as_in_eager(name: str, dynamic: bool | None) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    compiled = weft.compile(network, dynamic=dynamic)
    for sizes in ((2, 2), (3, 2)):
        given = torch.randn(*sizes, 3)
        wanted = called(network, network, given)
        torch.testing.assert_close(called(network, compiled, given), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gru", "tanh"])
def test_packed_sequences(name: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    compiled = weft.compile(lambda packed: network(packed))
    for rows in (3, 4):
        lengths = torch.tensor([3, 1, 2, 1][:rows])
        packed = pack_padded_sequence(torch.randn(3, rows, 3), lengths, enforce_sorted=False)
        wanted = called(network, network, packed)
        assert isinstance(packed, PackedSequence)
        torch.testing.assert_close(called(network, compiled, packed), wanted, rtol=1e-4, atol=1e-5)
