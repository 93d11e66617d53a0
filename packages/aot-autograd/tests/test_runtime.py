"""A compiled graph in autograd: hooks, accumulation, repeated and nested backward, and eager's errors."""

from __future__ import annotations

import warnings
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
import weft_aot_autograd
import weft_functionalize
from gradients_beside_eager import train
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from weft_aot_autograd.random_state import RandomState
from weft_aot_autograd.training_plan import _tangent


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def product(x: Tensor, y: Tensor) -> Any:
    return (x * y).sin(), (x + y).exp()


def compiled_product(x: Tensor, y: Tensor) -> Any:
    return train(product, [x, y])[0]


def test_unused_outputs_and_no_gradient_at_all() -> None:
    x, y = leaf(3), leaf(3)
    first, second = compiled_product(x, y)(x, y)
    (want,) = torch.autograd.grad(product(x, y)[1].sum(), [x])
    (got,) = torch.autograd.grad(second.sum(), [x])
    torch.testing.assert_close(got, want)
    assert first.requires_grad


def test_gradient_of_nothing_where_a_size_became_a_number_late() -> None:
    """The symbolic number stays in the fakes made before, though it has a value since."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.DYNAMIC])
    fake = mode.from_tensor(torch.randn(6, 3), symbolic_context=context)
    assert fake.shape[0] == 6
    assert fake.shape[1] == 3
    graph = torch.fx.Graph()
    tangent_node = graph.placeholder("tangent")
    tangent_node.meta["val"] = fake
    graph.output(tangent_node)
    backward = torch.fx.GraphModule({}, graph)
    tangent = _tangent(SimpleNamespace(backward=backward, saved=()), 0, 0)  # type: ignore[arg-type]
    assert tangent.prepare(None, tangent.layout(torch.randn(6, 3))).tolist() == [[0.0] * 3] * 6


def test_tangents_of_any_layout() -> None:
    x, y = leaf(3, 4), leaf(3, 4)
    for tangent in (
        torch.randn(4, 3, dtype=torch.float64).t(),
        torch.ones((), dtype=torch.float64).expand(3, 4),
        torch.randn(6, 8, dtype=torch.float64)[::2, ::2],
    ):
        want = torch.autograd.grad(product(x, y)[0], [x, y], tangent)
        got = torch.autograd.grad(compiled_product(x, y)(x, y)[0], [x, y], tangent)
        torch.testing.assert_close(got, want)


def test_retained_graph_and_its_end() -> None:
    x, y = leaf(3), leaf(3)
    result = compiled_product(x, y)(x, y)[0].sum()
    first = torch.autograd.grad(result, [x, y], retain_graph=True)
    second = torch.autograd.grad(result, [x, y])
    torch.testing.assert_close(first, second)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        result.backward()


def test_a_saved_tensor_that_was_written_to() -> None:
    x, y = leaf(3), leaf(3)
    result = compiled_product(x, y)(x, y)[0].sum()
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_hooks_run_as_in_eager() -> None:
    def run(function: Any, x: Tensor, y: Tensor) -> list[Any]:
        seen: list[Any] = []
        x.register_hook(lambda gradient: gradient * 2)
        y.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
        outputs = function(x, y)
        outputs[0].register_hook(lambda gradient: gradient + 1)
        outputs[0].retain_grad()
        (outputs[0].sum() + outputs[1].sum()).backward()
        return [x.grad, y.grad, outputs[0].grad, *seen]

    x, y = leaf(3), leaf(3)
    want = run(product, x, y)
    u, v = (t.detach().clone().requires_grad_() for t in (x, y))
    torch.testing.assert_close(run(compiled_product(u, v), u, v), want)


def test_accumulation_over_calls_and_modules() -> None:
    torch.manual_seed(0)
    module = nn.Linear(4, 4).double()
    x = leaf(2, 4)
    compiled, _ = train(module, [x])
    for count in (1, 2):
        results = []
        for function in (lambda v: module(v), lambda v: compiled(v)[0]):
            module.zero_grad(set_to_none=True)
            x.grad = None
            for _ in range(count):
                function(function(x).tanh()).sum().backward()
            results.append([x.grad, *(p.grad for p in module.parameters())])
        torch.testing.assert_close(results[1], results[0])


def test_writes_to_results_after_the_call() -> None:
    x, y = leaf(3), leaf(3)
    results = []
    for function in (product, compiled_product(x, y)):
        first, second = function(x, y)
        first.mul_(2)
        results.append(torch.autograd.grad(first.sum() + second.sum(), [x]))
    torch.testing.assert_close(results[1], results[0])


def test_gradients_of_gradients() -> None:
    x, y = leaf(3), leaf(3)
    compiled = compiled_product(x, y)
    results = []
    for function in (product, compiled):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            first, second = function(x, y)
            gradient = torch.autograd.grad(first.sum() + second.sum(), [x, y], create_graph=True)
            penalty = sum((g * g).sum() for g in gradient)
            results.append(torch.autograd.grad(penalty, [x, y]))
    assert [str(w.message).startswith("weft: gradients of gradients") for w in caught] == [True]
    torch.testing.assert_close(results[1], results[0])


def test_gradients_of_gradients_with_the_same_dropout_mask() -> None:
    def program(x: Tensor) -> Tensor:
        return F.dropout(x * x, 0.5, True)

    x = leaf(64)
    results = []
    for function in (program, train(program, [x])[0]):
        torch.manual_seed(3)
        output = function(x)
        output = output[0] if isinstance(output, tuple) else output
        torch.rand(5)  # the generator goes on in between
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (gradient,) = torch.autograd.grad(output.sum(), [x], create_graph=True)
            results.append((gradient, *torch.autograd.grad((gradient**2).sum(), [x])))
    torch.testing.assert_close(results[1], results[0])


def test_gradients_of_gradients_of_dependent_inputs() -> None:
    x = leaf(3)
    results = []
    for function in (product, compiled_product(x, x.exp())):
        y = x.exp()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first, _ = function(x, y)
            (gradient,) = torch.autograd.grad(first.sum(), [x], create_graph=True)
            results.append((gradient, *torch.autograd.grad((gradient**2).sum(), [x])))
    torch.testing.assert_close(results[1], results[0])


def test_gradients_of_gradients_with_batch_statistics() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).double()
    x = leaf(5, 4)
    compiled, _ = train(module, [x])
    results = []
    for function in (lambda v: module(v), lambda v: compiled(v)[0]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            weights = torch.arange(20, dtype=torch.float64).view(5, 4)
            loss = (function(x) * weights).sum()
            (gradient,) = torch.autograd.grad(loss, [x], create_graph=True)
            results.append((gradient, *torch.autograd.grad((gradient**2).sum(), [x])))
    torch.testing.assert_close(results[1], results[0])


def test_saved_tensor_hooks_see_what_is_saved() -> None:
    x, y = leaf(3), leaf(3)
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor.clone()

    compiled = compiled_product(x, y)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = compiled(x, y)[0].sum()
    assert packed
    torch.testing.assert_close(
        torch.autograd.grad(result, [x]), torch.autograd.grad(product(x, y)[0].sum(), [x])
    )


class CalledWithDonations:
    """A backward program that takes its inputs out of their list, and notes how many of them others hold."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self.graph = graph
        self.calls = 0
        self.held: list[int] = []

    def __call__(self, *inputs: Any) -> Any:
        self.calls += 1
        return self.graph(*inputs)

    def call_donated(self, inputs: list[Any]) -> Any:
        copies = [value.clone() for value in inputs]
        references = [weakref.ref(value) for value in inputs]
        inputs.clear()
        self.held.append(sum(reference() is not None for reference in references))
        return self.graph(*copies)


