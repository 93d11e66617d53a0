"""What is fused, in which loops, and where intermediates lie."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import sympy
import torch
import weft_loop_ir
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling import Function, kernels, scheduled
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_loop_ir import Kernel, Schedule, ScheduleOptions, item_reads, item_writes
from weft_loop_ir.bodies import Conversion
from weft_loop_ir.schedule.can_fuse import may_differ_by


def test_bias_residual_and_layer_norm_are_one_kernel() -> None:
    x, residual, bias = torch.randn(4, 6, 16), torch.randn(4, 6, 16), torch.randn(16)
    weight = torch.randn(16)
    schedule = scheduled(
        lambda *v: F.layer_norm(v[0] + v[2] + v[1], (16,), v[3], v[2]), [x, residual, bias, weight]
    )
    (kernel,) = kernels(schedule)
    assert [v.size for v in kernel.outer] == [24]
    assert [[v.size for v in s.inner] for s in kernel.stages] == [[16], [], [16]]
    assert [s.is_reduction for s in kernel.stages] == [True, False, False]
    assert schedule.memory.arena_bytes == 0  # the row and the statistics are local


def test_linear_bias_gelu_residual_layer_norm() -> None:
    inputs = [torch.randn(3, 5, 8), torch.randn(16, 8), torch.randn(16), torch.randn(8, 16)]

    def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x + F.linear(F.gelu(F.linear(x, w, b)), v), (8,))

    schedule = scheduled(block, inputs)
    assert len(kernels(schedule)) == 2  # gelu, and residual with layer norm
    assert not schedule.fallbacks


def test_pointwise_over_contiguous_memory_is_one_loop() -> None:
    (kernel,) = kernels(scheduled(lambda x: x.relu() * 2, [torch.randn(3, 4, 5)]))
    assert [v.size for v in kernel.outer] == [60]
    assert kernel.stages[0].inner == ()


def test_loops_follow_the_memory_of_channels_last() -> None:
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    (kernel,) = kernels(scheduled(lambda x: x * 2 + 1, [image]))
    assert [v.size for v in kernel.outer] == [120]


def test_chains_in_different_loop_orders_fuse_through_a_view() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.exp(x).reshape(4, 15)
        return first, first.reshape(12, 5).sin()

    assert len(kernels(scheduled(function, [torch.randn(3, 4, 5)]))) == 1


def test_a_reversed_read_of_an_intermediate_is_not_fused() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.exp(x)
        return first, first.flip(0) + 1

    schedule = scheduled(function, [torch.randn(7)])
    for kernel in kernels(schedule):
        assert not set(kernel.reads) & set(kernel.writes)


def test_independent_reductions_of_one_input_share_a_pass() -> None:
    schedule = scheduled(lambda x: (x.sum(1), (x * x).sum(1), x.amax(1)), [torch.randn(8, 32)])
    (kernel,) = kernels(schedule)
    assert len(kernel.stages) == 1


def largest_and_turned(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    both = torch.sigmoid(x + y)
    return (x * y).abs().amax(1), both, (both * 2).t().contiguous()


@pytest.mark.parametrize(("most", "count"), [(None, 1), (64, 1), (63, 2), (16, 2)])
def test_what_is_stored_crosswise_joins_no_reduction_of_long_rows(
    most: int | None, count: int
) -> None:
    options = ScheduleOptions(max_crossed_elements=most)
    schedule = scheduled(largest_and_turned, [torch.randn(32, 64), torch.randn(32, 64)], options)
    assert len(kernels(schedule)) == count


def test_what_is_stored_along_rows_joins_reductions_of_any() -> None:
    options = ScheduleOptions(max_crossed_elements=16)
    inputs = [torch.randn(32, 64), torch.randn(64, 32).t(), torch.randn(32, 1)]

    def along(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 2).amax(1), torch.sigmoid(x) * z, (x + 1)[:, ::2].contiguous()

    assert len(kernels(scheduled(along, [inputs[0], inputs[0], inputs[2]], options))) <= 2
    both = scheduled(lambda x, y, z: ((x * y).amax(1), x * y), inputs, options)
    assert len(kernels(both)) == 1  # the reduction reads crosswise too


def heads_added(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(1), x.half().mean(1, keepdim=True), x.amax((0, 1)), x.prod(1), x.sum((0, -1))


def test_reductions_of_few_are_written_out() -> None:
    x = torch.randn(2, 4, 6, 5)
    x[0, 1, 2, 3], x[1, 2, 3, 4] = float("nan"), float("inf")
    lowering = weft_loop_ir.LoweringOptions(written_out_terms=8)
    schedule = scheduled(heads_added, [x], lowering=lowering)
    reducing = [k for k in kernels(schedule) if any(s.is_reduction for s in k.stages)]
    assert len(reducing) == 1  # the last dim is read by a loop
    scheduled(heads_added, [x.transpose(0, 2)], lowering=lowering)
    scheduled(heads_added, [x[:, ::3]], lowering=lowering)


def halves_of_rows(q: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    half = q.shape[-1] // 2
    low, high = q[..., :half], q[..., half:]
    out = torch.slice_scatter(torch.empty_like(q), low * c - high * s, -1, 0, half)
    return torch.slice_scatter(out, high * c + low * s, -1, half)


def test_halves_of_rows_are_written_by_one_kernel() -> None:
    inputs = [torch.randn(3, 5, 8), torch.randn(5, 4), torch.randn(5, 4)]
    schedule = scheduled(halves_of_rows, inputs)
    (kernel,) = kernels(schedule)
    assert len(kernel.stages[0].body.loads()) == 4


@settings(max_examples=300, deadline=None)
@given(
    st.integers(-60, 60),
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 4)), max_size=3),
)
def test_sums_of_multiples_that_may_meet(distance: int, digits: list[tuple[int, int]]) -> None:
    """What is told apart is apart; it is told in all cases where the strides are those of digits."""
    found = may_differ_by(distance, sorted(digits, reverse=True))
    ranges = [range(0, stride * extent, stride) for stride, extent in digits]
    sums = {sum(terms) for terms in itertools.product(*ranges)}
    meets = any(a - b == distance for a in sums for b in sums)
    assert found or not meets
    reach, is_system = 0, True
    for stride, extent in sorted(digits):
        is_system &= stride > 2 * reach
        reach += stride * (extent - 1)
    if is_system:
        assert found == meets


@pytest.mark.parametrize("kind", ["chain", "rows", "network"])
def test_kernels_are_bounded_and_about_as_few_as_that_allows(kind: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        values = [x, y]
        for k in range(300):
            old = values[(7 * k) % len(values)] if kind == "network" else y
            values.append((values[-1] + old * 0.25).sin())
            if kind == "rows" and k % 20 == 0:
                values.append(values[-1] - values[-1].mean(-1, keepdim=True))
        return values[-1]

    most = 128
    options = ScheduleOptions(max_instructions=most)
    found = kernels(scheduled(function, [torch.randn(3, 8), torch.randn(3, 8)], options))
    counts = [sum(len(stage.body.instructions) for stage in kernel.stages) for kernel in found]
    assert max(counts) <= most
    assert len(counts) <= 4 * sum(counts) / most + 2


def test_a_fusion_that_would_make_a_cycle_is_refused() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first = torch.exp(x)
        return (first @ w) + first

    assert len(kernels(scheduled(function, [torch.randn(4, 4), torch.randn(4, 4)]))) == 2


def test_a_large_full_reduction_is_split() -> None:
    x = torch.rand(512, 256)  # nothing cancels: the order of the sum hardly matters
    assert len(kernels(scheduled(lambda v: (v * 2).sum(), [x]))) == 2
    whole = ScheduleOptions(split_reduction_elements=None)
    (kernel,) = kernels(scheduled(lambda v: (v * 2).sum(), [x], whole))
    assert kernel.outer == ()


def test_what_a_result_reads_once_makes_no_columns() -> None:
    """The largest of a row, by which its sum is taken: neighbours side by side, one for each result."""
    options = ScheduleOptions(
        split_rows=8, split_reduction_elements=100, split_columns=64, split_column_elements=100
    )
    (kernel,) = kernels(scheduled(lambda x: x.log_softmax(-1), [torch.randn(40, 120)], options))
    assert not any(name.endswith("_partial") for name in kernel.writes)


@pytest.mark.parametrize("kind", ["sum", "amax", "prod"])
def test_reductions_to_few_results_are_split_where_asked(kind: str) -> None:
    options = ScheduleOptions(
        split_rows=8, split_reduction_elements=100, split_columns=64, split_column_elements=100
    )
    reduce = getattr(torch, kind)
    x = torch.rand(120, 40, dtype=torch.float64) + 0.5
    assert len(kernels(scheduled(lambda v: reduce(v, 0) + 1, [x], options))) >= 2
    assert len(kernels(scheduled(lambda v: reduce(v, 0) + 1, [x.t()], options))) == 1
    assert len(kernels(scheduled(lambda v: reduce(v, 1), [x.t()[:4]], options))) == 2
    y = torch.rand(4, 120, 5, dtype=torch.float64)
    assert len(kernels(scheduled(lambda v: reduce(v, 1), [y], options))) == 2
    if kind != "prod":
        assert len(kernels(scheduled(lambda v: reduce(v, (0, 1)), [y], options))) == 2


def test_columns_are_split_whatever_is_read_for_each_row() -> None:
    """As gradients of a layer norm's weight are: its rows' statistics lie side by side."""
    options = ScheduleOptions(
        split_rows=8, split_reduction_elements=100, split_columns=64, split_column_elements=100
    )
    x = torch.rand(6, 20, 40, dtype=torch.float64)
    mean, scale = torch.rand(2, 6, 20, 1, dtype=torch.float64)

    def function(x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return ((x - mean) * scale).sum((0, 1))

    assert len(kernels(scheduled(function, [x, mean, scale], options))) == 2
    rows = [v.transpose(0, 2).contiguous().transpose(0, 2) for v in (x, mean, scale)]
    assert len(kernels(scheduled(function, rows, options))) == 1


def test_columns_of_batches_are_split_in_as_many_parts_as_those_of_rows() -> None:
    options = ScheduleOptions(
        split_columns=64, split_column_elements=100, split_rows=8, split_reduction_elements=100
    )
    for shape in ((2, 120, 16), (240, 16)):
        x = torch.randn(*shape, dtype=torch.float64)
        schedule = scheduled(lambda x: x.exp().sum([*range(x.dim() - 1)]), [x], options)
        first, _ = kernels(schedule)
        assert [v.size for v in first.outer] == [16, 16]
        assert [v.size for v in first.stages[0].inner] == [15]
    apart = torch.randn(2, 130, 16, dtype=torch.float64)[:, :120]
    scheduled(lambda x: x.exp().sum((0, 1)), [apart], options)


@pytest.mark.parametrize("programs", [0, 64])
def test_rows_that_are_read_in_two_orders_are_split(programs: int) -> None:
    """As gradients of a norm's weight are where each head has its rows: no loop over rows is one of all."""
    options = ScheduleOptions(
        split_columns=64,
        split_column_elements=100,
        split_rows=8,
        split_reduction_elements=100,
        split_column_programs=programs,
        split_column_tile=(8, 4),
    )
    batch, heads, length, width = 3, 5, 40, 16
    by_head = torch.randn(batch, heads, length, width, dtype=torch.float64)
    by_place = torch.randn(batch, length, heads, width, dtype=torch.float64)
    schedule = scheduled(
        lambda x, y: (x.transpose(1, 2) * y).sum((0, 1, 2)), [by_head, by_place], options
    )
    first, _ = kernels(schedule)
    parts = int(first.outer[0].size)
    assert parts > batch and length % parts == 0


