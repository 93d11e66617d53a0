"""Calls of torch's functions: which function it is stays guarded; what the graph keeps of it."""

from __future__ import annotations

import collections
import re
from contextlib import nullcontext

import pytest
import torch
from differential import check, run_graph, same
from weft_bytecode_capture import CaptureOptions, capture, compile_frames

activation = torch.relu


def test_rebound_global_function_is_noticed(monkeypatch):
    def apply(x):
        return activation(x)

    compiled = compile_frames(apply, run_graph)
    x = torch.tensor([-1.0, 2.0])
    assert torch.equal(compiled(x), torch.relu(x))
    monkeypatch.setitem(globals(), "activation", torch.tanh)
    assert torch.equal(compiled(x), torch.tanh(x))


@pytest.mark.parametrize(
    "functions",
    [
        (torch.sin, torch.cos),
        (torch.nn.functional.relu, torch.nn.functional.gelu),
        (torch.Tensor.exp, torch.Tensor.sqrt),
        (torch.is_tensor, torch.is_floating_point, torch.is_complex),
        (torch.numel, torch.is_tensor, torch.sum),
    ],
)
def test_function_passed_as_argument_is_guarded(functions):
    x = torch.tensor([0.5, 2.0])
    check(lambda x, function: function(x), [(x, function) for function in functions])


def test_overload_is_guarded():
    compiled = compile_frames(lambda x, function: function(x), run_graph)
    x = torch.tensor([0.5, 2.0])
    for function in (torch.ops.aten.sin.default, torch.ops.aten.cos.default, torch.ops.aten.exp):
        assert torch.equal(compiled(x, function), function(x))


def test_bound_builtin_methods_are_known_by_receiver_and_name():
    reports = []

    def breaks(x):
        out = []
        for step in range(3):
            out.append((x + step).sum().item())  # the list's method waits on the stack
        return out, x.add(x.sum().item())

    compiled = compile_frames(breaks, run_graph, observer=reports.append)
    for value in range(6):
        x = torch.ones(2)  # numbers that items give are guarded
        assert compiled(x)[0] == breaks(x)[0]
        assert torch.equal(compiled(x)[1], breaks(x)[1])
        if value == 0:
            met = len(reports)
    assert len(reports) == met
    check(lambda x, call: call(x), [(torch.ones(2), torch.ones(2).mul), (torch.ones(2), [].append)])


def test_function_kept_in_a_module_is_guarded():
    module = torch.nn.Module()
    compiled = compile_frames(lambda x: module.activation(x), run_graph)
    x = torch.tensor([-1.0, 2.0])
    for function in (torch.sin, torch.cos, torch.sin):
        module.activation = function
        assert torch.equal(compiled(x), function(x))


# What stays in a graph.


def graph_of(function, *arguments):
    """The captured graph, the targets of its calls, and the names of its inputs."""
    (graph,) = capture(function, options=CaptureOptions(fullgraph=True))(*arguments).graphs
    calls = [node for node in graph.graph_module.graph.nodes if node.op.startswith("call")]
    inputs = [source.name() for source in graph.input_sources]
    assert len(inputs) == len(graph.example_inputs)
    return graph, [getattr(node.target, "__name__", node.target) for node in calls], inputs


def test_dead_nodes_and_unused_inputs_are_left_out():
    def f(x, y, unused):
        dead = (x * 3).max(dim=0)
        values, _ = torch.max(x, dim=0)
        return values, values, y, dead[0].shape, unused.dtype

    x = torch.ones(2, 3)
    graph, calls, inputs = graph_of(f, x, x.clone(), x.double())
    assert calls == ["max", "getitem"]
    assert inputs == ["L['x']"]
    (output,) = graph.graph_module.graph.find_nodes(op="output")
    assert len(output.args[0]) == 1
    check(f, [(x, x.clone(), x.double()), (x, x.clone(), x)])


