"""Sizes and numbers that change between calls: one graph for all of them, equal to plain Python."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
import torch
from weft_bytecode_capture import (
    CaptureOptions,
    CaptureReport,
    compile_frames,
)


class Compiled:
    """A function compiled with graphs run as they are; counts its graphs."""

    def __init__(
        self, function: Callable[..., object], dynamic: bool | None = None, fullgraph: bool = True
    ) -> None:
        self.function = function
        self.reports: list[CaptureReport] = []
        options = CaptureOptions(fullgraph=fullgraph, dynamic=dynamic)
        self.compiled = compile_frames(
            function, lambda graph, inputs: graph.forward, options, None, self.reports.append
        )

    def check(self, *arguments: object) -> None:
        found, wanted = self.compiled(*arguments), self.function(*arguments)
        assert_same(found, wanted)

    @property
    def count(self) -> int:
        return len(self.reports)

    @property
    def relations(self) -> set[str]:
        guards = self.reports[-1].guards
        return {
            guard.predicate.expected_text()
            for guard in guards
            if type(guard.predicate).__name__ == "ShapeRelation"
        }


def assert_same(found: object, wanted: object) -> None:
    assert type(found) is type(wanted), (found, wanted)
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        assert found.stride() == wanted.stride()
    elif isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for left, right in zip(found, wanted, strict=True):
            assert_same(left, right)
    else:
        assert found == wanted


SIZES = ((2, 9), (4, 16), (5, 7), (3, 40), (6, 6), (8, 3), (17, 2))


def views(x):
    batch, length = x.shape
    return x.view(batch * length), x.reshape(batch * length, 1), x.t().flatten() + x.numel()


def arithmetic(x):
    n = x.size(0) * 2 - x.shape[1] // 3 + len(x.shape)
    return n, -n, abs(n - 100), n % 7, n / 2, x * n, x.shape[0] ** 2, x.shape[1] ** -0.5


def rounded_quotients(x):
    n, m = x.shape[0] + 3, x.shape[1] * 5
    numbers = (
        int(n / 2),
        math.ceil(m / 4),
        math.floor(n / 3.0),
        math.trunc(m * 0.75),
        int(0.375 * m),
    )
    return (
        *numbers,
        math.ceil(n),
        int(n),
        divmod(m, 4),
        divmod(m, n),
        x.new_zeros(math.ceil(m / 7)),
    )


def roots(x):
    n = x.shape[0] * x.shape[1]
    return x / math.sqrt(n), x * math.sqrt(n / 2)


def slices(x):
    n = x.shape[1]
    return x[:, : n // 2], x[:, n // 2 :], x[..., -1], x[:, 1:]


def new_tensors(x):
    return (
        torch.zeros(x.shape[0], 3, dtype=x.dtype),
        torch.arange(x.shape[1]) + x,
        x.new_ones(x.shape),
        torch.full((x.size(1),), 2.0),
        x.expand(3, *x.shape),
    )


def numbers_in_tensors(x):
    """torch gives a tensor for a quotient of two numbers, which then is a size."""
    rows = torch.div(x.size(0) - 1, 2, rounding_mode="floor") + 1
    columns = torch.div(x.size(1) * 4, 2, rounding_mode="trunc")
    doubled = torch.cat([x, x], 1).view(x.size(0), columns)
    return doubled, torch.zeros((2, rows)), x.new_zeros(rows, 3), x[:rows], int(columns), rows


def shapes(x):
    return x.shape, x.size(), x.shape[::-1], (*x.shape[:-1], 4), x.stride(), x.nbytes


def comparisons(x):
    return x + 1 if x.shape[0] != 1 and x.shape[1] >= 2 and x.numel() else x


def inlined(x):
    def half(n):
        return max(n // 2, 1)

    return x[:, : half(x.shape[1])].sum(1)


def keyed(x):
    cache = {"rows": x.shape[0], "tokens": [x.shape[1]]}
    cache["rows"] += 1
    return cache["rows"], cache["tokens"], x.softmax(-1)


@pytest.mark.parametrize(
    "function",
    [
        views,
        arithmetic,
        rounded_quotients,
        roots,
        new_tensors,
        numbers_in_tensors,
        shapes,
        comparisons,
        keyed,
    ],
    ids=lambda f: f.__name__,
)
def test_two_graphs_serve_every_size(function):
    compiled = Compiled(function)
    for size in SIZES:
        compiled.check(torch.randn(size))
    assert compiled.count == 2


@pytest.mark.parametrize("function", [slices, inlined], ids=lambda f: f.__name__)
def test_programs_that_compare_sizes_have_a_graph_for_each_outcome(function):
    compiled = Compiled(function)
    for size in SIZES:
        compiled.check(torch.randn(size))
    assert compiled.count <= 3


def chunks(x):
    n, parts = x.shape[1], []
    for start in range(0, n, 16):
        parts.append(x[:, start : min(n, start + 16)] * start)
    return torch.cat(parts, 1), len(range(3, n, 16)), list(range(1, n, 16))


def backward_chunks(x):
    n = x.shape[1]
    return x, list(range(40, n, -8)), tuple(zip(range(0, n, 20), range(n), strict=False))[:1]


def spread(x):
    return x * sum(range(1, x.shape[1], 100)), len(range(5, x.shape[1] - 90, 7))


@pytest.mark.parametrize("function", [chunks, spread], ids=lambda f: f.__name__)
def test_a_loop_over_numbers_that_are_apart_guards_how_many_there_are(function):
    compiled = Compiled(function)
    for length in (12, 9, 14, 7, 15, 13):
        compiled.check(torch.randn(2, length))
    assert compiled.count == 2
    for length in (1, 17, 30, 33, 40):
        compiled.check(torch.randn(2, length))


def test_ranges_that_end_elsewhere():
    compiled = Compiled(backward_chunks)
    for length in (12, 9, 14, 35, 39, 40, 41, 60):
        compiled.check(torch.randn(2, length))


def test_only_what_changed_is_symbolic():
    compiled = Compiled(lambda x: x + x.shape[0] + x.shape[1])
    compiled.check(torch.randn(3, 8))
    compiled.check(torch.randn(4, 8))
    assert "L['x'].size(0) >= 2" in compiled.relations
    assert not any("size(1)" in relation for relation in compiled.relations)
    compiled.check(torch.randn(7, 8))
    assert compiled.count == 2
    compiled.check(torch.randn(7, 9))
    compiled.check(torch.randn(2, 100))
    assert compiled.count == 3


def test_sizes_zero_and_one_have_graphs_of_their_own():
    compiled = Compiled(lambda x: x.sum(0, keepdim=True) + x)
    for rows in (3, 5, 1, 0, 9, 1, 0):
        compiled.check(torch.randn(rows, 4))
    assert compiled.count == 4


def test_equal_sizes_are_related_with_the_line_that_needs_it():
    compiled = Compiled(lambda x, y: x @ y)
    for rows, inner in ((2, 3), (4, 5), (7, 8)):
        compiled.check(torch.randn(rows, inner), torch.randn(inner, 6))
    assert compiled.count == 2
    assert "L['y'].size(0) == L['x'].size(1)" in compiled.relations
    guard = next(g for g in compiled.reports[-1].guards if "==" in g.predicate.expected_text())
    assert "x @ y" in guard.reason.text
    with pytest.raises(RuntimeError):
        compiled.compiled(torch.randn(3, 4), torch.randn(5, 6))


def test_strides_are_related_to_sizes():
    compiled = Compiled(lambda x: x.view(-1) if x.is_contiguous() else x + 1)
    for size in ((2, 3), (4, 5), (6, 7)):
        compiled.check(torch.randn(size))
    assert compiled.count == 2
    compiled.check(torch.randn(5, 8).t())
    compiled.check(torch.randn(9, 4).t())
    compiled.check(torch.randn(4, 9)[:, :5])
    assert compiled.count <= 4


def branching(x):
    return x * 2 if x.shape[0] > 4 else x - 1


def test_a_branch_on_a_size_splits_the_range():
    compiled = Compiled(branching)
    for rows in (2, 3, 7, 4, 100, 5, 2):
        compiled.check(torch.randn(rows, 2))
    assert compiled.count == 3
    assert "L['x'].size(0) >= 5" in compiled.relations


def looping(x):
    for row in range(x.shape[0]):
        x = x + row
    return [x] * x.shape[1], {x.shape[0]: 1}[x.shape[0]]


def test_what_needs_the_number_is_compiled_for_it():
    compiled = Compiled(looping)
    for size in ((2, 3), (3, 4), (3, 5), (2, 3)):
        compiled.check(torch.randn(size))
    assert compiled.count == 3


def test_integers_become_symbolic_once_they_change():
    compiled = Compiled(lambda x, step: (x * step, step + 1, x[: step % 3]))
    for step in (0, 1, 2, 3, 50, -7, 2**40):
        compiled.check(torch.randn(4), step)
    assert compiled.count == 2
    compiled.check(torch.randn(4).double(), 7)
    assert compiled.count == 3
    compiled.check(torch.randn(4), True)
    assert compiled.count == 4


class Counter:
    def __init__(self):
        self.calls = 0

    def step(self, x):
        self.calls += 1
        return x + self.calls


def test_integers_in_attributes_become_symbolic():
    compiled, plain = Counter(), Counter()
    reports = []
    step = compile_frames(
        compiled.step, lambda g, e: g.forward, CaptureOptions(fullgraph=True), None, reports.append
    )
    for _ in range(6):
        x = torch.randn(3)
        assert_same(step(x), plain.step(x))
        assert compiled.calls == plain.calls
    assert len(reports) == 2


def divided(x, n):
    try:
        return x + 10 // n
    except ZeroDivisionError:
        return x


def test_division_by_a_number_that_may_be_zero():
    compiled = Compiled(divided)
    for n in (1, 2, 0, 5, 0, -3):
        compiled.check(torch.ones(2), n)
    assert compiled.count == 3


def broken(x):
    y = x.reshape(-1)
    n = y.shape[0]
    time.sleep(0)
    return y[: n // 2] + n


def test_sizes_live_through_a_graph_break():
    compiled = Compiled(broken, fullgraph=False)
    for size in SIZES:
        compiled.check(torch.randn(size))
    before = compiled.count
    for size in SIZES:
        compiled.check(torch.randn(size))
    assert compiled.count == before


def test_dynamic_true_needs_one_graph():
    compiled = Compiled(lambda x, n: x.view(-1) * n, dynamic=True)
    for size, n in zip(SIZES, (3, 0, 1, -2, 5, 6, 7), strict=True):
        compiled.check(torch.randn(size), n)
    assert compiled.count == 1


def test_dynamic_false_has_a_graph_for_each_size():
    compiled = Compiled(lambda x, n: x + n, dynamic=False)
    for size, n in (((2, 3), 1), ((4, 3), 1), ((4, 3), 2)):
        compiled.check(torch.randn(size), n)
    assert compiled.count == 3
    assert not compiled.relations


def test_a_size_in_a_list_is_symbolic():
    compiled = Compiled(lambda tensors, settings: tensors[0] + settings["n"])
    for rows, n in ((2, 1), (3, 2), (4, 9)):
        compiled.check([torch.randn(rows)], {"n": n})
    assert compiled.count == 2


def test_gradients_go_through_symbolic_graphs():
    def function(x, w):
        return (x @ w).relu().sum() / x.shape[0]

    compiled = compile_frames(function, lambda graph, inputs: graph.forward)
    for rows in (2, 5, 9):
        x, w = torch.randn(rows, 3), torch.randn(3, 4, requires_grad=True)
        hidden = (w * 2).detach().requires_grad_()
        compiled(x, hidden * 1).backward()
        found, hidden.grad = hidden.grad, None
        function(x, hidden * 1).backward()
        torch.testing.assert_close(found, hidden.grad)


@torch.library.custom_op("weft_tests::doubled_rows", mutates_args=())
def doubled_rows(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled_rows.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    if isinstance(x.shape[0], torch.SymInt):
        raise RuntimeError("takes no symbols")
    return torch.empty_like(x)


def test_an_operator_that_takes_no_symbols_has_a_graph_for_each_size():
    compiled = Compiled(lambda x: doubled_rows(x) + 1)
    for rows in (2, 3, 5):
        compiled.check(torch.randn(rows, 4))
    assert compiled.count == 3


def test_sizes_that_depend_on_data_are_symbols_beside_the_others():
    compiled = Compiled(lambda x: (x > 0).nonzero() * x.shape[0])
    for rows in (2, 5, 9):
        compiled.check(torch.randn(rows))
    assert compiled.count == 2


def writes_at(x: torch.Tensor, n: int) -> object:
    y = x.clone()
    y[:, n] = 3.0
    y[-n] = torch.arange(7.0)
    y[n, None, ..., 1:3] = y[0, 2:4]
    y[n:] = y[n:] * 2
    return y


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x[n] + 1,
        lambda x, n: x[-n] + 1,
        lambda x, n: x[:, n] + 1,
        lambda x, n: x[..., -n].sum(),
        lambda x, n: x[1, n] * x[n, 2],
        lambda x, n: x[None, n, 1:],
        lambda x, n: x[n - 1, ..., None] + x[:, :-n].sum(),
        lambda x, n: (x[n, n], x[: n + 1, -n]),
        writes_at,
    ],
)
def test_two_graphs_serve_every_position(function: Callable[..., object]) -> None:
    compiled = Compiled(function)
    x = torch.arange(42.0).reshape(6, 7)
    for n in (1, 2, 3, 4):
        compiled.check(x, n)
    assert compiled.count == 2


def test_a_position_out_of_range_is_eagers_error() -> None:
    compiled = Compiled(lambda x, n: x[:, n] + 1, fullgraph=False)
    x = torch.arange(6.0).reshape(2, 3)
    for n in (0, 1, 2, -1, -3):
        compiled.check(x, n)
    for run in (compiled.compiled, compiled.function):
        with pytest.raises(IndexError, match="index 3 "):
            run(x, 3)


def test_floats_stay_floats_and_keep_their_sign() -> None:
    def function(x: torch.Tensor, n: int) -> object:
        if n:
            part = 0.0 / n
            if n < 3 and n > 1:  # now it is known
                n = n + 0
            return x + 1, part, part + 0.0, -0.0 * n, 0.0 * n, (n + 0.5) - 0.5, n * 0.5 * 2
        return x

    for dynamic in (None, True):
        compiled = Compiled(function, dynamic)
        for n in (2, 3, 5, -3, 0, 1, 2):
            found, wanted = compiled.compiled(torch.ones(2), n), function(torch.ones(2), n)
            assert repr(found) == repr(wanted)


def test_a_part_that_nobody_reads_is_in_range_too() -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        x[n % 2]
        return x + 1

    compiled = Compiled(function, fullgraph=False)
    for rows, n in ((3, 5), (2, 3), (4, 2), (1, 4)):
        compiled.check(torch.ones(rows, 3), n)
    for rows in (0, 1):
        for run in (compiled.compiled, compiled.function):
            with pytest.raises(IndexError, match=f"index 1 is out of bounds .* with size {rows}"):
                run(torch.ones(rows, 3), 7)


def test_parts_that_are_written_through_share_memory() -> None:
    def function(x: torch.Tensor, n: int) -> object:
        x[n].mul_(2)
        return x[:, n]

    compiled = Compiled(function)
    for n in (0, 1, 2):
        x = torch.arange(9.0).reshape(3, 3)
        y = x.clone()
        part = compiled.compiled(x, n)
        assert_same(part, function(y, n))
        assert_same(x, y)
        assert part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


class Halved(torch.nn.Module):
    def __init__(self, dropped: float) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(dropped)

    def forward(self, x: torch.Tensor) -> object:
        x = x * 2
        y = self.dropout(x)
        y.add_(1)
        return y is x, y.grad_fn is None, x.sum(), y


@pytest.mark.parametrize(("dropped", "training"), [(0.5, False), (1, False), (0.0, True)])
def test_dropout_that_drops_nothing_gives_its_operand(dropped: float, training: bool) -> None:
    module = Halved(dropped).train(training)
    compiled = Compiled(module)
    for rows in (3, 5, 7):
        compiled.check(torch.ones(rows, 3))


def test_dropout_that_drops_nothing_keeps_its_operands_history() -> None:
    def function(x: torch.Tensor) -> object:
        y = torch.nn.functional.dropout(x, training=False)
        return y is x, y.grad_fn is None

    compiled = Compiled(function, fullgraph=False)
    for rows in (3, 5, 7):
        x = torch.ones(rows, 3, requires_grad=True) * 1
        with torch.no_grad():
            compiled.check(x)


def test_dropout_of_a_share_that_is_none_is_eagers_error() -> None:
    compiled = Compiled(lambda x, p: torch.nn.functional.dropout(x, p, False), fullgraph=False)
    for rows in (3, 5):
        for run in (compiled.compiled, compiled.function):
            with pytest.raises(ValueError, match="between 0 and 1"):
                run(torch.ones(rows, 3), 1.5)


def test_chunks_whose_number_and_length_vary():
    """As state-space models do: sizes are divided by a size, and by a number that varies."""

    def function(x, chunk):
        n, k = x.shape[0], chunk.shape[0]
        padded = torch.nn.functional.pad(x, (0, 0, 0, (k - n % k) % k))
        chunks = padded.reshape(padded.shape[0] // k, k, -1)
        if n // k > 2 and n % k == 0:
            return chunks.cumsum(1) * chunk[:, None]
        return chunks.sum(1) + n % k, n // k

    graphs = []

    def backend(graph_module, inputs):
        graphs.append(graph_module)
        return graph_module.forward

    compiled = compile_frames(function, backend)
    for n, k in (
        (5, 4),
        (8, 4),
        (12, 4),
        (12, 3),
        (13, 3),
        (24, 6),
        (7, 2),
        (64, 8),
        (9, 5),
        (30, 5),
        (2, 7),
    ):
        x, chunk = torch.randn(n, 2), torch.arange(float(k))
        found, wanted = compiled(x, chunk), function(x, chunk)
        torch.testing.assert_close(found, wanted)
    assert 2 <= len(graphs) <= 8


def test_ranges_as_subscripts_are_one_graph_for_all_sizes():
    def chosen(x, classes):
        n = x.size(0)
        y = x * 2
        y[range(n), classes] = 0.0
        return y, x[range(n), classes], x[range(n - 1, -1, -1)], x[range(1, n), None]

    compiled = Compiled(chosen)
    for n in (3, 4, 7):
        compiled.check(torch.randn(n, 4), torch.arange(n) % 4)
    assert compiled.count == 2
    with pytest.raises(IndexError):
        compiled.compiled(torch.randn(5, 4), torch.arange(4))
