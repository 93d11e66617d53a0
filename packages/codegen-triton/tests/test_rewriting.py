"""Graphs rewritten for a GPU's libraries: equal to eager, strides included, with what was wanted in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import weft_loop_ir
from compiled_beside_eager import assert_equals_eager
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.rewriting import aligned_matmuls
from weft_loop_ir import ExternCall, Schedule

H = torch.float16


def randn(*size: int) -> torch.Tensor:
    return (torch.randn(size) / 4).to(H)


def rewritten(
    codegen: TritonCodegen, function: Callable[..., Any], *inputs: torch.Tensor
) -> Schedule:
    """The schedule of ``function`` after rewriting; compiles it and compares it with eager."""
    schedule = schedule_after_rewriting(codegen, function, *inputs)
    assert_equals_eager(codegen.compile(schedule, {})(*inputs), function, inputs)
    return schedule


def schedule_after_rewriting(
    codegen: TritonCodegen, function: Callable[..., Any], *inputs: torch.Tensor
) -> Schedule:
    with torch.no_grad():
        graph = make_fx(function, tracing_mode="fake")(*inputs)
    codegen.rewrite(graph)
    return weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)


def externs(schedule: Schedule, name: str) -> list[ExternCall]:
    return [s for s in schedule.steps if isinstance(s, ExternCall) and name in str(s.operator)]


@pytest.mark.parametrize("bias", [None, (1031,), (1,), (512, 1031), (512, 1)], ids=str)
def test_an_odd_matmul_is_cut(codegen: TritonCodegen, bias: tuple[int, ...] | None) -> None:
    a, weight = randn(512, 512), randn(1031, 512)
    if bias is None:
        schedule = rewritten(codegen, lambda a, w: (a @ w.t()).relu(), a, weight)
    else:
        schedule = rewritten(
            codegen, lambda c, a, w: torch.addmm(c, a, w.t(), alpha=2), randn(*bias), a, weight
        )
    calls = externs(schedule, "mm")
    assert [call.arguments[-1].size[1] for call in calls] == [1024, 7]
    assert all(call.arguments[-1].buffer in schedule.inputs for call in calls)  # not copied


@pytest.mark.parametrize("has_bias", [False, True])
def test_parts_of_a_large_odd_matmul_are_one_after_the_other(
    codegen: TritonCodegen, has_bias: bool
) -> None:
    gpu = replace(REFERENCE, l2_bytes=(1 << 19) * 4 // 5)
    codegen = TritonCodegen(replace(codegen.options, gpu=gpu))
    a, weight, bias = randn(512, 512), randn(1800, 512)[:1799], randn(1799)
    schedule = rewritten(
        codegen, lambda c, a, w: F.linear(a, w, c if has_bias else None), bias, a, weight
    )
    calls = externs(schedule, "mm")
    assert [call.arguments[-1].size[1] for call in calls] == [768, 768, 256, 7]
    held = [
        name for name in schedule.memory.offsets if schedule.buffers[name].layout.size[0] == 512
    ]
    assert len(held) == 4 and schedule.memory.arena_bytes == 768 * 512 * 2


@pytest.mark.parametrize(
    "inputs",
    [
        (randn(8, 16), randn(1031, 16)),
        (randn(512, 512), randn(1032, 512)),
        (randn(512, 511), randn(104, 511)),
    ],
    ids=["small", "aligned", "odd rows, few columns"],
)
def test_other_matmuls_stay(codegen: TritonCodegen, inputs: tuple[torch.Tensor, ...]) -> None:
    assert len(externs(rewritten(codegen, lambda a, w: a @ w.t(), *inputs), "mm")) == 1


@pytest.mark.parametrize("has_bias", [False, True])
def test_odd_rows_are_padded(codegen: TritonCodegen, has_bias: bool) -> None:
    a, weight, bias = randn(1024, 1021), randn(1032, 1021), randn(1032)
    schedule = rewritten(
        codegen, lambda c, a, w: F.linear(a, w, c if has_bias else None), bias, a, weight
    )
    (call,) = externs(schedule, "mm")
    assert [view.size[1] for view in call.arguments[-2:]] == [1024, 1032]
    assert [max(view.stride) for view in call.arguments[-2:]] == [1024, 1024]


def test_what_is_padded_depends_on_the_gpu(codegen: TritonCodegen) -> None:
    """Where memory is slow for the arithmetic, copies take longer than they save."""
    gpu = replace(REFERENCE, bandwidth=REFERENCE.bandwidth / 50)
    slow = TritonCodegen(replace(codegen.options, gpu=gpu))
    for made, extent in ((codegen, 1024), (slow, 1021)):
        schedule = rewritten(made, F.linear, randn(1024, 1021), randn(1032, 1021))
        (call,) = externs(schedule, "mm")
        assert call.arguments[-1].size[0] == extent


def test_gradients_of_odd_columns_are_padded_once(
    codegen: TritonCodegen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aligned_matmuls, "_saved", lambda *_: 1e9)

    def gradients(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return g @ w, g.t() @ x

    schedule = rewritten(codegen, gradients, randn(64, 67), randn(64, 32), randn(67, 32))
    first, second = externs(schedule, "mm")
    assert first.arguments[-2].buffer == second.arguments[-2].buffer
    assert [max(call.arguments[-2].size) for call in (first, second)] == [72, 72]


LAYOUTS: dict[str, Callable[[int, int], torch.Tensor]] = {
    "rows": randn,
    "columns": lambda m, n: randn(n, m).t(),
    "parts of rows": lambda m, n: randn(m, n + 3)[:, :n],
    "every second": lambda m, n: randn(m, 2 * n)[:, ::2],
}


@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
def test_any_extent_that_is_odd_is_padded(
    codegen: TritonCodegen, monkeypatch: pytest.MonkeyPatch, left: str, right: str
) -> None:
    monkeypatch.setattr(aligned_matmuls, "_saved", lambda *_: 1e9)
    for m, k, n in ((19, 33, 22), (16, 33, 16), (19, 24, 16)):
        a, b = LAYOUTS[left](m, k), LAYOUTS[right](k, n)
        bias = [None, randn(n), randn(1), randn(m, n), randn(m, 1), randn(1, n)][(m + k + n) % 6]

        def product(a: torch.Tensor, b: torch.Tensor, *c: torch.Tensor) -> torch.Tensor:
            return torch.addmm(*c, a, b, beta=0.5) if c else a @ b

        schedule = rewritten(codegen, product, a, b, *[] if bias is None else [bias])
        (call,) = externs(schedule, "mm")
        if "every second" not in (left, right):
            sizes = [call.arguments[k].size[d] for k, d in ((-2, 0), (-2, 1), (-1, 1))]
            is_odd_row = left == "columns" or m % 8 == 0
            is_odd_inner = left != "columns" or right == "columns" or k % 8 == 0
            expected = [m if not is_odd_row else -(-m // 8) * 8]
            expected += [k if not is_odd_inner else -(-k // 8) * 8, -(-n // 8) * 8]
            assert sizes == expected


def test_rows_of_a_number_that_varies_are_padded(
    codegen: TritonCodegen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aligned_matmuls, "_saved", lambda *_: 1e9)

    def products(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = (x[:, None] * torch.arange(67) / 67).to(H)
        weight = torch.linspace(-1, 1, 67 * 35).view(67, 35).to(H)
        return rows @ weight, rows.t() @ (rows @ weight), rows @ rows.t()

    with torch.no_grad():
        graph = make_fx(products, tracing_mode="symbolic")(torch.rand(24))
    codegen.rewrite(graph)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
    assert {call.arguments[-2].size[1] for call in externs(schedule, "mm")[:1]} == {72}
    program = codegen.compile(schedule, {})
    for count in (24, 33, 5):
        x = torch.rand(count)
        assert_equals_eager(program(x), products, (x,))


@pytest.mark.parametrize(("pixels", "is_folded"), [(196, True), (195, True), (200, False)])
def test_batches_of_pixels_that_begin_anywhere_are_folded(
    codegen: TritonCodegen, pixels: int, is_folded: bool
) -> None:
    """What computes them stores them row by row: the kernels stay two."""

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.bmm(x.transpose(1, 2) * 2, w.t().expand(len(x), -1, -1)).relu(),)

    inputs = randn(64, 384, pixels), randn(512, 384)
    schedule = schedule_after_rewriting(codegen, function, *inputs)
    assert [bool(externs(schedule, f"aten.{name}.")) for name in ("mm", "bmm")] == [
        is_folded,
        not is_folded,
    ]
    assert len(schedule.steps) == 3
    slow = TritonCodegen(replace(codegen.options, gpu=replace(REFERENCE, half_rate=1e3)))
    assert is_folded == bool(externs(rewritten(slow, function, *small_of(inputs)), "aten.mm."))


def small_of(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    x, w = inputs
    return x[:3, :32].contiguous(), w[:40, :32].contiguous()


def frozen(
    codegen: TritonCodegen,
    function: Callable[..., Any],
    weights: list[torch.Tensor],
    x: torch.Tensor,
) -> Schedule:
    """The schedule of ``function(*weights, x)`` with constant weights; compares it with eager."""
    with torch.no_grad():
        graph = make_fx(lambda *v: function(*v), tracing_mode="fake")(*weights, x)
    graph = weft_loop_ir.freeze(graph, dict(enumerate(weights)), codegen.rewrite_frozen)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
    program = codegen.compile(schedule, {})
    assert_equals_eager(program(*weights, x), function, (*weights, x))
    return schedule


def test_frozen_convolutions_take_their_batch_norm_and_lie_channels_last(
    codegen: TritonCodegen,
) -> None:
    def function(*values: torch.Tensor) -> tuple[torch.Tensor]:
        w, first, mean, variance, scale, shift, x = values
        y = F.conv2d(x, w, first, padding=1)
        norm = torch.ops.aten._native_batch_norm_legit_no_training
        return (norm(y, scale, shift, mean, variance, 0.1, 1e-3)[0].relu(),)

    weights = [randn(8, 4, 3, 3), randn(8), randn(8), randn(8).abs() + 0.5, randn(8), randn(8)]
    schedule = frozen(codegen, function, weights, randn(2, 4, 6, 6))
    (call,) = externs(schedule, "convolution")
    assert call.arguments[1].stride[1] == 1 and call.arguments[2] is None
    assert call.arguments[1].buffer in schedule.constants  # folded, and turned, once
    assert sum(isinstance(step, weft_loop_ir.Kernel) for step in schedule.steps) <= 2


def test_frozen_projections_are_one_matmul(codegen: TritonCodegen) -> None:
    def function(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *weights, x = values
        q, k, v = (F.linear(x, w).view(2, 6, -1, 8).transpose(1, 2) for w in weights)
        return (F.scaled_dot_product_attention(q, k, v),)

    weights = [randn(32, 16) for _ in range(3)]
    schedule = frozen(codegen, function, weights, randn(12, 16))
    (call,) = externs(schedule, "mm")
    assert call.arguments[1].size[1] == 96 and call.arguments[1].buffer in schedule.constants


def test_frozen_odd_rows_are_padded_once(codegen: TritonCodegen) -> None:
    schedule = frozen(codegen, lambda w, x: (x @ w.t(),), [randn(1032, 1021)], randn(1024, 1021))
    (call,) = externs(schedule, "mm")
    assert call.arguments[1].buffer in schedule.constants
    assert call.arguments[1].size[0] == 1024


def network(x: torch.Tensor, *w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Convolutions, normalisations, pooling, a shortcut, views and results of several layouts."""
    y = F.conv2d(x, w[0], w[1], padding=1)
    y = F.batch_norm(y, w[2].float(), w[2].float().exp(), w[1].float(), w[2].float())
    z = F.silu(F.group_norm(y, 4, w[1], w[2]))
    z = F.max_pool2d(F.conv2d(z, w[3], w[1], padding=1) + y, 2)
    pooled = z.mean((2, 3))
    flat = z.flatten(1) @ torch.ones_like(z.flatten(1)).t()
    up = F.interpolate(z, scale_factor=2.0, mode="bilinear")
    return torch.cat([up, y], 1), pooled, flat, z, y.relu().permute(1, 0, 2, 3).reshape(8, -1)