def test_identity_of_results_is_kept():
    def f(x):
        y = x + 1
        return y, y, x, [y, x]

    y, again, x, (third, fourth) = compile_frames(f, run_graph)(argument := torch.ones(2))
    assert y is again is third
    assert x is fourth is argument


def test_a_frame_without_live_operations_has_no_graph():
    def f(x):
        x * 2
        return x.shape[0], x

    result = capture(f)(torch.ones(3))
    assert not result.graphs
    assert not result.breaks


@pytest.mark.parametrize(
    "effect",
    [
        lambda x, state: state.add_(x),
        lambda x, state: state.__setitem__(0, x[0]),
        lambda x, state: torch.add(x, x, out=state),
        lambda x, state: torch.nn.functional.relu(state, True),
        lambda x, state: torch.nn.functional.relu(state, inplace=True),
        lambda x, state: torch.nn.functional.batch_norm(
            torch.stack([x, x * 2]), state, torch.ones(3), training=True
        ),
        lambda x, state: torch.ops.aten.mul_(state, x),
        lambda x, state: torch.ops.aten.mul_.Tensor(state, x),
        lambda x, state: state.view(-1).copy_(x),
        lambda x, state: torch.relu_(state),
        lambda x, state: torch.nn.functional.dropout(x),
        lambda x, state: torch.rand(3),
        lambda x, state: torch.bernoulli(x.abs() / 9),
    ],
)
def test_effects_without_users_stay(effect):
    def f(x, state):
        effect(x, state)
        return x + 1

    def with_seed(function):
        def run(*arguments):
            torch.manual_seed(0)
            result = function(*arguments)
            return result, torch.rand(1)

        return run

    x, state = torch.tensor([[1.0, -2.0, 3.0]])[0], torch.tensor([-1.0, 2.0, 5.0])
    compiled = compile_frames(f, run_graph)
    for _ in range(2):
        plain, found = state.clone(), state.clone()
        expected = with_seed(f)(x, plain)
        result = with_seed(compiled)(x, found)
        assert torch.equal(result[0], expected[0])
        assert torch.equal(result[1], expected[1])
        assert torch.equal(plain, found)


@pytest.mark.parametrize("size", [(0,), (2,), (3,), (4, 3)])
@pytest.mark.parametrize("is_input", [True, False])
def test_results_written_to_tensors_of_other_sizes(size, is_input):
    def f(x, out):
        out = out if is_input else torch.ones(size)
        given = torch.add(x, 1, out=out)
        return given is out, out * 2, out.shape

    with pytest.warns(UserWarning, match="resized") if size[0] in (2, 4) else nullcontext():
        check(f, [(torch.arange(3.0), torch.ones(size))], fullgraph=size == (3,))


def test_calls_give_the_very_tensor_that_they_wrote_to():
    def f(x, out, places, keyword):
        total = torch.add(x, 1, out=out)
        total.mark = 3
        ordered = torch.sort(x, out=(keyword, places))
        again = torch.nn.functional.relu(input=keyword, inplace=True)
        found = (total is out, out.mark, ordered[0] is keyword, ordered.indices is places)
        return found, again is keyword, torch.relu_(x) is x, x.add_(1) is x, total, *ordered

    check(f, [(torch.randn(3), torch.ones(3), torch.ones(3, dtype=torch.int64), torch.ones(3))])


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
def test_quantized_tensors_are_left_to_eager():
    def f(x):
        quantized = torch.quantize_per_tensor(x * 2, 0.1, 3, torch.qint8)
        return quantized.dequantize() + 1, quantized.int_repr(), quantized.q_scale()

    def g(quantized):
        return quantized.dequantize() + 1, quantized.int_repr() * 2, quantized.dtype

    x = torch.randn(3)
    check(f, [(x,)], fullgraph=False)
    quantized = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
    expected, found = g(quantized), compile_frames(g, run_graph)(quantized)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert found[2] is expected[2]


