"""Programs of many like kernels and many results, whose host program has tables and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_cpp import CppCodegen, CppProgram
from weft_codegen_cpp.host.step_tables import MIN_CALLS, Expression, Member, print_calls

SIZES = [(900, 7), (1,), (), (33,), (0,), (2, 1024), (64, 64), (5, 1, 3), (17,), (2, 0)]


def compiled(
    codegen: CppCodegen,
    function: Callable[..., object],
    inputs: Sequence[torch.Tensor],
    tracing_mode: str,
) -> CppProgram:
    graph = make_fx(function, tracing_mode=tracing_mode)(*inputs)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
    return codegen.compile(schedule, {})


def test_many_tensors_of_different_sizes(codegen: CppCodegen) -> None:
    """New tensors, inputs and one result twice, in the order that the function gives them."""

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = [torch.tanh(x) * 2 for x in tensors]
        second = [x.abs() + 1 for x in tensors]
        return (*first, tensors[3], *second[::-1], *tensors, first[0])

    inputs = [torch.randn(size) for size in SIZES * 4]
    program = compiled(codegen, function, inputs, "fake")
    assert "_of[] = {" in program.source
    assert "table0[] = {" in program.source
    for _ in range(2):
        results, wanted = program(*inputs), function(*inputs)
        assert len(results) == len(wanted)
        for result, want in zip(results, wanted, strict=True):
            torch.testing.assert_close(result, want)
        assert results[-1] is results[0]
        assert results[len(inputs)] is inputs[3]


def test_sizes_that_vary(codegen: CppCodegen) -> None:
    """What all structures share, a size and a number of it, is no column of the table."""

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.tanh(x) * (x.numel() ** 0.5) for x in tensors)

    def inputs(size: int) -> list[torch.Tensor]:
        return [torch.randn(size) for _ in range(MIN_CALLS)]

    program = compiled(codegen, function, inputs(5), "symbolic")
    assert "_of[] = {" in program.source
    for size in (2, 5, 1000):
        tensors = inputs(size)
        for result, want in zip(program(*tensors), function(*tensors), strict=True):
            torch.testing.assert_close(result, want)


@pytest.mark.parametrize("tracing_mode", ["fake", "symbolic"])
def test_results_in_turns(codegen: CppCodegen, tracing_mode: str) -> None:
    """As of gradients of layers: each form is one loop, whatever is between; views share memory still."""

    def function(*tensors: torch.Tensor) -> tuple[object, ...]:
        results: list[object] = []
        for x in tensors:
            whole = torch.tanh(x) * 2
            results += [whole, whole.view(-1), whole.t(), None, x, torch.sort(x, 0).values.t()]
        return (*results, results[0], results[1])

    def inputs(rows: int) -> list[torch.Tensor]:
        return [torch.randn(rows, 5) for _ in range(9)]

    program = compiled(codegen, function, inputs(3), tracing_mode)
    assert program.source.count(" slot; } table") >= 3
    for rows in (3, 3) if tracing_mode == "fake" else (3, 7):
        given = inputs(rows)
        results, wanted = program(*given), function(*given)
        assert len(results) == len(wanted)
        for result, want in zip(results, wanted, strict=True):
            if want is not None:
                torch.testing.assert_close(result, want, rtol=1e-5, atol=1e-5)
                assert result.stride() == want.stride()
        assert results[3] is None
        assert results[-2] is results[0]
        assert results[10] is given[1]
        storages = [r.untyped_storage().data_ptr() for r in results[6:9]]
        assert len({*storages}) == 1


def test_a_table_has_what_differs() -> None:
    rows = [[Member(f"buf{k}"), Member("s0"), k, "&c.index_error"] for k in range(MIN_CALLS)]
    made, filled = print_calls("kernel0", "calls0", rows, [f"kernel{k}" for k in range(MIN_CALLS)])
    assert "  decltype(Call::buf0) Call::*f0;" in made
    assert "    {&Call::buf3, 3},  // kernel3" in made
    (fill,) = filled
    assert (
        fill == "calls0[task] = {c.*calls0_of[task].f0, c.s0, calls0_of[task].f2, &c.index_error};"
    )


@pytest.mark.parametrize(
    "column",
    [
        ["c.buf0 + 1", *[Member("buf0")] * MIN_CALLS],  # an expression
        [4, *[Member("s0")] * MIN_CALLS],  # a number beside a symbol
        [Member(f"buf{k}") for k in range(MIN_CALLS - 1)],  # few rows
    ],
)
def test_what_has_no_table_is_statements(column: list[Expression]) -> None:
    names = [f"kernel{k}" for k in range(len(column))]
    made, filled = print_calls("kernel0", "calls0", [[one] for one in column], names)
    assert made[0] == "const kernel0_call calls0[] = {"
    assert [line.split("}")[0].strip(" {") for line in made[1:-1]] == list(map(str, column))
    assert filled == []