@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (64, 16)])
def test_reads_of_one_buffer_in_two_orders_are_two_kernels(rows: int, columns: int) -> None:
    """A sum over rows has the loops of what is computed row by row, in another order."""
    x, other = torch.randn(rows, columns), torch.randn(rows, columns)
    options = ScheduleOptions(min_outer_iterations=1)

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.sum(0), x * 2, (x * y).sum(1)

    schedule = scheduled(function, [x, other], options)
    assert len(kernels(schedule)) == 2
    for kernel in kernels(schedule):
        steps = {
            load.index.coeff(stage.inner[-1].symbol)
            for stage in kernel.stages
            if stage.inner
            for load in stage.body.loads()
            if load.buffer == schedule.inputs[0]
        }
        assert len(steps) == 1  # all its stages go through the input in one order


def test_values_used_by_a_library_call_and_outside_keep_their_store() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(x + 1)
        return hidden @ w, hidden * 2

    scheduled(function, [torch.randn(4, 4), torch.randn(4, 4)])


def test_rounding_of_low_precision_chains_can_be_left_out() -> None:
    x = torch.randn(64).to(torch.bfloat16)

    def conversions(rounds: bool) -> int:
        graph = make_fx(lambda v: ((v * 3 + 1) * v,), tracing_mode="fake")(x)
        lowering = weft_loop_ir.LoweringOptions(round_low_precision=rounds)
        options = ScheduleOptions(round_low_precision=rounds)
        schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph, options=lowering), options)
        weft_loop_ir.verify(schedule)
        (kernel,) = kernels(schedule)
        body = kernel.stages[0].body
        return sum(isinstance(i, Conversion) for i in body.instructions)

    assert conversions(False) == 2
    assert conversions(True) == 6


