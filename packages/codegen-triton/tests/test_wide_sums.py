"""Products of blocks of rows that a matmul adds up in float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft_loop_ir
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.rewriting.wide_sums import sum_products_wide
from weft_loop_ir.ir import ExternCall
from weft_loop_ir.lowering.row_blocks import ROW_BLOCK

aten = torch.ops.aten
T = torch.Tensor
BLOCK, CUDA = 64, "cuda:0"


def added_up(a: T, b: T) -> T:
    """``a.t() @ b`` over blocks of rows, as a region in blocks writes it."""
    total = None
    for start in range(0, len(a), BLOCK):
        part = (a[start : start + BLOCK].t() @ b[start : start + BLOCK]).to(torch.float32)
        total = part if total is None else total + part
    assert total is not None
    return total.to(a.dtype)


def graph_of(
    function: Callable[..., T],
    a: tuple[int, ...],
    b: tuple[int, ...],
    device: str,
    dtype: torch.dtype,
    in_blocks: bool = True,
) -> torch.fx.GraphModule:
    """The graph of ``function`` of tensors of these sizes, all of it in blocks, after the pass."""
    inputs = [torch.zeros(size, dtype=dtype) for size in (a, b)]
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    for node in graph.graph.nodes:
        if isinstance(value := node.meta.get("val"), FakeTensor):
            with value.fake_mode:
                meta = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device="meta"
                )
            # fakes on a GPU that this torch may know nothing of
            node.meta["val"] = FakeTensor(value.fake_mode, meta, torch.device(device))
        if in_blocks and node.op == "call_function":
            node.meta[ROW_BLOCK] = "block"
    sum_products_wide(graph.graph)
    graph.graph.lint()
    return graph


def targets(graph: torch.fx.GraphModule) -> list[object]:
    return [n.target for n in graph.graph.nodes if "mm" in str(n.target)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_each_product_is_added_where_the_sum_lies(dtype: torch.dtype) -> None:
    graph = graph_of(added_up, (3 * BLOCK, 256), (3 * BLOCK, 128), CUDA, dtype)
    assert targets(graph) == [aten.mm.dtype, aten.addmm.dtype, aten.addmm.dtype]
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), TritonCodegen().schedule_options)
    calls = [step for step in schedule.steps if isinstance(step, ExternCall)]
    assert len({call.outputs for call in calls}) == 1
    assert [call.out_variant for call in calls[1:]] == [aten.addmm.dtype_out] * 2


def read_twice(a: T, b: T) -> T:
    first, second = ((t.t() @ b[:BLOCK]).to(torch.float32) for t in (a[:BLOCK], a[BLOCK:]))
    return first + second + second


@pytest.mark.parametrize(
    ("function", "columns", "device", "dtype"),
    [
        (added_up, 257, CUDA, torch.bfloat16),
        (added_up, 256, CUDA, torch.float32),
        (added_up, 256, "cpu", torch.bfloat16),
        (read_twice, 256, CUDA, torch.bfloat16),
    ],
)
def test_other_sums_are_left(
    function: Callable[..., T], columns: int, device: str, dtype: torch.dtype
) -> None:
    graph = graph_of(function, (2 * BLOCK, columns), (2 * BLOCK, 128), device, dtype)
    assert set(targets(graph)) <= {aten.mm.default, aten.mm.dtype, aten.addmm.dtype}
    if function is added_up:
        assert targets(graph) == [aten.mm.default] * 2
    else:
        assert aten.mm.default in targets(graph)


def test_sums_outside_of_blocks_are_rounded_as_they_are_written() -> None:
    sizes = (2 * BLOCK, 128)
    graph = graph_of(added_up, sizes, sizes, CUDA, torch.bfloat16, in_blocks=False)
    assert targets(graph) == [aten.mm.default] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_results_on_a_gpu(dtype: torch.dtype) -> None:
    a, b = (torch.randn(3 * BLOCK, n, device="cuda").to(dtype) for n in (256, 128))
    graph = graph_of(added_up, tuple(a.shape), tuple(b.shape), CUDA, dtype)
    codegen = TritonCodegen()
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
    program = codegen.compile(schedule, {})
    wanted = a.double().t() @ b.double()
    for _ in range(3):
        (result,) = program(a, b)
        assert (result.double() - wanted).norm() / wanted.norm() < torch.finfo(dtype).eps / 2