KINDS = {
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.quint8),
    "sparse": torch.Tensor.to_sparse,
    "compressed": torch.Tensor.to_sparse_csr,
    "conjugate": lambda x: (x * 1j).conj(),
    "negative": torch._neg_view,
    "subclass": lambda x: x.as_subclass(Marked),
}


@pytest.mark.filterwarnings("ignore:.*CSR.*beta state:UserWarning")
@pytest.mark.parametrize("part", ["values", "crow_indices", "col_indices"])
def test_parts_of_compressed_tensors(part):
    """They are views of what has no strides, for which torch makes no fakes."""

    def f(x):
        return getattr(x, part)().mul(2).add_(1), part_of[1:] * 2

    part_of = getattr(torch.eye(4).to_sparse_csr(), part)()
    x = torch.eye(3).to_sparse_csr()
    for expected, found in zip(f(x), compile_frames(f, run_graph)(x), strict=True):
        assert torch.equal(found, expected)


class Marked(torch.Tensor):
    """A class of a user's own."""


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
@pytest.mark.filterwarnings("ignore:.*CSR.*beta state:UserWarning")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_unusual_kinds_in_several_sizes(kind, dynamic):
    def f(x):
        dense = x.dequantize() if x.is_quantized else x if kind == "negative" else x.to_dense()
        return dense * x.shape[0], x.dtype, type(x)

    compiled = compile_frames(f, run_graph, options=CaptureOptions(dynamic=dynamic))
    for size in (3, 4, 5, 3):
        x = KINDS[kind](torch.arange(size * 2.0).reshape(size, 2))
        expected, found = f(x), compiled(x)
        assert torch.equal(found[0], expected[0])
        assert found[1:] == expected[1:]


MADE = {
    "sparse": lambda x: x.to_sparse().values() * 2,
    "nested": lambda x: torch.nested.nested_tensor([x, x[:1]]).unbind()[1] + 1,
    "padded": lambda x: torch.nested.nested_tensor([x, x[:1]]).to_padded_tensor(0.5) * 2,
}


@pytest.mark.filterwarnings("ignore:.*prototype stage:UserWarning")
@pytest.mark.parametrize("kind", MADE)
def test_tensors_of_unusual_kinds_that_are_made(kind):
    compiled = compile_frames(MADE[kind], run_graph)
    for size in (3, 4):
        x = torch.arange(size * 2.0).reshape(size, 2)
        assert torch.equal(compiled(x), MADE[kind](x))


def test_function_that_stays_eager_in_training():
    options = CaptureOptions(eager_in_training=frozenset({torch.relu}))

    def function(x):
        return torch.relu(x + 1) * 2

    x = torch.tensor([-3.0, 2.0])
    assert not capture(function, options=options)(x).breaks
    leaf = x.clone().requires_grad_()
    (found,) = capture(function, options=options)(leaf).breaks
    assert found.kind == "function that stays eager in training"
    compiled = compile_frames(function, run_graph, options)
    assert torch.equal(compiled(leaf), function(leaf))


