"""Buffers whose sizes regions themselves read from data: they get memory when the size is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from weft_codegen_cpp import CppCodegen, CppOptions

hop = torch.ops.higher_order


def check(program: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """The native program of ``program``, and the reference evaluator, give its results."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = [mode.from_tensor(x) for x in inputs]
    graph = make_fx(program, tracing_mode="symbolic")(*fakes)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    weft_loop_ir.verify(schedule)
    wanted = program(*inputs)
    for run in (
        CppCodegen(CppOptions(poison_arena=True)).compile(schedule, {}),
        lambda *users: weft_loop_ir.evaluate(schedule, users, use_arena=True),
    ):
        for _ in range(2):
            for left, right in zip(run(*inputs), wanted, strict=True):
                torch.testing.assert_close(left, right)


def outer_sums(count: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """``row`` and a sum over as many rows and columns as ``count`` says, by calls and kernels."""
    n = count.item()
    torch._check(n >= 0)  # type: ignore[no-untyped-call]
    positions = torch.arange(n, dtype=row.dtype).cumsum(0)
    return row + torch.mm(positions[:, None], positions[None]).cumsum(1).flip(0).sum()


@pytest.mark.parametrize("sizes", [[4, 1, 0, 7, 7, 2], [0, 0], [33]])
def test_each_iteration_has_a_size_of_its_own(sizes: list[int]) -> None:
    def body(i: torch.Tensor, total: torch.Tensor, counts: torch.Tensor) -> Any:
        return i + 1, outer_sums(counts.index_select(0, i)[0], total)

    def program(i: torch.Tensor, total: torch.Tensor, counts: torch.Tensor) -> Any:
        return hop.while_loop(lambda i, t, c: (i < len(sizes)).all(), body, (i, total), (counts,))

    check(program, torch.tensor([0]), torch.rand(3).double(), torch.tensor(sizes))


@pytest.mark.parametrize("size", [0, 1, 5])
def test_rows_that_an_inner_loop_fills(size: int) -> None:
    """The first to write them is a region inside the one that reads their number."""

    def body(i: torch.Tensor, total: torch.Tensor, counts: torch.Tensor) -> Any:
        n = counts.index_select(0, i)[0].item()
        torch._check(n >= 0)  # type: ignore[no-untyped-call]
        rows = torch.empty((n, 3), dtype=total.dtype)

        def fill(k: torch.Tensor, rows: torch.Tensor, total: torch.Tensor) -> Any:
            return k + 1, rows.index_put((k,), total.cumsum(0) * k)

        _, filled = hop.while_loop(
            lambda k, rows, total: (k < rows.shape[0]).all(),
            fill,
            (torch.zeros(1, dtype=torch.int64), rows),
            (total,),
        )
        return i + 1, total + filled.sum(0)

    def program(i: torch.Tensor, total: torch.Tensor, counts: torch.Tensor) -> Any:
        return hop.while_loop(lambda i, t, c: (i < 4).all(), body, (i, total), (counts,))

    check(program, torch.tensor([0]), torch.rand(3).double(), torch.tensor([size, 2, 0, size]))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_only_the_side_taken_reads_its_size(sign: float) -> None:
    def program(count: torch.Tensor, row: torch.Tensor) -> Any:
        return hop.cond(
            row.sum() > 0,
            lambda count, row: (outer_sums(count, row),),
            lambda count, row: (outer_sums(count - 2, row) * 2,),
            (count, row),
        )

    check(program, torch.tensor(6), torch.rand(4).double() * sign)
