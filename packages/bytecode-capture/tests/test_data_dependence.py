"""Numbers and sizes that depend on data: symbols of the graph, checked when it runs."""

from __future__ import annotations

import logging
import operator

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, DropDataDependence, capture, compile_frames

X = torch.tensor([1.5, -0.5, 2.0, float("nan"), -3.0, 0.0])
COUNTS = torch.tensor([2, 0, 3, 1, 1, 5])
CALLS = [(X, COUNTS), (-X.abs(), COUNTS * 0), (X.abs(), COUNTS * 0 + 1), (X[:0], COUNTS[:1])]


def outcome(function, arguments):
    """What a call gives, and its arguments after it; an exception is its type and text."""
    given = [a.clone() for a in arguments]
    try:
        return function(*given), given
    except Exception as error:
        return (type(error), str(error)), given


def assert_same(found, wanted):
    assert type(found) is type(wanted), (found, wanted)
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    elif isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for left, right in zip(found, wanted, strict=True):
            assert_same(left, right)
    else:
        assert found == wanted or (found != found and wanted != wanted)


def check(function, breaks=0, **options):
    """Compare a captured function with the function over several calls; how many graphs the first has."""
    captured = capture(function, options=CaptureOptions(read_contents=False, **options))
    first = captured(*(a.clone() for a in CALLS[0]))
    assert len(first.breaks) == breaks, [str(b) for b in first.breaks]
    for arguments in CALLS:
        assert_same(
            outcome(lambda *a: captured(*a).result, arguments), outcome(function, arguments)
        )
    return len(first.graphs)


def number_as_operand(x, counts):
    n = counts.sum().item()
    return x * n + n // 2, n * 2 + 1


def float_as_operand(x, counts):
    total = x.sum().item()
    return x * total, -total * 2.0 + 1, x + abs(total) / 4


def number_as_power(x, counts):
    n, total = counts[0].item(), x[0].item()
    return x**n, counts**n, x**total, total ** x.abs(), (n + 1) ** x


def number_as_size(x, counts):
    n = int(counts.max())
    return torch.zeros(n, 3), x[:n] + 1, x[n:].sum()


def number_kept(x, counts):
    first = counts[:1]
    n = first.max().item()
    first.add_(7)
    return {"n": n, "list": [n, n + 1]}, counts + 1


def element(x, counts):
    n = counts.max().item()
    return x[n], x[n] * 2


def several_numbers(x, counts):
    numbers = counts[:1].tolist()
    return sum(numbers) + 1, x + numbers[0]


def write_to_a_part(x, counts):
    x[: counts.max().item()] = 0.0
    return x.sum()


def masked(x, counts):
    part = x[x > 0]
    return part * 2, part.shape[0], len(part), part.numel() + 1, torch.masked_select(x, x < 0)


def positions(x, counts):
    found = torch.nonzero(x > 0).squeeze(1)
    return x[found] + 1, torch.where(x > 0), found.shape


def column_and_row(x, counts):
    """Dims of one element beside a size that data decides: their strides are a kernel's."""
    (found,) = torch.where(x > 0)
    column, row = x[found, None], x[None, found]
    return column * 2, row + 1, x.view(-1, 1)[found].abs(), column.stride(), row.shape


def repeated(x, counts):
    return torch.repeat_interleave(x[: counts.shape[0]], counts[: x.shape[0]])


def unique(x, counts):
    values, inverse = torch.unique(counts, return_inverse=True)
    return values[inverse] == counts, values.shape[0]


def looked_up(x, counts):
    """Functions that only read, though others of such names renormalise rows of what they are given."""
    rows, part = x.view(-1, 1), x[x > 0]
    found = torch.nn.functional.embedding_bag(counts[None] % 2, rows, mode="sum")
    same = torch.nn.functional.cosine_embedding_loss(found, found, torch.ones(1))
    return part * 2, found + torch.nn.functional.embedding(counts % 2, rows).sum(), same


def resized(x, counts):
    """Sizes that are elements of tensors, as rows and columns of a mask are counted."""
    image = x.view(1, 1, 1, -1)
    height, width = counts.max() + 1, counts.sum() + 1
    bigger = torch.nn.functional.interpolate(image, size=(height, width), mode="nearest")
    return bigger, torch.nn.functional.pad(bigger, (0, height, 0, 2))


ONE_GRAPH = [
    number_as_operand,
    float_as_operand,
    number_as_power,
    number_as_size,
    number_kept,
    element,
]
ONE_GRAPH += [several_numbers, write_to_a_part, masked, positions, column_and_row]
ONE_GRAPH += [repeated, unique, looked_up, resized]


