"""What small tensors hold decides shapes and loops: a graph for each contents."""

import itertools

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, capture


def images(x, grid):
    parts = []
    for rows, columns in grid.tolist():
        parts.append(x[: rows * columns].reshape(rows, columns).T.flatten())
    return torch.cat(parts)


def lengths(x, grid):
    ends = grid.prod(-1).cumsum(0)
    first, *others = (ends - torch.nn.functional.pad(ends, (1, 0))[:-1]).tolist()
    return [part.sum() for part in torch.split(x[: int(ends[-1])], [first, *others])]


def largest(x, grid):
    return x[: max(grid[0, 0], grid[0, 1])] * 2


def positions(x, grid):
    result = torch.zeros(3)
    for k, (rows, columns) in enumerate(grid.tolist()):
        if rows > columns:
            result[k] = rows
    return result + x[:3]


def rows(x, grid):
    """An iterator over rows, a maximum of elements, and what they count."""
    iterators, start, parts = {1: iter(grid)}, 0, []
    for _ in range(2):
        row = next(iterators[1])
        parts.append(x[:3] + start)
        start += max(row[0], row[1]) // 2
    return torch.cat(parts), torch.tensor([row.max() + 1 - len(row) for row in grid])


def windows(x, grid):
    """Lengths of windows: equal ones next to each other are one."""
    ends = [0]
    for rows, columns in grid.tolist():
        padded = torch.nn.functional.pad(torch.ones(rows, columns), (0, columns % 2))
        ends.extend((padded.sum(-1).long().cumsum(0) + ends[-1]).tolist())
    unique = torch.unique_consecutive(torch.tensor(ends, dtype=torch.int32))
    lengths = unique[1:] - unique[:-1]
    return [part.sum() for part in torch.split(x[: ends[-1]], lengths.tolist())]


def parts(x, grid):
    """Parts as large as data says, and a decision by their sizes."""
    pieces = [x.view(4, 4)[:rows, :columns] for rows, columns in grid]
    if sum(piece.numel() for piece in pieces) > 7:
        return torch.cat([piece.flatten() for piece in pieces])
    return pieces[0] * 2


GRIDS = [[[2, 3], [3, 2]], [[1, 3], [2, 2]], [[4, 1], [1, 1]], [[2, 2], [2, 2]], [[3, 3], [1, 2]]]


@pytest.mark.parametrize("function", [images, lengths, largest, positions, rows, windows, parts])
@pytest.mark.parametrize("gradients", [False, True])
def test_as_eager_for_all_contents(function, gradients) -> None:
    captured = capture(function)
    x = torch.randn(16, requires_grad=gradients)
    for number, numbers in enumerate([*GRIDS, *GRIDS, [[2, 3], [3, 2], [1, 1]]]):
        grid = torch.tensor(numbers)
        result = captured(x, grid)
        torch.testing.assert_close(result.result, function(x, grid))
        if number < 3:
            assert len(result.breaks) == 0, result.breaks
            assert len(result.graphs) <= 1


def test_contents_that_always_change_are_not_compiled_for() -> None:
    captured = capture(images)
    x = torch.randn(64)
    reports = [len(captured(x, torch.tensor([[1, 2 + n]])).reports) for n in range(12)]
    assert sum(reports) < 10


def test_what_was_written_before_is_no_constant() -> None:
    def written(x, grid):
        grid.add_(1)
        return x[: grid.tolist()[0]], grid.sum()

    def by_a_view(x, grid):
        grid[:1].mul_(2)
        return x[: grid.tolist()[0]] + 1

    def by_data(x, grid):
        grid.data.add_(1)
        return x[: grid.tolist()[0]] + 1

    def by_another(x, grid, other):
        other.add_(1)
        return x[: grid.tolist()[0]] + 1

    def after(x, grid):
        n = grid.tolist()[0]
        grid.add_(1)
        return x[:n] + grid.sum()

    x = torch.randn(12)
    for function in (written, by_a_view, by_data, by_another, after):
        captured = capture(function)
        for start in (2, 2, 3):
            memory = [torch.tensor([start, 1]) for _ in range(2)]
            given = [[x, m, m[:]] if function is by_another else [x, m] for m in memory]
            wanted, found = function(*given[0]), captured(*given[1]).result
            torch.testing.assert_close(found, wanted)
            assert torch.equal(*memory)