WEIGHTS = ((8, 4, 3, 3), (8,), (8,), (8, 8, 3, 3))


def test_convolutions_lie_channels_last(codegen: TritonCodegen) -> None:
    inputs = [randn(2, 4, 8, 8), *(randn(*size) for size in WEIGHTS)]
    schedule = rewritten(codegen, network, *inputs)
    calls = externs(schedule, "convolution")
    assert len(calls) == 2
    for call in calls:
        assert call.arguments[2] is None  # the bias is added by a kernel
        for view in call.arguments[:2]:
            assert view.stride[1] == 1
        assert schedule.buffers[str(call.outputs[0])].layout.stride[1] == 1


def test_inputs_that_lie_channels_last_are_read_so(codegen: TritonCodegen) -> None:
    x, w = randn(2, 4, 8, 8).to(memory_format=torch.channels_last), randn(8, 4, 3, 3)
    schedule = rewritten(codegen, lambda x, w: F.conv2d(x, w).relu(), x, w)
    assert externs(schedule, "convolution")[0].arguments[0].buffer == schedule.inputs[0]


def test_depthwise_convolutions_follow(codegen: TritonCodegen) -> None:
    inputs = randn(2, 4, 8, 8), randn(8, 4, 1, 1), randn(8, 1, 3, 3)
    schedule = rewritten(
        codegen, lambda x, a, b: F.conv2d(F.conv2d(x, a).relu(), b, padding=1, groups=8), *inputs
    )
    assert all(c.arguments[0].stride[1] == 1 for c in externs(schedule, "convolution"))