def donated_matmul() -> tuple[Any, CalledWithDonations]:
    """Keeps the results of two products and one of its weights; the tangent is held by autograd."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        return ((x @ w).sin() @ w).exp()

    inputs = [leaf(3, 3), leaf(3, 3)]
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(program), inputs)
    joint = weft_aot_autograd.trace_joint(functional)
    assert joint is not None
    parts = weft_aot_autograd.partition(joint)
    backward = CalledWithDonations(parts.backward)
    forward = weft_functionalize.bind(functional, parts.forward)
    training = weft_aot_autograd.TrainingProgram(functional, parts, forward, backward)
    compiled = weft_functionalize.wrap(functional, training)
    return lambda: (compiled(*inputs)[0].sum(), inputs, program(*inputs).sum()), backward


def test_what_only_backward_reads_is_its_own() -> None:
    """So that memory is free for gradients as backward goes, unless it may run again."""
    step, backward = donated_matmul()
    result, inputs, wanted = step()
    want = torch.autograd.grad(wanted, inputs)
    for _ in range(2):
        got = torch.autograd.grad(result, inputs, retain_graph=True)
        torch.testing.assert_close(got, want)
    assert backward.calls == 2
    torch.testing.assert_close(torch.autograd.grad(result, inputs), want)
    assert backward.calls == 2
    assert backward.held == [2]  # a weight, and the tangent
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        result.backward()


def test_hooks_for_saved_tensors_see_what_only_backward_reads() -> None:
    step, _ = donated_matmul()
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: packed.append(tensor) or len(packed) - 1, lambda number: packed[number]
    ):
        result, inputs, wanted = step()
    torch.testing.assert_close(
        torch.autograd.grad(result, inputs), torch.autograd.grad(wanted, inputs)
    )
    assert len(packed) >= 3


def test_nothing_is_left_after_an_error_in_backward() -> None:
    step, backward = donated_matmul()

    def fail(*inputs: Any) -> Any:
        raise MemoryError("no room")

    backward.graph.forward = fail
    result, _, _ = step()
    with pytest.raises(MemoryError):
        result.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        result.backward()


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_generators_are_asked_for_their_states_where_attention_drops_some(
    p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, None, p).sin()

    asked: list[Any] = []
    monkeypatch.setattr(
        weft_aot_autograd.runtime, "RandomState", lambda d: asked.append(d) or RandomState(d)
    )
    q = leaf(2, 4, 8)
    compiled = train(program, [q])[0]
    torch.manual_seed(0)
    (result,) = compiled(q)
    assert len(asked) == (p > 0)
    torch.manual_seed(0)
    torch.testing.assert_close(result, program(q))
    (first,) = torch.autograd.grad(result.sum(), [q], create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), [q])
    if p == 0:
        with sdpa_kernel(SDPBackend.MATH):  # torch 2.14 has no others' second gradients
            (first,) = torch.autograd.grad(program(q).sum(), [q], create_graph=True)
        torch.testing.assert_close(second, torch.autograd.grad(first.square().sum(), [q])[0])


@pytest.mark.parametrize(("p", "train"), [(0.3, True), (0.0, True), (1.0, True), (0.5, False)])
def test_dropout_drawn_again(p, train):
    x, state = torch.randn(50), RandomState(())
    expected = torch.ops.aten.native_dropout(x, p, train)
    state.note_end()
    torch.rand(3)
    with state.drawn_again():
        found = torch.ops.aten.native_dropout(x, p, train)
    torch.testing.assert_close(found, expected)