def test_schedules_are_the_same_from_run_to_run() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x + y, -1), (x * y).sum(0), x.sin() + y.cos(), x.var(0)

    inputs = [torch.randn(6, 8), torch.randn(6, 8)]
    dumps = {weft_loop_ir.format_schedule(scheduled(function, inputs)) for _ in range(3)}
    assert len(dumps) == 1


def test_a_row_too_large_for_a_local_buffer_stays_in_the_arena() -> None:
    schedule = scheduled(
        lambda x: torch.softmax(x, -1),
        [torch.randn(16, 64)],
        ScheduleOptions(max_local_bytes=64),
    )
    (kernel,) = kernels(schedule)
    assert all(b.size == 1 for b in kernel.local_buffers)
    assert schedule.memory.arena_bytes > 0


def step_interval(schedule: Schedule, name: str) -> tuple[int, int]:
    positions = []
    for position, step in enumerate(schedule.steps):
        if name in item_reads(step) + item_writes(step):
            positions.append(position)
    return min(positions), max(positions)


UNARY: list[Function] = [torch.sin, torch.relu, lambda x: x * 2 + 1, lambda x: x.t().contiguous()]
BINARY: list[Function] = [torch.add, torch.mul, torch.matmul, lambda a, b: a + b.sum(0)]
ROWS: list[Function] = [
    lambda x: torch.softmax(x, -1),
    lambda x: F.layer_norm(x, (8,)),
    lambda x: x - x.amax(0, keepdim=True),
]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 10), st.integers(0, 99), st.integers(0, 99)),
        min_size=2,
        max_size=14,
    ),
    st.integers(1, 3),
    st.sampled_from([1, 2, 8]),
)
def test_random_programs_equal_eager_and_live_buffers_never_overlap(
    program: list[tuple[int, int, int]], outputs: int, parallel: int
) -> None:
    operations = UNARY + BINARY + ROWS

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [x, y]
        for number, first, second in program:
            operation = operations[number]
            a, b = values[first % len(values)], values[second % len(values)]
            value = operation(a, b) if operation in BINARY else operation(a)
            values.append(torch.tanh(value) if operation is torch.matmul else value)
        return tuple(values[-outputs:])

    torch.manual_seed(0)
    inputs = [torch.randn(8, 8, dtype=torch.float64) for _ in range(2)]
    schedule = scheduled(function, inputs, ScheduleOptions(parallel_kernels=parallel))
    check_no_overlap(schedule)