def test_inference_tensors_are_right() -> None:
    captured = capture(images)
    with torch.inference_mode():
        for numbers in GRIDS[:3]:
            x, grid = torch.randn(12), torch.tensor(numbers)
            torch.testing.assert_close(captured(x, grid).result, images(x, grid))


def test_large_tensors_are_not_compared() -> None:
    def first(x, indices):
        return x[: indices.tolist()[0]]

    captured = capture(first)
    indices = torch.ones(1000, dtype=torch.long)
    for n in (1, 2, 3):
        indices[0] = n
        result = captured(torch.arange(5.0), indices)
        torch.testing.assert_close(result.result, torch.arange(5.0)[:n])
    assert "ContentsAre" not in str(result)


def test_a_boolean_of_contents_decides_in_each_layer() -> None:
    def layers(x, mask):
        some = (mask > 1).any().item()
        kept = []
        for _ in range(3):
            kept.append(x if some else None)
            x = x + 1
        return x, len(kept) if some else kept

    captured = capture(layers)
    for mask in (torch.ones(2, 3, dtype=torch.long), torch.full((2, 3), 2)):
        x = torch.randn(3)
        result = captured(x, mask)
        torch.testing.assert_close(result.result[0], layers(x, mask)[0])
        assert result.result[1] == layers(x, mask)[1]
        assert (len(result.graphs), len(result.breaks)) == (1, 0)


