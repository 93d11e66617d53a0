"""Jagged tensors (``torch.nested`` with ``layout=torch.jagged``): one graph of their values and offsets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from differential import run_graph
from weft_bytecode_capture import CaptureOptions, GraphBreakError, compile_frames

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

jagged = torch.nested.nested_tensor_from_jagged
padded = torch.nested.to_padded_tensor


def given(*lengths, size=16):
    return torch.nested.nested_tensor([torch.randn(n, size) for n in lengths], layout=torch.jagged)


def rows(*bounds, size=16):
    return torch.randn(bounds[-1], size), torch.tensor([0, *bounds])


def flat(value):
    """Results, jagged ones as their parts: values, offsets, which dimension is ragged, what is known."""
    if isinstance(value, torch.Tensor) and value.is_nested:
        known = {key: part.shape[0] for key, part in value._metadata_cache.items()}
        return [value.values(), value.offsets(), value._ragged_idx, known, value.dtype]
    if isinstance(value, (tuple, list)):
        return [part for item in value for part in flat(item)]
    return [value]


def assert_same(found, wanted, tolerance=1e-5):
    found, wanted = flat(found), flat(wanted)
    assert len(found) == len(wanted)
    for mine, plain in zip(found, wanted, strict=True):
        if not isinstance(plain, torch.Tensor):
            assert mine == plain
            continue
        torch.testing.assert_close(mine, plain, rtol=tolerance, atol=tolerance, equal_nan=True)
        assert mine.stride() == plain.stride()
        assert mine.requires_grad is plain.requires_grad


def compiled(function):
    """What is compiled, fullgraph, and a list that grows with each graph."""
    graphs = []

    def backend(graph_module, example_inputs):
        graphs.append(graph_module)
        return run_graph(graph_module, example_inputs)

    return compile_frames(function, backend, CaptureOptions(fullgraph=True)), graphs


def check(function, *calls, graphs=1):
    program, found = compiled(function)
    for call in calls:
        assert_same(program(*call), function(*call))
    assert len(found) == graphs


LINEAR, WIDE = torch.nn.Linear(16, 16), torch.nn.Linear(16, 48)
NORM = torch.nn.LayerNorm(16)


def elementwise(x):
    doubled = x * 2 + 1
    return doubled, -x, 1 - x, 2 / x, 2**x, x**2 > 0.5, x.double(), F.gelu(doubled), x.clone()


def beside_plain_tensors(x):
    of_each = torch.arange(float(x.shape[0])).reshape(-1, 1, 1)
    return x + torch.ones(16), torch.ones(1, 1, 16) * x, x - of_each, x + x.sin()


def layers(x):
    normal = NORM(x)
    q, k, v = WIDE(F.dropout(normal, 0.0)).chunk(3, -1)
    return (
        q.softmax(-1),
        k.softmax(1),
        torch.softmax(q * 2, 1),
        F.rms_norm(k, (16,)),
        torch.cat([q, v], -1),
        x @ LINEAR.weight,
    )


def shapes(x):
    batch, length, size = x.shape
    heads = x.view(batch, -1, 2, size // 2).transpose(1, 2)
    return (
        heads,
        heads.transpose(1, 2).reshape(batch, length, size),
        x.unsqueeze(-1),
        x.split(8, dim=-1),
        (x.dim(), x.size(0), x.size(-1), x.ndim, len(x), x.layout, x.is_nested),
    )


def reductions(x):
    return x.sum(), x.mean(), x.sum(-1), x.mean(-1, keepdim=True), x.sum(1), x.mean(dim=1)


def padding(x):
    heads = x.unflatten(-1, (2, 8)).transpose(1, 2)
    return padded(x, 0.5), x.to_padded_tensor(-1.0), padded(heads, 0.0), padded(x, 0, (3, 7, 16))


def attention(x):
    q, k, v = (layer(x).unflatten(-1, (2, 8)).transpose(1, 2) for layer in (LINEAR, NORM, LINEAR))
    return F.scaled_dot_product_attention(q, k, v, scale=0.3).transpose(1, 2).flatten(-2)


def written(x):
    y = x.clone()
    y += 1
    y.mul_(x).clamp_(min=0.1)
    return y, torch.where(y > 0.5, y, 0.0), x.shape == y.shape


ON_GIVEN = (
    written,
    elementwise,
    beside_plain_tensors,
    layers,
    shapes,
    reductions,
    padding,
    attention,
)


@pytest.mark.parametrize("function", ON_GIVEN)
def test_of_a_jagged_argument(function):
    with torch.no_grad():
        check(function, (given(2, 5, 3),), (given(4, 1, 6),), (given(1, 1, 2),), graphs=2)


@pytest.mark.parametrize("function", ON_GIVEN)
def test_of_rows_and_offsets(function):
    def made(values, offsets):
        return function(jagged(values, offsets, min_seqlen=1, max_seqlen=7))

    with torch.no_grad():
        check(made, rows(2, 7, 10), rows(2, 3, 10), rows(7, 8, 11), graphs=2)


def test_without_known_lengths_there_is_room_for_all_rows():
    def made(values, offsets):
        return padded(jagged(values, offsets), 0.0), padded(jagged(values, lengths=offsets), 0.0)

    check(made, (torch.randn(5, 2), torch.tensor([0, 2, 3])))
    check(made, (torch.randn(0, 2), torch.tensor([0, 0, 0])))


def test_lengths_that_are_not_known_are_found():
    def made(values, offsets):
        x = jagged(values, offsets)
        return attention(x), x.softmax(1), padded(x, 0.0)

    with torch.no_grad():
        check(made, rows(2, 7, 10), rows(2, 3, 10))


def one_by_one(values, offsets):
    x = jagged(values, offsets) * 2
    return [row.exp() for row in x.unbind()], torch.stack([row.sum(0) for row in x])


def test_sequences_one_by_one():
    with torch.no_grad():
        check(one_by_one, rows(2, 7, 10), rows(2, 3, 10), rows(5, 6, 12), graphs=2)


def test_an_argument_is_written_to():
    program, graphs = compiled(lambda x: x.mul_(2).add_(1))
    for lengths in ((2, 3), (4, 3)):
        x = given(*lengths)
        wanted = x.values().clone() * 2 + 1
        assert program(x) is x
        torch.testing.assert_close(x.values(), wanted)
    assert len(graphs) == 2


def test_of_a_list():
    def made(a, b):
        both = torch.nested.nested_tensor([a, b], layout=torch.jagged)
        return (
            padded(both.sin(), -1.0),
            both,
            torch.nested.as_nested_tensor([b, a], layout=torch.jagged, dtype=torch.float64),
        )

    sizes = (2, 3), (4, 5), (3, 6)
    check(made, *[tuple(torch.randn(n, 4) for n in pair) for pair in sizes], graphs=2)


def test_gradients():
    def loss(values, offsets, x):
        y = attention(jagged(values, offsets, max_seqlen=6) * 3)
        return padded(y, 0.0).sin().sum() + padded(LINEAR(x), 1.0).cos().sum(), y

    program, graphs = compiled(loss)
    values, offsets = rows(2, 8, 10)
    found = []
    for function in (loss, program):
        leaves = values.clone().requires_grad_(), given(2, 3).detach().requires_grad_()
        leaves[1]._values.copy_(torch.arange(80.0).view(5, 16) / 80)
        total, rest = function(leaves[0], offsets, leaves[1])
        (total + rest.values().square().sum()).backward()
        gradients = [leaves[0].grad, leaves[1].grad.values(), LINEAR.weight.grad, NORM.weight.grad]
        found.append([total.detach(), *(gradient.clone() for gradient in gradients)])
        LINEAR.zero_grad(), NORM.zero_grad()
    assert_same(found[1], found[0], 1e-4)
    assert len(graphs) == 1


def test_what_the_guards_hold():
    program, graphs = compiled(lambda x: x * 2)
    values, offsets = rows(2, 5)
    calls = (
        jagged(values, offsets),
        jagged(values, offsets, max_seqlen=9),
        jagged(values.view(5, 2, 8), offsets).transpose(1, 2),
        jagged(values.double(), offsets),
    )
    for x in (*calls, *calls):
        assert_same(program(x), x * 2)
    assert len(graphs) == len(calls)


def test_results_share_the_ragged_size_of_arguments():
    program, _ = compiled(lambda x: (x * 2, x + 1))
    x = given(2, 3)
    doubled, more = program(x)
    assert_same(doubled + more + x, x * 2 + (x + 1) + x)


REFUSED = {
    "holes": lambda x: padded(
        jagged(x.values(), torch.tensor([0, 2, 5]), torch.tensor([1, 2])), 0.0
    ),
    "in place, of another shape": lambda x: x.transpose_(1, 2),
    "other offsets": lambda x: x + jagged(x.values(), torch.tensor([0, 2, 5])),
    "logarithms of a ragged softmax": lambda x: x.log_softmax(1),
    "causal": lambda x: F.scaled_dot_product_attention(
        *(x.unflatten(-1, (2, 8)).transpose(1, 2) for _ in range(3)), is_causal=True
    ),
    "rows of one": lambda x: x[0],
    "its size": lambda x: torch.zeros(x.shape[1]),
}


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_the_rest_breaks(function):
    with pytest.raises(GraphBreakError):
        compiled(function)[0](given(2, 3))
    program = compile_frames(function, run_graph, CaptureOptions())
    outcomes = []
    for each in (function, program):
        x = given(2, 3)
        x._values.copy_(torch.arange(80.0).view(5, 16) / 80)
        try:
            outcomes.append(flat(each(x)))
        except (RuntimeError, TypeError) as error:
            outcomes.append([type(error)])
    assert_same(outcomes[1], outcomes[0])