@pytest.mark.parametrize("function", ONE_GRAPH, ids=lambda f: f.__name__)
def test_one_graph(function):
    if function is number_as_size and torch.__version__ < "2.13":
        pytest.skip("fake tensors give a part up to such a number a size of its own")
    assert check(function) == 1


@pytest.mark.parametrize(
    "compute",
    [
        lambda n: n * 0.5 * 0.5,
        lambda n: n / 2 * 3.5 + 1,
        lambda n: -(n * 0.5) - 1.5,
        lambda n: n * 0.0,
    ],
)
def test_several_float_operations_on_an_integer_of_data(compute):
    """SymPy would reorder the second: each gives a number of its own."""

    def function(x, counts):
        return x * compute(counts.max().item()), compute(counts.sum().item())

    assert check(function) == 1


def test_shares_of_counts_are_in_the_graph():
    def function(x, counts):
        most, every = counts.max().item(), counts.sum().item()
        return most / every, 100 * most / every, 1 - most / every, x * (most / (every + 1))

    assert check(function) == 1


def test_a_division_by_a_count_of_zero_raises_as_in_eager():
    compiled = capture(lambda x: x.sum().item() / (x > 1).sum().item())
    for x in (torch.tensor([1, 2]), torch.tensor([2, 3]), torch.tensor([0, 1]), torch.tensor([4])):
        if (x > 1).any():
            assert compiled(x).result == x.sum().item() / (x > 1).sum().item()
        else:
            with pytest.raises(ZeroDivisionError, match="division by zero"):
                compiled(x)


def test_few_counts_are_read_whatever_size_varies():
    """A list of as many elements as there are rows: the rows are counted, what is in them varies."""

    def function(x, mask):
        chosen = x[mask.view(-1)]
        return [part.sum() for part in chosen.split(mask.sum(1).tolist())], chosen * 2

    captured = capture(function)
    generator = torch.Generator().manual_seed(1)
    for rows, columns in ((2, 3), (3, 3), (4, 5), (3, 7), (4, 2)):
        mask = torch.rand(rows, columns, generator=generator) > 0.4
        x = torch.rand(rows * columns, generator=generator)
        result = captured(x, mask)
        assert not result.breaks
        torch.testing.assert_close(result.result, function(x, mask))


def test_checks_decide_branches():
    def function(x, counts):
        n = counts.max().item()
        torch._check(n >= 1)
        torch._check(n <= 6, lambda: f"{n} is too much")
        if n > 0 and n < 7:
            return x[:n] + n
        return x

    assert check(function) == 1


def test_strides_of_sizes_that_vary_and_that_data_decides():
    def function(x, counts):
        rows = torch.zeros(1, counts.max().item() + 1, x.shape[0])
        return rows * 2, rows.mT + 1

    assert check(function, dynamic=True) == 1


def test_checked_sizes_decide_branches():
    def function(x, counts):
        n = counts.max().item()
        torch._check_is_size(n)
        return torch.ones(n) if n > -1 else x

    with pytest.warns(FutureWarning, match="_check_is_size"):
        assert check(function) == 1


def test_an_undecided_branch_breaks_and_names_the_check():
    def function(x, counts):
        n = counts.max().item()
        return x + 1 if n * n > 9 else x - 1

    assert check(function, breaks=1) == 2
    (found,) = capture(function, options=CaptureOptions(read_contents=False))(X, COUNTS).breaks
    assert found.kind == "decision by a number that depends on data"
    assert any("torch._check" in hint for hint in found.hints)


@pytest.mark.parametrize("limit", [-3, 2, 2**61])
def test_a_branch_on_a_whole_number_that_is_read(limit):
    """It has 64 bits, whatever data are."""

    def function(x, counts):
        n = counts.max().item()
        return x + 1 if n > limit else x - 1

    def reflected(x, counts):
        return x + 1 if limit >= counts.sum().item() else x - 1

    for program in (function, reflected):
        assert check(program, breaks=0) == 1


def test_a_loop_over_an_undecided_number_gets_the_number():
    def function(x, counts):
        total = x + 1
        for k in range(counts.max().item()):
            total = total + k
        return total

    assert check(function, breaks=1) == 2


@pytest.mark.parametrize(
    "use",
    [
        lambda n: {n: 1},
        lambda n: [0] * int(n),
        lambda n: n**0.5 if n > 0 else n,
        lambda n: int(n),
    ],
    ids=["key", "repetition", "power", "int"],
)
def test_python_uses_of_a_float_break(use):
    def function(x, counts):
        n = counts.sum().float().item()
        return use(n), x + 1

    check(function, breaks=1)