class Padded(torch.nn.Module):
    """Pads by what its buffers and the length say, as streaming convolutions do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stride", torch.tensor(2))
        self.register_buffer("total", torch.tensor(3))
        self.left = self.total // 2

    def forward(self, x):
        frames = torch.ceil((x.shape[-1] + self.total) / self.stride).long()
        extra = frames * self.stride - x.shape[-1]
        padded = torch.nn.functional.pad(x, (self.left, extra))
        return padded.unfold(-1, 2, 2).sum(-1)


def test_padding_by_what_buffers_hold() -> None:
    module = Padded()
    captured = capture(module)
    for number, length in enumerate((5, 8, 9, 5, 12)):
        if number == 3:
            module.total.add_(2)  # which the guards notice
        x = torch.randn(2, length)
        result = captured(x)
        torch.testing.assert_close(result.result, module(x))
        assert not result.breaks, result.breaks


@pytest.mark.parametrize("as_keyword", [False, True])
def test_padding_by_numbers_of_data(as_keyword) -> None:
    def function(x, mask):
        count = mask.sum()
        if as_keyword:
            return torch.nn.functional.pad(x, pad=[0, count, 1, 0], value=2.0) * 2
        return torch.nn.functional.pad(x, (count, 0)) * 2

    captured = capture(function, options=CaptureOptions(read_contents=False))
    for number, mask in enumerate(([1, 0, 1], [1, 1, 1], [0, 0, 1], [0, 0, 0])):
        x = torch.randn(2, 3)
        result = captured(x, torch.tensor(mask))
        torch.testing.assert_close(result.result, function(x, torch.tensor(mask)))
        assert not result.breaks and len(result.graphs) == (number == 0)


def written_rows(grid):
    for row in grid:
        row.data.view(-1).add_(2)
        if row.sum() > 0:
            break
    return grid * 1


def written_copy(grid):
    doubled = grid * 2
    doubled.data.add_(2)
    if doubled.sum() > 0:
        return doubled * 1
    return doubled - 1


@pytest.mark.parametrize("function", [written_rows, written_copy])
def test_what_was_written_by_its_data_is_no_constant(function) -> None:
    compiled = capture(function)
    for start in (-9, 5, -9, -1):
        given, expected = (torch.full((3, 2), start) for _ in range(2))
        assert torch.equal(compiled(given).result, function(expected))
        assert torch.equal(given, expected)


def test_sizes_are_not_relied_on_where_no_value_is_found() -> None:
    """What a mask of an input gives depends on weights too: nothing of it is known."""

    def function(weights, ids):
        scores = weights[ids].cumsum(0)
        if scores.argmax().item() == 0:
            return scores * 2
        return scores - 1

    weights = torch.rand(9) + 1
    compiled = capture(function)
    graphs = []
    for length in (3, 5, 4, 7, 6):
        ids = torch.arange(length)
        result = compiled(weights, ids)
        assert torch.equal(result.result, function(weights, ids))
        graphs.append(len(result.graphs))
    assert graphs[2:] == [0, 0, 0]


def axes_made_by_arange(x):
    return torch.sum(x, dim=torch.arange(2, len(x.shape)).tolist())


def count_made_of_constants(x):
    count = torch.tensor([2, 3]).prod().item()
    return x.flatten()[:count] * torch.ones(count)


@pytest.mark.parametrize("function", [axes_made_by_arange, count_made_of_constants])
def test_what_the_frame_makes_of_constants_is_known(function) -> None:
    """Also where no input holds small integers, and behind no break."""
    captured = capture(function, options=CaptureOptions(fullgraph=True))
    for batch in (2, 3, 4):
        x = torch.randn(batch, 3, 4, 5)
        found = captured(x)
        torch.testing.assert_close(found.result, function(x))


# Points in time: floats in order.


def solved(x, times):
    """As solvers with a fixed grid have it: where a point to give lies behind a step is asked in each."""
    grid = torch.linspace(0, 1, 7, dtype=times.dtype) * (times[-1] - times[0]) + times[0]
    result = torch.empty(len(times), *x.shape)
    result[0], k = x, 1
    for start, end in itertools.pairwise(grid):
        following = x - (end - start) * x
        while k < len(times) and end >= times[k]:
            share = (times[k] - start) / (end - start)
            result[k] = x + share * (following - x)
            k += 1
        x = following
    return result


def solved_among_constants(x, times):
    return solved(x, torch.linspace(0, 1, 4)) + times[0]


TIMES = [torch.linspace(0, 1, 4), torch.tensor([0.0, 0.3, 0.35, 2.0]), torch.tensor([-0.0, 1.0])]


@pytest.mark.parametrize("program", [solved, solved_among_constants])
def test_floats_in_order_are_known(program):
    captured = capture(program)
    x = torch.arange(4.0)
    first = captured(x, TIMES[0])
    assert (len(first.graphs), len(first.breaks)) == (1, 0)
    for times in [*TIMES, TIMES[0]]:
        torch.testing.assert_close(captured(x, times).result, program(x, times))


def test_gradients_behind_floats_in_order():
    weight = torch.ones(4, requires_grad=True)

    def step(x, times):
        weight.grad = None
        solved(x * weight, times).square().sum().backward()
        return weight.grad

    captured = capture(step)
    first = captured(torch.arange(4.0), TIMES[0])
    assert (len(first.graphs), len(first.breaks)) == (1, 0)
    for times in TIMES:
        found = captured(torch.arange(4.0), times).result.clone()
        torch.testing.assert_close(found, step(torch.arange(4.0), times))


def signed(x, times):
    """What is computed of a zero may tell its sign."""
    if 1 / times[0] > 0:
        raise ValueError(f"{len(times)} points begin with a positive zero")
    return x + 1


def test_a_zero_of_the_other_sign_is_another():
    captured = capture(signed)
    for first in (-0.0, 0.0, -0.0, 0.0):
        times = torch.tensor([first, 1.0, 2.0])
        outcomes = []
        for function in (signed, lambda x, times: captured(x, times).result):
            try:
                outcomes.append(str(function(torch.ones(2), times)))
            except ValueError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("times", [torch.tensor([2.0, 1.0, 3.0]), torch.tensor([[0.0, 1.0]])])
def test_other_floats_are_no_constants(times):
    def counted(x, times):
        return x[: int((times > 1).sum().item() > 1)] * 2 if times.max().item() > 1 else x

    captured = capture(counted)
    for shift in range(6):
        moved = times + shift
        torch.testing.assert_close(
            captured(torch.ones(3), moved).result, counted(torch.ones(3), moved)
        )
