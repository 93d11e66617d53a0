"""Sizes and numbers that kernels refuse: refused exactly where eager raises an error for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx
from beside_eager import check
from torch import Tensor
from torch.nn import functional as F
from weft_functionalize import Unsupported, functionalize

A = torch.linspace(0.1, 0.9, 16).reshape(4, 4)
IMAGE = A.reshape(1, 1, 4, 4)
PLACES = torch.tensor([0, 2])


def _set_columns(tensor: Tensor, values: Tensor) -> Tensor:
    tensor[:, PLACES] = values
    return tensor


def _set_where(tensor: Tensor, indices: Any, value: Any) -> Tensor:
    tensor[indices] = value
    return tensor


def _mask(tensor: Tensor) -> Tensor:
    return torch.atleast_1d(tensor > 0)


# Of tensors of other sizes in turn.  A large one is not tried on its kernel.
PROGRAMS: dict[str, Any] = {
    "index_add": lambda t: A.index_add(0, PLACES, t),
    "index_add_of": lambda t: t.index_add(0, 0 * PLACES, A[:2]),
    "index_reduce": lambda t: A.index_reduce(0, PLACES, t, "amax"),
    "index_put": lambda t: A.index_put((PLACES,), t),
    "index_put_": lambda t: _set_columns(A.clone(), t),
    "a number by a mask": lambda t: _set_where(A.clone(), _mask(t), 1.5),
    "one for all by a mask": lambda t: A.index_put((_mask(t),), torch.ones(1)),
    "added by a mask": lambda t: A.index_put((_mask(t),), torch.ones(()), accumulate=True),
    "by a mask of later dims": lambda t: _set_where(A.clone(), (..., _mask(t)), 1.5),
    "added by a mask of bytes": lambda t: A.index_put((_mask(t).byte(),), A[:1, 0], True),
    "behind a dim": lambda t: _set_where(A[None].clone(), (slice(None), _mask(t)), 1.5),
    "index_select": lambda t: t.index_select(0, 0 * PLACES),
    "put": lambda t: A.put(PLACES, t),
    "select_scatter": lambda t: A.select_scatter(t, 0, 1),
    "slice_scatter": lambda t: A.slice_scatter(t, 0, 1, 3),
    "diagonal_scatter": lambda t: A.diagonal_scatter(t),
    "as_strided": lambda t: t.contiguous().as_strided((2, 4), (4, 1)) + 1,
    "as_strided_scatter": lambda t: A.as_strided_scatter(t, (2, 4), (4, 1)),
    "lt_": lambda t: A[:1].clone().lt_(t),
    "add_": lambda t: t.clone().add_(A),
    "shift_": lambda t: PLACES.clone().bitwise_left_shift_(t.long()),
    "interpolate": lambda t: F.interpolate(IMAGE[..., : t.dim()], 3, mode="bilinear"),
    "softmax gradient": lambda t: torch._softmax_backward_data(t, A, 1, torch.float32),
}
BIG = torch.linspace(0.1, 0.9, 10000).reshape(100, 100)
OF_LARGE: dict[str, Any] = {
    "celu": lambda t: F.celu(t, 0.0),
    "smooth_l1_loss": lambda t: F.smooth_l1_loss(t, t, beta=-1.0),
    "softshrink": lambda t: F.softshrink(t, -1.0),
    "hardshrink": lambda t: F.hardshrink(t.long(), 1.0),
    "nll_loss": lambda t: F.nll_loss(t, torch.zeros(100, dtype=torch.int32)),
    "subtraction": lambda t: (t > 0) - (t > 1),
    "renorm": lambda t: t.renorm(-1.0, 0, 1.0),
    "index_copy": lambda t: t.index_copy(0, torch.arange(100), t[:, :50]),
    "index_select": lambda t: t.index_select(0, t[0]),
}
TAKEN_OF_LARGE: dict[str, Any] = {
    "kthvalue": lambda t: t.kthvalue(99)[0],
    "topk": lambda t: t.topk(60)[0],
    "unfold": lambda t: t.unfold(0, 64, 4) + 1,
    "roll": lambda t: t.roll(-70, 0),
    "pool": lambda t: F.max_pool2d(t[None], 50),
    "groups": lambda t: F.group_norm(t, 50),
    "pixel_shuffle": lambda t: F.pixel_shuffle(t.view(1, 100, 10, 10), 5),
    "scatter of a part": lambda t: t.slice_scatter(t[:, :30], 1, 70, 100),
    "transposed": lambda t: F.celu(t.mT, 0.5),
}
FACTORIES: dict[str, Any] = {
    "arange of bool": lambda: torch.arange(0, 5, dtype=torch.bool),
    "arange without a step": lambda: torch.arange(0, 5, 0),
    "arange backwards": lambda: torch.arange(0, 5, -1),
    "endless arange": lambda: torch.arange(0, float("inf")),
    "eye": lambda: torch.eye(-3),
    "full": lambda: torch.full((3,), -1.5, dtype=torch.uint8),
    "hann_window": lambda: torch.hann_window(4, dtype=torch.int64),
    "linspace": lambda: torch.linspace(0, 5, -1),
    "linspace of bool": lambda: torch.linspace(0, 5, 3, dtype=torch.bool),
    "logspace of bool": lambda: torch.logspace(0, 5, 3, dtype=torch.bool),
    "multinomial": lambda: torch.multinomial(A[0], 1, out=torch.empty(1, dtype=torch.float64)),
    "multinomial of integers": lambda: torch.multinomial(PLACES, 1),
    "range of bool": lambda: torch.range(0, 3, dtype=torch.bool),
    "randint": lambda: torch.randint(3, 2, (3,)),
    "randn": lambda: torch.randn(3, dtype=torch.int64),
    "randperm": lambda: torch.randperm(-3),
    "tril_indices": lambda: torch.tril_indices(-1, 3),
    "zeros": lambda: torch.zeros(-3),
}

SIZES = ((), (0,), (1,), (2,), (4,), (2, 4), (4, 2), (4, 4), (2, 50), (1, 2, 4), (0, 4), (100, 100))

NUMBERS: dict[str, Any] = {
    "celu": lambda n: F.celu(A, alpha=n),
    "softshrink": lambda n: F.softshrink(A, n),
    "pixel_shuffle": lambda n: F.pixel_shuffle(IMAGE, int(n)),
    "hardshrink": lambda n: F.hardshrink(A.long(), n),
    "glu": lambda n: F.glu(A, int(n)),
    "max_pool": lambda n: F.max_pool2d(IMAGE, 2, int(n)),
    "conv": lambda n: F.conv2d(IMAGE, IMAGE[..., :2, :2], dilation=int(n)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes(name: str) -> None:
    program = PROGRAMS[name]
    outcomes = {_agrees(program, torch.ones(size)) for size in SIZES}
    assert outcomes == {True, False}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    program = NUMBERS[name]
    for number in (-1.0, 0.0, 1.0, 2.0):
        _agrees(lambda t, n=number: program(n) + t, torch.zeros(()))


@pytest.mark.parametrize("name", OF_LARGE)
def test_refusals_of_large_operands(name: str) -> None:
    assert not _agrees(OF_LARGE[name], BIG)


@pytest.mark.parametrize("name", TAKEN_OF_LARGE)
def test_large_operands(name: str) -> None:
    assert _agrees(TAKEN_OF_LARGE[name], BIG)


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name: str) -> None:
    before = torch.get_rng_state()
    assert not _agrees(lambda t: FACTORIES[name]() + t, torch.zeros(()))
    assert torch.equal(torch.get_rng_state(), before)


def captured(program: Any) -> torch.fx.GraphModule:
    """A graph of one call of ``program``, which runs as it is."""
    graph = torch.fx.Graph()
    graph.output((graph.call_function(program, (graph.placeholder("t"),)),))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _agrees(program: Any, tensor: Tensor) -> bool:
    """Whether eager takes the call; what it takes is converted, and the rest is refused."""
    module = captured(program)
    try:
        program(tensor)
    except (RuntimeError, IndexError, NotImplementedError):
        with pytest.raises((Unsupported, RuntimeError, IndexError)):
            functionalize(module, [tensor])
        return False
    check(module, tensor)
    return True