@pytest.mark.parametrize("make", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_networks_of_a_library_stay_eager(make):
    options = CaptureOptions(library_recurrences=frozenset({("cpu", torch.float32)}))
    network = make(3, 4, 2)

    def function(x):
        output, state = network(x * 2)
        return output + 1, state

    for dtype, kinds in (
        (torch.float32, {"recurrent network that a library computes"}),
        (torch.float64, set()),
    ):
        network.to(dtype)
        x = torch.randn(5, 2, 3, dtype=dtype)
        with torch.no_grad():
            assert {b.kind for b in capture(function, options=options)(x).breaks} == kinds
            same(compile_frames(function, run_graph, options)(x), function(x))


class Items(list):
    """A class of a user's own."""


class Places(tuple):
    """A class of a user's own."""


Pair = collections.namedtuple("Pair", "a b")

SEQUENCES = {
    "deque": collections.deque,
    "list": Items,
    "tuple": Places,
    "size": torch.Size,
    "named tuple": lambda items: Pair(0, len(items) % 2),
}
USES_OF_SEQUENCES = {
    "index": lambda x, v: x[v],
    "assigned": lambda x, v: (x.__setitem__(v, 7), x),
    "sizes": lambda x, v: torch.zeros(v),
    "dimensions": lambda x, v: (x.sum(v), x.flip(v)),
    "data": lambda x, v: torch.tensor(v) * x.sum(),
    "tensors": lambda x, v: torch.cat(v if type(v) in (torch.Size, Pair) else type(v)([x, x])),
}


@pytest.mark.parametrize("kind", SEQUENCES)
@pytest.mark.parametrize("use", USES_OF_SEQUENCES)
def test_sequences_of_other_classes_are_what_torch_takes_them_for(kind, use):
    make = SEQUENCES[kind]
    calls = [(torch.arange(4.0).reshape(2, 2), make(items)) for items in ([], [0], [0, 1])]
    check(USES_OF_SEQUENCES[use], calls, fullgraph=False)


def covariances(x):
    return torch.cov(x), x.cov(correction=0), torch.corrcoef(x), x.corrcoef()


def covariances_left_to_eager(x, weights):
    """Weights decide what is raised, and too few observations warn; half precision rounds counts."""
    return torch.cov(x, fweights=weights), torch.cov(x.half()), torch.cov(x, correction=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.int64])
@pytest.mark.parametrize("grad", [False, True])
def test_covariances(dtype, grad):
    if grad and dtype is torch.int64:
        pytest.skip("integers have no gradients")
    compiled = compile_frames(covariances, run_graph, CaptureOptions(fullgraph=True))
    for size in ((2, 5), (3, 7), (4,)):
        x = (torch.arange(torch.Size(size).numel()).reshape(size) ** 2 % 11).to(dtype)
        pair = [x.clone().requires_grad_(grad) for _ in range(2)]
        expected, found = covariances(pair[0]), compiled(pair[1])
        for left, right in zip(found, expected, strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
        if grad:
            for results in (expected, found):
                sum(result.abs().sum() for result in results).backward()
            torch.testing.assert_close(pair[1].grad, pair[0].grad, equal_nan=True)


def test_covariances_left_to_eager():
    weights = torch.tensor([1, 2, 1])
    calls = [(torch.arange(6.0).reshape(2, 3) ** 2, w) for w in (weights, weights - 2)]
    check(covariances_left_to_eager, calls, fullgraph=False)


WITH_CLASSES = {
    "new tensor": lambda x: torch.tensor([0], dtype=int) + x.long(),
    "listed": lambda x: torch.tensor([x.sum().long(), 3], dtype=int),
    "zeros": lambda x: torch.zeros(3, dtype=float) + x,
    "method": lambda x: x.to(int),
    "method, by name": lambda x: x.to(dtype=bool),
    "like": lambda x: torch.ones_like(x, dtype=complex),
    "reduction": lambda x: x.sum(dtype=float),
    "position": lambda x: torch.softmax(x, 0, float),
    "view": lambda x: x.double().view(int),
}


@pytest.mark.parametrize("name", WITH_CLASSES)
def test_classes_of_python_are_dtypes(name):
    function = WITH_CLASSES[name]
    x = torch.randn(3)
    assert same(compile_frames(function, run_graph, CaptureOptions(fullgraph=True))(x), function(x))


@pytest.mark.parametrize(
    "function", [lambda x: x.type(float), lambda x: torch.add(x, int), lambda x: x.to(str)]
)
def test_classes_that_are_no_dtypes_are_refused_as_by_eager(function):
    with pytest.raises((TypeError, ValueError)) as wanted:
        function(torch.ones(3))
    with pytest.raises(wanted.type, match=re.escape(str(wanted.value)[:30])):
        compile_frames(function, run_graph, CaptureOptions())(torch.ones(3))