def check_no_overlap(schedule: Schedule) -> None:
    """Buffers alive together occupy disjoint bytes, but for a step that writes in place."""
    placed = []
    for name, offset in schedule.memory.offsets.items():
        assert offset % 64 == 0
        layout = schedule.buffers[name].layout
        span = 1 + sum((n - 1) * s for n, s in zip(layout.size, layout.stride, strict=True))
        start = int(offset)
        end = start + int(span) * layout.dtype.itemsize
        assert end <= schedule.memory.arena_bytes
        placed.append((name, start, end, *step_interval(schedule, name)))
    for k, (_, start, end, first, last) in enumerate(placed):
        for _, other_start, other_end, other_first, other_last in placed[k + 1 :]:
            if start >= other_end or other_start >= end:
                continue
            in_place = last == other_first or other_last == first
            assert last < other_first or other_last < first or in_place


def test_memory_is_reused_and_overwritten_in_place() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.relu(x @ w)
        return x @ w

    inputs = [torch.randn(16, 16), torch.randn(16, 16)]
    schedule = scheduled(function, inputs)
    assert schedule.memory.arena_bytes == 2 * 16 * 16 * 4
    apart = scheduled(function, inputs, ScheduleOptions(reuse_memory=False))
    assert apart.memory.arena_bytes > schedule.memory.arena_bytes