def test_conditions_that_do_not_hold_run_the_frame_as_written():
    def function(x, counts):
        x.add_(1)
        n = counts.max().item()
        torch._check(n > 0, lambda: f"{n} is too little")
        return x * n

    assert check(function) == 1


def test_numbers_too_large_for_the_graph_run_the_frame_as_written():
    captured = capture(lambda t: t + t[0].item() * 3)
    captured(torch.tensor([1, 2]))
    large = torch.tensor([2**40, 1])
    result = captured(large)
    assert not result.reports
    assert torch.equal(result.result, large + 3 * 2**40)


def test_options_leave_numbers_and_sizes_to_python():
    assert check(number_as_operand, 1, data_dependent_scalars=False) == 2
    assert check(lambda x, counts: x[x > 0] + 1, 1, data_dependent_sizes=False) == 2


def test_a_backend_may_refuse():
    seen = []

    def backend(graph, inputs):
        seen.append([node.target for node in graph.graph.nodes])
        if "item" in seen[-1]:
            raise DropDataDependence("no numbers here")
        return graph.forward

    compiled = compile_frames(number_as_operand, backend)
    assert_same(compiled(X, COUNTS), number_as_operand(X, COUNTS))
    assert "item" in seen[0]
    assert all("item" not in targets for targets in seen[1:])


def test_bools_are_read_and_complex_numbers_stay_python():
    check(lambda x, counts: ((x > 0).any().item(), x + 1))
    check(lambda x, counts: (x.sum().to(torch.complex64).item(), x + 1), breaks=1)


def test_nothing_is_logged_for_decisions_that_only_data_makes(caplog):
    with caplog.at_level(logging.WARNING):
        check(lambda x, counts: x + 1 if counts.sum().item() ** 2 > 9 else x, breaks=1)
    assert not caplog.records


@pytest.mark.parametrize(
    "window",
    [
        lambda x, n: torch.as_strided(x, (1, n), (1, 1), 1),
        lambda x, n: x.unfold(0, n, 1),
        lambda x, n: torch.outer(x, x).diagonal(n),
    ],
)
def test_windows_that_data_places_break(window):
    """Nothing would keep a kernel within the tensor."""

    def function(x, counts):
        n = counts.max().item()
        return window(x, n), x[:n]

    found = capture(function, options=CaptureOptions(read_contents=False))(*CALLS[0])
    assert_same(found.result, function(*CALLS[0]))
    assert [b.kind for b in found.breaks] == ["number that depends on data"]


def subscripts(x, counts):
    n = counts.max().item()
    return x[0, n] + 1, x[n, None, 1:], x[..., 1, n]


def selects(x, counts):
    n = counts.max().item()
    return torch.select(x, 1, n) * 2, x.select(dim=0, index=n) + 1


@pytest.mark.parametrize("function", [subscripts, selects])
def test_positions_are_checked_in_their_own_dimension(function):
    captured = capture(function, options=CaptureOptions(read_contents=False))
    x = torch.arange(40.0).reshape(10, 4)
    for n in (1, 3, 2, 7, 0, 3, -1, 11, 4):
        arguments = x, torch.tensor([n])
        found = outcome(lambda *a: captured(*a).result, arguments)
        assert_same(found, outcome(function, arguments))
    first = capture(function, options=CaptureOptions(read_contents=False))(x, torch.tensor([2]))
    assert (len(first.graphs), first.breaks) == (1, ())


@pytest.mark.parametrize("read", [torch.Tensor.item, int, float, operator.index], ids=str)
@pytest.mark.parametrize("size", [(0,), (4,), (2, 2)])
def test_reading_several_small_integers_raises_as_in_eager(read, size):
    def function(x):
        try:
            return x + read(x * 2)
        except (RuntimeError, TypeError, ValueError) as error:
            return x + 1, type(error), str(error)

    x = torch.ones(size, dtype=torch.int64)
    compiled = compile_frames(function, lambda module, inputs: module)
    found, wanted = compiled(x), function(x)
    assert found[1:] == wanted[1:]
    assert torch.equal(found[0], wanted[0])


def test_a_quotient_whose_divisor_is_zero_for_small_sizes():
    def function(x, counts):
        rows = x[x > 0].shape[0]
        return x.new_zeros(rows // (x.shape[0] // 8)), counts

    captured = capture(function, options=CaptureOptions(dynamic=True))
    for size in (16, 24, 9):
        x = torch.arange(float(size)) - 3
        result = captured(x, COUNTS)
        assert result.result[0].shape == function(x, COUNTS)[0].shape
        assert not result.breaks
