"""Numbers and positions that only the graph knows: values and types are Python's, writes eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, capture


def check(function: Callable[..., Any], x: torch.Tensor) -> Any:
    """Eager's results, effects and types of numbers, or its exception."""
    mine, theirs = x.clone(), x.clone()
    wanted: Any = None
    with torch.no_grad():
        try:
            wanted = function(theirs)
        except (IndexError, ZeroDivisionError, RuntimeError) as error:
            with pytest.raises(type(error)):
                capture(function)(mine)
            return None
        captured = capture(function)(mine)
    torch.testing.assert_close(captured.result, wanted, equal_nan=True)
    torch.testing.assert_close(mine, theirs, equal_nan=True)
    if isinstance(wanted, tuple):
        assert list(map(type, captured.result)) == list(map(type, wanted))
    return captured


def rows(seed: int = 3) -> torch.Tensor:
    return torch.randn(20, 4, generator=torch.Generator().manual_seed(seed)) * 0.9


def beside_tensors(x: torch.Tensor) -> Any:
    scale, count = 1.0, 1
    found = [x * 0, x + 0, x > 0, x / 2, 2 - x]
    for _ in range(16):
        scale = scale * 0.75 + 0.5
        count += 1
        found = [x * scale, count + x, x > scale, x / count, scale - x]
    return found, scale, count


def in_place(x: torch.Tensor) -> Any:
    y, scale = x.clone(), 1.0
    for i in range(16):
        y += scale
        y[i] = scale
        y[i] -= i
        scale = scale / 2 - i
    return y, scale


def flags(x: torch.Tensor) -> Any:
    seen, both = False, True
    for row in x:
        if row.sum() > 2:
            seen = True
        both = not seen
    return seen, both, x * 2 if seen else x + 1


@pytest.mark.parametrize("function", [beside_tensors, in_place, flags])
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bfloat16],
    ids=str,
)
def test_numbers_beside_tensors_of_each_type(
    function: Callable[..., Any], dtype: torch.dtype
) -> None:
    check(function, (rows() * 3).abs().to(dtype))


def grows_without_end(x: torch.Tensor) -> Any:
    n = 3
    while x.sum() < 1e30:
        x = x.abs() * 10 + 1
        n = n * n % 1000003
    return n


def divides_by_what_may_be_zero(x: torch.Tensor) -> Any:
    n, total = -3, 0.0
    for row in x:
        if row.sum() > -100:
            n += 1
        total = total + 1 / n
    return total


def keys_and_places(x: torch.Tensor) -> Any:
    n = 0
    for row in x:
        if row.sum() > 0:
            n += 1
    return {9: 1.0}.get(n, 2.0), [1, 2, 3][n % 3], x[:n] + 1, n


@pytest.mark.parametrize(
    "function", [grows_without_end, divides_by_what_may_be_zero, keys_and_places]
)
def test_what_no_tensor_computes_is_pythons(function: Callable[..., Any]) -> None:
    for seed in range(3):
        check(function, rows(seed))


def view_kept_after_a_write(x: torch.Tensor) -> Any:
    y = x * 2
    a = y[0]
    for _ in range(20):
        a = y[y[:, 0].argmax()]
    y[:] = 7
    return a + 0, y


def view_written_after_the_loop(x: torch.Tensor) -> Any:
    y = x * 2
    a = y[0]
    for _ in range(20):
        a = y[y[:, 0].argmax()]
    a.add_(100)
    return y


def view_written_in_the_loop(x: torch.Tensor) -> Any:
    y = x * 2
    for _ in range(20):
        v = y[y[:, 0].argmax()]
        v.mul_(0.5)
    return y


def swapped_without_a_copy(x: torch.Tensor) -> Any:
    y = x * 2
    for i in range(20):
        t = y[:, 0].argmax()
        v = y[t]
        y[t] = y[i] * 0.5
        y[i] = v
    return y


def view_carried_past_writes(x: torch.Tensor) -> Any:
    y = x * 2
    a = y[0]
    for i in range(20):
        y[i] = a * 0.5 + 1
        a = y[y[:, 0].argmax()]
    return y, a


def two_names_of_one_tensor(x: torch.Tensor) -> Any:
    y = x * 2
    h = y
    for _ in range(20):
        v = h[h[:, 0].argmax()]
        y.mul_(0.9)
        h = h + v
    return y, h


def view_of_one_side_written(x: torch.Tensor) -> Any:
    y = x * 2
    v = y[x[:, 0].argmax()] if x.sum() > 0 else y[0]
    v.add_(5)
    return y


def returned_view(x: torch.Tensor) -> Any:
    v = x[0]
    for _ in range(20):
        v = x[x[:, 0].argmax()]
    return v


def histogram(x: torch.Tensor) -> Any:
    out = torch.zeros(4)
    for i in range(20):
        out[(x[i, 0].abs() * 2).long()] += 1
    return out


def out_of_range(x: torch.Tensor) -> Any:
    out = torch.zeros(2)
    for i in range(20):
        out[(x[i, 0].abs() * 3).long()] += 1
    return out


def negative_positions(x: torch.Tensor) -> Any:
    y = x.clone()
    for i in range(20):
        y[(-x[i, 0].abs()).long() - 1, i % 4] += 1
    return y


@pytest.mark.parametrize(
    "function",
    [
        view_kept_after_a_write,
        view_written_after_the_loop,
        view_written_in_the_loop,
        swapped_without_a_copy,
        view_carried_past_writes,
        two_names_of_one_tensor,
        view_of_one_side_written,
        histogram,
        out_of_range,
        negative_positions,
    ],
)
def test_elements_at_positions_are_views(function: Callable[..., Any]) -> None:
    for seed in (3, 4):
        check(function, rows(seed))


def test_a_returned_element_is_a_view() -> None:
    x = rows()
    with torch.no_grad():
        result = capture(returned_view)(x).result
    assert result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def sum_of_rows(x: torch.Tensor, n: int) -> torch.Tensor:
    total, scale = torch.zeros(4), 1.0
    for i in range(n):
        total = total + x[0] * (scale + i)
        scale *= 0.5
    return total


def test_a_graph_is_no_larger_for_a_longer_loop() -> None:
    sizes = set()
    for length in (100, 1000, 100000):
        compiled = capture(sum_of_rows, backend=lambda graph, inputs: lambda *a: (a[0][0],))
        with torch.no_grad():
            (graph,) = compiled(rows(), length).graphs
        sizes.add(sum(len(m.graph.nodes) for m in graph.graph_module.modules()))
    assert len(sizes) == 1


@pytest.mark.parametrize(("threshold", "regions"), [(5, 1), (6, 0)])
def test_the_length_from_which_loops_are_kept(threshold: int, regions: int) -> None:
    options = CaptureOptions(rolled_loop_length=threshold)
    with torch.no_grad():
        found = capture(lambda x: sum_of_rows(x, 5), options=options)(rows())
    (graph,) = found.graphs
    names = [str(n.target) for n in graph.graph_module.graph.nodes]
    assert names.count("while_loop") == regions