def test_depthwise_convolutions_alone_lie_channels_last(codegen: TritonCodegen) -> None:
    inputs = randn(2, 8, 8, 8), randn(8, 1, 3, 3)
    schedule = rewritten(codegen, lambda x, a: F.conv2d(x.relu(), a, groups=8).tanh(), *inputs)
    assert all(c.arguments[0].stride[1] == 1 for c in externs(schedule, "convolution"))


@pytest.mark.parametrize(("kernel", "stays"), [((33, 1), True), ((1, 18), True), ((1, 11), False)])
def test_long_bands_of_each_channel_stay(
    codegen: TritonCodegen, kernel: tuple[int, int], stays: bool
) -> None:
    """As attention's values are convolved along tokens."""
    inputs = randn(2, 8, 40, 24), randn(8, 1, *kernel)
    schedule = rewritten(codegen, lambda x, w: F.conv2d(x.relu(), w, groups=8).tanh(), *inputs)
    (call,) = externs(schedule, "convolution")
    assert (call.arguments[0].stride[1] != 1) == stays


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_convolutions_stay(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    x, w = torch.randn(2, 4, 8, 8, dtype=dtype), torch.randn(8, 4, 3, 3, dtype=dtype)
    schedule = rewritten(codegen, F.conv2d, x, w)
    assert externs(schedule, "convolution")[0].arguments[0].stride[1] != 1


def test_gradients_lie_channels_last(codegen: TritonCodegen) -> None:
    def step(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.conv2d(x, w, padding=1)
        gradient = torch.ops.aten.threshold_backward(g, y, 0)
        x_grad, w_grad, b_grad = torch.ops.aten.convolution_backward(
            gradient, x, w, [8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]
        )
        return y.relu(), x_grad, w_grad, b_grad

    schedule = rewritten(codegen, step, randn(2, 4, 8, 8), randn(8, 4, 3, 3), randn(2, 8, 8, 8))
    (call,) = externs(schedule, "convolution_backward")
    assert all(view.stride[1] == 1 for view in call.arguments[:3])


def mixed(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * scale + torch.ops.aten.scalar_tensor(2.5, dtype=torch.float64) * scale


def on_meta(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The graph of ``function`` for tensors that have no memory, but devices."""
    with FakeTensorMode():
        fakes = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in inputs]
    return make_fx(function, tracing_mode="fake")(*fakes)


def test_scalars_on_the_cpu_are_moved(codegen: TritonCodegen) -> None:
    graph = on_meta(mixed, torch.empty(3, device="meta"), torch.tensor(2.0))
    codegen.rewrite(graph)
    values = [n.meta["val"] for n in graph.graph.nodes if n.op != "output"]
    assert {v.device.type for v in values} == {"meta"}
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
    assert {b.layout.device.type for b in schedule.buffers.values()} == {"meta"}


def devices(graph: torch.fx.GraphModule) -> list[str]:
    return [n.meta["val"].device.type for n in graph.graph.nodes if n.op != "output"]


def test_a_few_that_are_returned_are_copied_back(codegen: TritonCodegen) -> None:
    x, scale = torch.empty(3, device="meta"), torch.tensor(1)
    graph = on_meta(lambda x, scale: (x * 2, scale + 1), x, scale)
    codegen.rewrite(graph)
    assert devices(graph) == ["meta", "meta", "meta", "meta", "cpu"]


def test_other_tensors_on_the_cpu_stay(codegen: TritonCodegen) -> None:
    def counters(x: torch.Tensor, scale: torch.Tensor) -> Any:
        return (x * 2, *(scale + k for k in range(9)))

    x = torch.empty(3, device="meta")
    for function, inputs in (
        (mixed, (torch.empty(3), torch.ones(3))),
        (counters, (x, torch.tensor(1))),
    ):
        graph = on_meta(function, *inputs)
        before = devices(graph)
        codegen.rewrite(graph)
        assert devices(graph) == before


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.bool], ids=str)
def test_sums_at_places_of_few_bits(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    limit = 1 if dtype is torch.bool else torch.iinfo(dtype).max
    target = torch.randint(0, limit + 1, (4, 3)).to(dtype)
    source = torch.randint(0, limit + 1, (6, 3)).to(dtype)
    index = torch.randint(0, 4, (6, 3))

    def sums(t: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        put = torch.ops.aten.index_put(t, [i[:, 0]], s, True)
        set_ = torch.ops.aten.index_put(t.clone(), [torch.tensor([1, 0])], s[:2])
        return t.scatter_add(0, i, s), put, set_

    schedule = rewritten(codegen, sums, target, index, source)
    assert not schedule.fallbacks
    if dtype is not torch.bool:
        rewritten(codegen, lambda t, i, s: t.index_add(0, i[:, 0], s), target, index, source)


SUMS_AT_PLACES: dict[str, Callable[..., torch.Tensor]] = {
    "index_add": lambda x, i, s: x.index_add(0, i, s),
    "index_put": lambda x, i, s: torch.ops.aten.index_put(x, [i], s, True),
    "scatter_add": lambda x, i, s: x.scatter_add(0, i[:, None].expand_as(s), s),
}


def places(rows: int, count: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return randn(rows, 8).to(dtype), torch.randint(0, rows, (count,)), randn(count, 8).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SUMS_AT_PLACES)
def test_sums_at_places_of_16_bits(codegen: TritonCodegen, name: str, dtype: torch.dtype) -> None:
    """In a kernel, but for a whole that has far more elements than are added."""
    function, given = SUMS_AT_PLACES[name], places(60, 480, dtype)
    schedule = schedule_after_rewriting(codegen, function, *given)
    assert not schedule.fallbacks
    exact = function(given[0].double(), given[1], given[2].double())
    (found,) = codegen.compile(schedule, {})(*given)
    assert found.dtype == dtype
    torch.testing.assert_close(found, exact.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-3)
    if name != "index_put":  # which is a reduction then
        assert rewritten(codegen, function, *places(500, 10, dtype)).fallbacks


@pytest.mark.parametrize("name", ["index_add", "scatter_add"])
@pytest.mark.usefixtures("deterministic")
def test_sums_of_16_bits_in_eagers_order(codegen: TritonCodegen, name: str) -> None:
    given = places(500, 4000, torch.float16)
    graph = on_meta(SUMS_AT_PLACES[name], *given)
    codegen.rewrite(graph)
    called = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    assert torch.ops.aten._to_copy.default not in called


def repeated(x: torch.Tensor, count: int) -> torch.Tensor:
    b, h, n, d = x.shape
    return x[:, :, None].expand(b, h, count, n, d).reshape(b, h * count, n, d)


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    count = q.shape[1] // k.shape[1]
    keys, values = repeated(k, count), repeated(v, count)
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


def in_another_order(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Heads one after another, then again."""
    keys, values = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


def read_besides(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = repeated(k, 2), repeated(v, 2)
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask), keys


@pytest.mark.parametrize(
    ("function", "heads"), [(grouped, 2), (in_another_order, 4), (read_besides, 4)]
)
def test_heads_that_several_queries_share_are_not_copied(
    codegen: TritonCodegen, function: Callable[..., Any], heads: int
) -> None:
    q, k, v = (torch.randn(2, h, n, 16) for h, n in ((4, 3), (2, 9), (2, 9)))
    schedule = rewritten(codegen, function, q, k, v, torch.randn(3, 9))
    (call,) = externs(schedule, "scaled_dot_product")
    assert [view.size[1] for view in call.arguments[:3]] == [4, heads, heads]


@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, True), (False, False, True)])
@pytest.mark.parametrize("sizes", [((2, 4, 7), (6, 4, 3)), ((2, 4, 6, 5), (4, 1, 3, 3))], ids=str)
def test_gradients_of_biases_are_sums_of_their_own(
    codegen: TritonCodegen, sizes: tuple[tuple[int, ...], ...], wanted: tuple[bool, ...]
) -> None:
    x, weight = (torch.randn(size) for size in sizes)
    groups, spatial = x.shape[1] // weight.shape[1], x.dim() - 2

    def backward(gradient: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        window = [1] * spatial, [1] * spatial, [1] * spatial, False, [0] * spatial, groups
        gradient = gradient * 2
        results = torch.ops.aten.convolution_backward(gradient, x, w, [len(w)], *window, wanted)
        return [result for result, is_wanted in zip(results, wanted, strict=True) if is_wanted]

    gradient = torch.randn(2, len(weight), *x.shape[2:])
    schedule = rewritten(codegen, backward, gradient, x, weight)
    calls = externs(schedule, "convolution_backward")
    masks = [list(call.arguments[10]) for call in calls]
    assert masks == [[*wanted[:2], False]] * any(wanted[:2])


JOINED = {
    "stack": lambda x, y, z: torch.stack([x, y, z]).permute(1, 3, 0, 2, 4),
    "stack inside": lambda x, y, z: torch.stack([x, y, z], -2).permute(0, 2, 3, 1, 4),
    "cat": lambda x, y, z: torch.cat([x, y, z], 1).permute(0, 2, 1, 3),
    "cat of others": lambda x, y, z: torch.cat([x, y.double(), x], -1).permute(3, 2, 1, 0),
    "with an empty one": lambda x, y, z: torch.cat([x, x.new_zeros(0), y], 2).permute(2, 0, 1, 3),
}


@pytest.mark.parametrize("name", JOINED)
def test_what_is_joined_is_turned_before(codegen: TritonCodegen, name: str) -> None:
    x, y, z = (torch.randn(2, 3, 5, 4) for _ in range(3))

    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (JOINED[name](x, y.transpose(0, 1).contiguous().transpose(0, 1), z).contiguous(),)

    graph = make_fx(function, tracing_mode="fake")(x, y, z)
    codegen.rewrite(graph)
    targets = [node.target for node in graph.graph.nodes]
    join = torch.ops.aten.stack.default if "stack" in name else torch.ops.aten.cat.default
    permutations = targets[targets.index(join) :].count(torch.ops.aten.permute.default)
    assert permutations == ("empty" in name)
    rewritten(codegen, function, x, y, z)
