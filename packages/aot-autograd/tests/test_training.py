"""Partitioned graphs in autograd beside eager: what autograd's users rely on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft_aot_autograd
import weft_functionalize
from gradients_beside_eager import check_gradients, train
from torch import Tensor, nn


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def traced_joint(program: Any, *inputs: Any) -> Any:
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(program), inputs)
    return weft_aot_autograd.trace_joint(functional)


def test_nothing_to_record() -> None:
    assert traced_joint(lambda x: x.sin(), torch.ones(3)) is None
    assert traced_joint(lambda x: x > 1, leaf(3)) is None
    with torch.no_grad():
        assert traced_joint(lambda x: x.sin(), leaf(3)) is None


PROGRAMS: dict[str, Any] = {
    "polynomial": lambda x, y: x * y + x.pow(3),
    "matrix product": lambda x, y: (x @ y.t()).relu(),
    "softmax": lambda x, y: F.softmax(x, -1) * y,
    "broadcast": lambda x, y: (x[:, :1] + y).sum(0),
    "expand and view": lambda x, y: (x.unsqueeze(1).expand(3, 2, 4).reshape(6, 4), y.t()),
    "several outputs": lambda x, y: (x.sin(), y.cos(), x > 0),
    "output twice": lambda x, y: (x.sin(),) * 2,
    "input returned": lambda x, y: (x, x * y),
    "views of one result": lambda x, y: (x * y).chunk(2, 1),
    "unused input": lambda x, y: x.exp(),
    "only some differentiable": lambda x, y: (x * y, y.detach() * 2, x.argmax(1)),
    "index": lambda x, y: x[torch.tensor([0, 0, 2])] * y,
    "scatter": lambda x, y: x.index_add(0, torch.tensor([0, 1]), y[:2]),
    "cat": lambda x, y: torch.cat([x, y, x], 1).tanh(),
    "where": lambda x, y: torch.where(x > 0, x / y, y),
    "maximum": lambda x, y: x.amax(1) * y.max(1).values,
    "cumulated": lambda x, y: x.cumsum(0) * y.cumprod(1),
    "norm": lambda x, y: x.norm(dim=1) + y.var(1),
    "normalized": lambda x, y: F.layer_norm(x, (4,)) * F.normalize(y),
    "gelu": lambda x, y: F.gelu(x) + F.silu(y) + F.softplus(x),
    "scalar loss": lambda x, y: F.mse_loss(x, y),
    "log-likelihood": lambda x, y: F.cross_entropy(x * y, torch.tensor([0, 3, 1])),
    "weighted": lambda x, y: F.cross_entropy(x, torch.tensor([0, -100, 1]), y[0].detach()),
    "likelihoods": lambda x, y: (
        F.cross_entropy(x, torch.tensor([0, 3, 1]), reduction="none") * y[:, 0]
    ),
    "smoothed": lambda x, y: F.cross_entropy(x, torch.tensor([0, 3, 1]), label_smoothing=0.1),
    "complex": lambda x, y: torch.view_as_real(torch.polar(x, y) * 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str) -> None:
    program = PROGRAMS[name]
    check_gradients(lambda x, y: program(x, y), leaf(3, 4), leaf(3, 4))


@pytest.mark.parametrize("name", ["polynomial", "matrix product", "softmax", "normalized"])
def test_partly_required_and_strided(name: str) -> None:
    program = PROGRAMS[name]
    fixed = torch.randn(4, 3, dtype=torch.float64).t()
    check_gradients(lambda x, y: program(x, y), leaf(3, 4), fixed)
    check_gradients(lambda x, y: program(x, y), fixed, leaf(3, 4))


def test_empty_and_scalar_inputs() -> None:
    check_gradients(lambda x, y: (x * y).sum(), leaf(0, 4), leaf())


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.dropout, self.linear = nn.Dropout(0.4), nn.Linear(4, 5)
        self.layer_norm = nn.LayerNorm(5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(F.relu(self.norm(self.convolution(x)), inplace=True))
        return F.gelu(self.layer_norm(self.linear(x.mean((2, 3)))))


@pytest.mark.parametrize("training", [True, False])
def test_network_with_buffers_and_dropout(training: bool) -> None:
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    check_gradients(Network().double().train(training), images)
    check_gradients(Network().double().train(training), images.requires_grad_())


def test_frozen_parameters() -> None:
    network = Network().double()
    network.convolution.requires_grad_(False)
    check_gradients(network, torch.randn(2, 3, 8, 8, dtype=torch.float64))


def test_mutated_inputs() -> None:
    def writes_gradient(buffer: Tensor, x: Tensor) -> Tensor:
        buffer.mul_(2).add_(x * x)
        return buffer * x

    check_gradients(writes_gradient, torch.ones(3, dtype=torch.float64), leaf(3))

    def writes_what_it_needs(buffer: Tensor, x: Tensor) -> Tensor:
        y = x * buffer.clone()
        buffer.zero_()
        return y * y

    check_gradients(writes_what_it_needs, torch.ones(3, dtype=torch.float64), leaf(3))


LOGICAL_WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "not": lambda h, x: h.logical_not_(),
    "and": lambda h, x: h.logical_and_(x),
    "or": lambda h, x: h.logical_or_(x - 1),
    "xor": lambda h, x: h.logical_xor_(x),
    "of a view": lambda h, x: h[1:].logical_not_(),
    "of a view with another layout": lambda h, x: h.view(3, 1).T.logical_and_(x),
    "as out": lambda h, x: torch.logical_not(x, out=h),
    "of a comparison as out": lambda h, x: torch.gt(x, 0, out=h),
    "as out, into a view": lambda h, x: torch.le(x[1:], 0, out=h[:2]),
}


@pytest.mark.parametrize("name", LOGICAL_WRITES)
def test_logical_writes_leave_the_history_as_it_is(name: str) -> None:
    """Eager's autograd does not know them, of floats either: gradients are those from before the write."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        h, flags = x * 3, x.detach() * 1
        LOGICAL_WRITES[name](h, x)
        LOGICAL_WRITES[name](flags, x)
        return h * 2, flags * x

    check_gradients(program, leaf(3))


def test_a_mutated_input_with_history() -> None:
    def program(y: Tensor) -> Tensor:
        y.mul_(3).exp_()
        return y.exp()

    x, other = leaf(3), leaf(3)
    compiled, _ = train(program, [x * 2])
    with torch.no_grad():
        other.copy_(x)
    results = []
    for run, value in ((program, x), (compiled, other)):
        y = value * 2
        z = run(y)
        z = z[0] if isinstance(z, tuple) else z
        (z.sum() + (y * y).sum()).backward()
        results.append((y, z, value.grad))
    torch.testing.assert_close(results[0], results[1])


def test_no_grad_regions() -> None:

    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    scale = graph.call_function(torch.sum, (graph.call_function(torch.abs, (x,)),))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output((graph.call_function(torch.mul, (x, scale)), scale, y))
    module = torch.fx.GraphModule(nn.Module(), graph)
    check_gradients(module, leaf(3), leaf(3))


def test_a_write_behind_autograds_back_keeps_the_history() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        y.detach().mul_(3)
        return y * x

    check_gradients(program, leaf(3))

    def to_a_buffer(buffer: Tensor, x: Tensor) -> Tensor:
        buffer.detach().add_(1)
        return buffer * x

    check_gradients(to_a_buffer, torch.ones(3, dtype=torch.float64), leaf(3))


def test_a_gradient_that_is_zero_everywhere() -> None:
    check_gradients(lambda x: torch.sgn(x) * 2, leaf(3, 4))