def test_a_part_of_an_input_is_written_where_it_is() -> None:
    """What a slice of a cache gets costs what is written, not what the cache has."""
    x, cache = torch.randn(2, 2, 8), torch.randn(2, 9, 8)

    def function(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        return cache.slice_scatter(x * 2, 1, 3, 5)

    graph = weft_loop_ir.lower(make_fx(function, tracing_mode="fake")(x, cache))
    schedule = weft_loop_ir.schedule(weft_loop_ir.write_back(graph, {0: 1}))
    (kernel,) = schedule.steps
    assert isinstance(kernel, Kernel) and kernel.reads == schedule.inputs[:1]
    assert math.prod(int(loop.size) for loop in kernel.outer) == x.numel()
    given = cache.clone()
    weft_loop_ir.evaluate(schedule, [x, given])
    torch.testing.assert_close(given, function(x, cache))


def test_kernels_overwrite_results_that_calls_allocate() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            y = torch.nn.functional.conv2d(x, w, padding=1)
            x = torch.relu(y + 1).exp()
        return torch.nn.functional.conv2d(x, w, padding=1)

    inputs = [torch.randn(2, 4, 6, 6), torch.randn(4, 4, 3, 3) / 8]
    schedule = scheduled(function, inputs, ScheduleOptions(reuse_results=True))
    assert len(schedule.memory.reused) == 3 and schedule.memory.arena_bytes == 0
    assert not scheduled(function, inputs).memory.reused


def test_large_intermediates_are_allocated_one_by_one() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for _ in range(3):
            x = torch.relu(x @ w).exp()
        return x @ w, (x[:3] @ w).sin() @ w

    inputs = [torch.randn(32, 16), torch.randn(16, 16)]
    schedule = scheduled(function, inputs, ScheduleOptions(own_bytes=32 * 16 * 4))
    memory = schedule.memory
    assert len(memory.alone) == 3 and len(memory.reused) == 3 and 0 < memory.arena_bytes < 1024


def test_results_that_others_need_are_not_overwritten() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.nn.functional.conv2d(x, w, padding=1)
        z = torch.nn.functional.conv2d(torch.relu(y), w, padding=1)
        flipped = torch.relu(z.flip(0))  # reads elements that it has overwritten
        first = torch.nn.functional.conv2d(flipped, w, padding=1)
        return torch.nn.functional.conv2d(first.sin(), w, padding=1) + y, first

    inputs = [torch.randn(2, 4, 6, 6), torch.randn(4, 4, 3, 3) / 8]
    schedule = scheduled(function, inputs, ScheduleOptions(reuse_results=True))
    assert not schedule.memory.reused


def eager_peak(graph: torch.fx.GraphModule) -> int:
    """The most bytes of intermediates that eager holds at once, each freed after its last use."""
    nodes = list(graph.graph.nodes)
    returned = set(nodes[-1].all_input_nodes)
    storage: dict[torch.fx.Node, torch.fx.Node] = {}  # a view's memory is its base's
    last: dict[torch.fx.Node, int] = {}
    for position, node in enumerate(nodes):
        is_view = isinstance(node.target, torch._ops.OpOverload) and node.target.is_view
        storage[node] = storage[node.all_input_nodes[0]] if is_view else node
        for used in (node, *node.all_input_nodes):
            last[storage[used]] = position
    owners = [
        node
        for node in nodes
        if node.op == "call_function" and storage[node] is node
        and node not in returned and isinstance(node.meta["val"], torch.Tensor)
    ]  # fmt: skip
    first = {node: position for position, node in enumerate(nodes)}
    return max(
        sum(n.meta["val"].nbytes for n in owners if first[n] <= position <= last[n])
        for position in range(len(nodes))
    )


def attention_block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    query, key, value = (x @ w).chunk(3, -1)
    weights = torch.softmax(query @ key.transpose(-1, -2), -1)
    return F.layer_norm(x + weights @ value, x.shape[-1:])


def residual_mlp(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = F.layer_norm(x + F.gelu(x @ w[:, :64]) @ w[:, 64:128], (64,))
    return x


def convolutions(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    image = x.reshape(1, 4, -1, 16)
    kernel = w.reshape(-1)[:144].reshape(4, 4, 3, 3)
    skip = F.relu(F.conv2d(image, kernel, padding=1))
    return F.relu(F.conv2d(skip, kernel, padding=1) + skip).mean((2, 3))


@pytest.mark.parametrize("function", [attention_block, residual_mlp, convolutions])
def test_the_arena_is_no_larger_than_eagers_peak(function: Function) -> None:
    inputs = [torch.randn(32, 64), torch.randn(64, 192)]
    graph = make_fx(lambda *values: (function(*values),), tracing_mode="fake")(*inputs)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    owned = {n for s in schedule.steps if not isinstance(s, Kernel) for n in s.outputs if n}
    live_externs = sum(
        int(sympy.prod(schedule.buffers[n].layout.size)) * schedule.buffers[n].layout.dtype.itemsize
        for n in owned - set(schedule.memory.offsets)
        if schedule.buffers[n].kind is weft_loop_ir.BufferKind.INTERMEDIATE
    )
    assert 0 < schedule.memory.arena_bytes + live_externs <= eager_peak(graph)


def test_contractions_write_into_planned_memory_and_other_externs_do_not() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(torch.relu(x @ w), 0) * 2

    schedule = scheduled(function, [torch.randn(4, 4), torch.randn(4, 4)])
    externs = [s for s in schedule.steps if not isinstance(s, Kernel)]
    product, cumulative = externs
    assert product.out_variant is torch.ops.aten.mm.out
    assert product.outputs[0] in schedule.memory.offsets
    assert cumulative.out_variant is None
    assert cumulative.outputs[0] not in schedule.memory.offsets


def make_symbolic(function: Function, inputs: Sequence[torch.Tensor]) -> Schedule:
    graph = make_fx(lambda *values: (function(*values),), tracing_mode="symbolic")(*inputs)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    weft_loop_ir.verify(schedule)
    return schedule


SYMBOLIC: list[Function] = [
    lambda x: F.layer_norm(torch.softmax(x * 2, -1), x.shape[-1:]),
    lambda x: x.transpose(1, 2).reshape(x.shape[0], -1) + 1,
    lambda x: x[:, 1:] * x[:, :-1],
    lambda x: torch.cat([x, x * 2], 1).sum(1),
    lambda x: torch.arange(x.shape[2]) + x.flip(0),
    lambda x: (x @ x.transpose(1, 2)).mean((0, 2)),
    lambda x: F.pad(x, (1, 2)).var(-1),
]


@pytest.mark.parametrize("number", range(len(SYMBOLIC)))
def test_one_schedule_serves_every_size(number: int) -> None:
    function = SYMBOLIC[number]
    schedule = make_symbolic(function, [torch.randn(3, 5, 7)])
    for size in ((3, 5, 7), (4, 9, 6), (2, 33, 17)):
        x = torch.randn(size)
        for arena in (False, True):
            (result,) = weft_loop_ir.evaluate(schedule, [x], use_arena=arena)
            expected = function(x)
            torch.testing.assert_close(result, expected)
            assert result.stride() == expected.stride()
    assert any(isinstance(v.size, sympy.Expr) and v.size.free_symbols
               for k in kernels(schedule) for v in k.outer)  # fmt: skip


def test_elements_in_reverse_order_are_one_loop_whatever_the_sizes() -> None:
    x = torch.randn(5, 7)
    graph = make_fx(lambda x: x + x.flip(0, 1), tracing_mode="symbolic")(x)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    (kernel,) = kernels(schedule)
    assert len(kernel.outer) == 1
    for size in ((5, 7), (1, 4), (3, 1)):
        x = torch.randn(size)
        torch.testing.assert_close(weft_loop_ir.evaluate(schedule, [x]), (x + x.flip(0, 1),))


def test_ten_thousand_nodes_stay_near_linear() -> None:
    """Counts the fusion attempts, not time: they grow with the graph, not with its square."""
    from weft_loop_ir.schedule import fusion

    def attempts(layers: int) -> int:
        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            for _ in range(layers):
                x = torch.relu(F.layer_norm(x + 1, (4,)) @ w) + x
            return x

        inputs = [torch.randn(4, 4), torch.randn(4, 4)]
        graph = make_fx(lambda *v: (function(*v),), tracing_mode="fake")(*inputs)
        loop_graph = weft_loop_ir.lower(graph)
        calls = 0
        original = fusion.fuse

        def counted(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            return original(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fusion, "fuse", counted)
            weft_loop_ir.schedule(loop_graph)
        return calls

    assert attempts(80) < 5 * attempts(20)


@pytest.mark.parametrize("tracing", ["fake", "symbolic"])
@pytest.mark.parametrize(("rows", "is_branch"), [(8, False), (9, True)])
def test_branches_of_few_elements_run_both_sides(tracing: str, rows: int, is_branch: bool) -> None:
    """Few by the sizes of the call that the graph was made for; results are right for others too."""

    def clamped(x: torch.Tensor) -> torch.Tensor:
        cond = torch.ops.higher_order.cond
        (result,) = cond(x.max() > 1, lambda x: (x.clamp(-1, 1),), lambda x: (x.clone(),), (x,))
        return result * 2

    x = torch.linspace(-2, 2, 4 * rows).view(rows, 4)
    with torch.no_grad():
        graph = make_fx(lambda v: (clamped(v),), tracing_mode=tracing)(x)
    options = ScheduleOptions(selected_elements=2 * 8 * 4)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), options)
    weft_loop_ir.verify(schedule)
    branches = [step for step in schedule.steps if isinstance(step, weft_loop_ir.Branch)]
    assert len(branches) == is_branch
    for other in (
        [x, x / 4] if tracing == "fake" else [x, x / 4, x.repeat(3, 1), x.repeat(3, 1) / 4]
    ):
        (result,) = weft_loop_ir.evaluate(schedule, [other])
        torch.testing.assert_close(result, clamped(other))


def test_a_row_is_written_over_the_one_that_it_is_computed_from() -> None:
    def function(x: Any, w: Any, chosen: Any) -> Any:
        scores = x @ w
        picked = scores.gather(1, chosen)
        return (scores.log_softmax(-1) * 2 + 1) @ w.t(), picked

    def across(x: Any, w: Any, chosen: Any) -> Any:
        scores = x @ w
        return (scores.log_softmax(-1) + scores.flip(-1)) @ w.t(), scores.flip(0).amax(1)

    inputs = (torch.randn(32, 16), torch.randn(16, 64), torch.randint(0, 64, (32, 1)))
    for program, reuses in ((function, True), (across, False)):
        plain, rows = (
            scheduled(program, inputs, ScheduleOptions(reuse_rows=r)).memory for r in (False, True)
        )
        saved = int(plain.arena_bytes) - int(rows.arena_bytes)
        assert saved == (4 * 32 * 64 if reuses else 0)


def test_matmuls_add_to_what_matmuls_have_summed_up_in_its_memory() -> None:
    def summed(x: Any, w: Any) -> Any:
        total = x[:32].t() @ w[:32]
        total = torch.addmm(total, x[32:64].t(), w[32:64], beta=2, alpha=3)
        return torch.addmm(total, x[64:].t(), w[64:])

    def read_again(x: Any, w: Any) -> Any:
        first = x[:32].t() @ w[:32]
        second = torch.addmm(first, x[32:64].t(), w[32:64])
        return torch.addmm(second, first, second), first

    inputs = (torch.randn(96, 48), torch.randn(96, 48))
    for program, count in ((summed, 1), (read_again, 3)):
        schedule = scheduled(program, inputs)
        assert len({name for step in schedule.steps for name in item_writes(step)}) == count


def test_blocks_of_rows_are_not_fused_and_end_one_after_another() -> None:
    def function(x: Any) -> Any:
        return [part.exp().sum(-1) * 2 for part in x.split(8)]

    inputs = (torch.randn(32, 40),)
    graph = make_fx(lambda x: tuple(function(x)), tracing_mode="fake")(*inputs)
    plain = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    for node in graph.graph.nodes:
        if node.target in (torch.ops.aten.exp.default, torch.ops.aten.mul.Tensor):
            node.meta["row_block"] = node.meta["val"].dim(), node.name
    apart = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    assert len(kernels(plain)) < len(kernels(apart)) and len(kernels(apart)) >= 8
    weft_loop_ir.verify(apart)
