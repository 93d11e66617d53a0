"""Sums of 16 bits at indexed places of large tables: gradients of embeddings, beside eager in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compiled_beside_eager import schedule_of
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.rewriting import sparse_sums
from weft_codegen_triton.rewriting.sparse_sums import sum_sparse_rows

aten = torch.ops.aten
T = torch.Tensor
Function = Callable[[T, T], T]
ROWS = 700


@pytest.fixture(autouse=True)
def of_small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_sums, "MORE_LAUNCHES", 0)


def put(values: T, places: T, *columns: int, dtype: torch.dtype = torch.float32) -> T:
    table = values.new_zeros(ROWS, *columns, dtype=dtype)
    return aten.index_put(table, [places], values.to(dtype), True)  # type: ignore[no-any-return]


def rows(values: T, places: T) -> T:
    return put(values, places, values.shape[-1]).to(values.dtype)


def broadcast(values: T, places: T) -> T:
    return put(values[:1, :1], places, 3, 5).to(values.dtype)


def numbers(values: T, places: T) -> T:
    return put(values[..., 0], places).to(values.dtype)


def used_later(values: T, places: T) -> T:
    return put(values * 2, places, values.shape[-1]).to(values.dtype).relu() + 1


def rewritten(function: Function, *inputs: T) -> bool:
    """Whether the pass finds the sums of ``function``; its graph gives what it gave."""
    with torch.no_grad():
        graph = make_fx(function, tracing_mode="fake")(*inputs)
    before = len(graph.graph.nodes)
    sum_sparse_rows(graph.graph, REFERENCE)
    graph.graph.lint()
    graph.recompile()
    torch.testing.assert_close(graph(*inputs), function(*inputs), rtol=1e-2, atol=1e-2)
    return len(graph.graph.nodes) != before


def inputs(dtype: torch.dtype, *positions: int, within: int = ROWS) -> tuple[T, T]:
    """Values, and places of which some are counted from the end and many are the same."""
    places = torch.randint(-within, within, positions)
    return torch.randn(*positions, 5).to(dtype), places


@pytest.mark.parametrize("within", [3, ROWS])
@pytest.mark.parametrize("positions", [(1,), (90,), (4, 33)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("function", [rows, broadcast, numbers, used_later])
def test_beside_float64(
    codegen: TritonCodegen,
    function: Function,
    dtype: torch.dtype,
    positions: tuple[int, ...],
    within: int,
) -> None:
    values, places = inputs(dtype, *positions, within=within)
    if function is broadcast:
        places = places.flatten()
    assert rewritten(function, values, places)
    program = codegen.compile(schedule_of(function, (values, places), codegen), {})
    assert program.extern_count == 0
    assert program.kernel_count > 1
    (result,) = program(values, places)
    table = values.double().new_zeros(ROWS, *result.shape[1:])
    given = {rows: values, used_later: values * 2, numbers: values[..., 0]}.get(function)
    given = values[:1, :1].expand(len(places), 3, 5) if given is None else given
    exact = table.index_put((places,), given.double(), accumulate=True)
    if function is used_later:
        exact = exact.to(dtype).double().relu() + 1
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(result.double(), exact, rtol=tolerance, atol=tolerance / 4)


def test_gradients_of_an_embedding(codegen: TritonCodegen) -> None:
    """Decomposed as in training: in float32, without the gradient of a row that is padding."""

    def gradient(values: T, places: T) -> T:
        valid = (places != 7)[:, None]
        wide = torch.where(valid, values.float(), 0.0)
        return put(wide, places, 5).to(values.dtype)

    values, places = inputs(torch.bfloat16, 200)
    places = places.abs().clamp(max=ROWS - 1)
    places[::5] = 7
    assert rewritten(gradient, values, places)
    (result,) = codegen.compile(schedule_of(gradient, (values, places), codegen), {})(
        values, places
    )
    exact = aten.embedding_dense_backward(values.double(), places, ROWS, 7, False)
    torch.testing.assert_close(result.double(), exact, rtol=2e-2, atol=2e-3)


def in_float32(values: T, places: T) -> T:
    return put(values, places, 5)


def onto_others(values: T, places: T) -> T:
    table = torch.ones(ROWS, 5, device=values.device)
    wide: T = aten.index_put(table, [places], values.float(), True)
    return wide.to(values.dtype)


def read_twice(values: T, places: T) -> T:
    wide = put(values, places, 5)
    return wide.to(values.dtype) * wide.sum().to(values.dtype)


def last_wins(values: T, places: T) -> T:
    table = torch.zeros(ROWS, 5, device=values.device)
    wide: T = aten.index_put(table, [places], values.float())
    return wide.to(values.dtype)


def along_two(values: T, places: T) -> T:
    wide: T = aten.index_put(torch.zeros(ROWS, 5), [places, places % 5], values[:, 0].float(), True)
    return wide.to(values.dtype)


@pytest.mark.parametrize("function", [in_float32, onto_others, read_twice, last_wins, along_two])
def test_other_sums_are_left(function: Function) -> None:
    places = torch.arange(90)  # once each, since one wins where nothing is added
    assert not rewritten(function, torch.randn(90, 5).bfloat16(), places)


def test_as_many_positions_as_rows_are_left() -> None:
    assert not rewritten(rows, *inputs(torch.bfloat16, ROWS + 1))


def test_an_order_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert not rewritten(rows, *inputs(torch.bfloat16, 90))


@pytest.mark.gpu
@pytest.mark.parametrize("positions", [8192, 100])
def test_on_a_gpu(positions: int) -> None:
    values, places = torch.randn(positions, 256).bfloat16(), torch.randint(0, 99, (positions,))
    places *= 1000

    def gradient(values: T, places: T) -> T:
        table = values.new_zeros(99000, 256, dtype=torch.float32)
        wide: T = aten.index_put(table, [places], values.float(), True)
        return wide.to(values.dtype)

    given = values.cuda(), places.cuda()
    codegen = TritonCodegen()
    program = codegen.compile(schedule_of(gradient, given, codegen), {})
    exact = aten.embedding_dense_backward(values.double(), places, 99000, -1, False)
    for _ in range(3):
        (result,) = program(*given)
        torch.testing.assert_close(result.cpu().double(), exact, rtol=2e-2, atol=2e-2)
