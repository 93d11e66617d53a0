"""Blocks of rows: what a matmul makes and the rest reads row by row, beside eager and beside the whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
import weft_aot_autograd
import weft_functionalize
from torch import Tensor
from weft_aot_autograd import JointGraph, RowBlockOptions, forward_in_blocks, joint_in_blocks

aten = torch.ops.aten

HIDDEN, COLUMNS = 8, 96
FORCED = RowBlockOptions(min_bytes=1, min_share=0, min_saved_share=0)

Program = Callable[..., Any]


def joint_of(program: Program, *inputs: Any) -> JointGraph:
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(program), inputs)
    joint = weft_aot_autograd.trace_joint(functional)
    assert joint is not None
    return joint


def operands(rows: Sequence[int] = (24,), dtype: torch.dtype = torch.float64) -> list[Tensor]:
    h = torch.randn(*rows, HIDDEN, dtype=dtype, requires_grad=True)
    w = torch.randn(COLUMNS, HIDDEN, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, COLUMNS, tuple(rows))
    targets.view(-1)[::5] = -100
    return [h, w, targets]


def logits(h: Tensor, w: Tensor) -> Tensor:
    return F.linear(h, w).view(-1, COLUMNS)


def mean_loss(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits(h, w), targets.view(-1))


def summed(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
    loss = F.cross_entropy(logits(h, w).float(), targets.view(-1), reduction="sum")
    return loss / 7.0


def of_each(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits(h, w), targets.view(-1), reduction="none")


def smoothed(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits(h, w), targets.view(-1), label_smoothing=0.1)


def of_next(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
    scores = F.linear(h, w).float()[..., :-1, :].contiguous()
    return F.cross_entropy(scores.view(-1, COLUMNS), targets[..., 1:].contiguous().view(-1))


def written_out(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
    scores = logits(h, w)
    chosen = scores.gather(-1, targets.clamp(min=0).view(-1, 1)).squeeze(1)
    return (scores.logsumexp(-1) - chosen).mean()


def with_z_loss(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
    scores = logits(h, w)
    loss = F.nll_loss(F.log_softmax(scores, -1), targets.view(-1))
    return loss + 0.01 * scores.logsumexp(-1).pow(2).mean()


def squared(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits(h, w), targets.view(-1)) ** 2


def soft_capped(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
    scores = torch.tanh(logits(h, w) / 5) * 5
    return F.cross_entropy(scores, targets.view(-1))


def from_a_teacher(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
    wanted = torch.softmax(logits(h + 1, w), -1).detach()
    return -(wanted * F.log_softmax(logits(h, w), -1)).sum(-1).mean()


LOSSES = [mean_loss, summed, of_each, smoothed, written_out, with_z_loss, squared, soft_capped]
TWO_DIMS = [*LOSSES, of_next, from_a_teacher]


def widest(graph: torch.fx.Graph) -> int:
    """The most elements that a value has whose last dimension is that of the columns."""
    values = (n.meta["val"] for n in graph.nodes if n.op == "call_function")
    wide = [v for v in values if isinstance(v, Tensor) and v.dim() > 1 and v.shape[-1] == COLUMNS]
    return max((v.numel() for v in wide if v.numel() > HIDDEN * COLUMNS), default=0)


def run(joint: JointGraph, inputs: Sequence[Any], tangents: Sequence[Tensor]) -> list[Tensor]:
    detached = [i.detach() if isinstance(i, Tensor) else i for i in inputs]
    return list(joint.graph_module(*detached, *tangents))


@pytest.mark.parametrize("in_forward", [True, False])
@pytest.mark.parametrize("loss", TWO_DIMS)
def test_values_and_gradients_of_losses(loss: Program, in_forward: bool) -> None:
    inputs = operands((4, 9))
    options = RowBlockOptions(min_bytes=1, min_share=0, gradients_in_forward=in_forward)
    joint = joint_of(loss, *inputs)
    assert joint_in_blocks(joint, options) >= 1
    want = loss(*inputs)
    tangent = torch.randn_like(want)
    gradients = torch.autograd.grad(want, inputs[:2], tangent)
    got = run(joint, inputs, [tangent])
    exact = 1e-5 if loss in (summed, of_next) else 1e-12
    torch.testing.assert_close(got, [want.detach(), *gradients], rtol=exact, atol=exact)
    assert widest(joint.graph_module.graph) <= math.ceil(36 / 4) * COLUMNS


@pytest.mark.parametrize("loss", [*LOSSES, of_next])
def test_values_of_losses_in_inference(loss: Program) -> None:
    inputs = [i.detach() for i in operands((4, 9))]
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(loss), inputs)
    module = weft_aot_autograd.trace_inference(functional).graph_module
    assert forward_in_blocks(module.graph, FORCED) == 1
    module.recompile()
    torch.testing.assert_close(module(*inputs)[0], loss(*inputs))
    assert widest(module.graph) <= 9 * COLUMNS


def test_gradients_of_a_mean_are_computed_in_forward_and_kept() -> None:
    joint = joint_of(mean_loss, *operands())
    joint_in_blocks(joint, FORCED)
    parts = weft_aot_autograd.partition(joint)
    targets = [n.target for n in parts.backward.graph.nodes if n.op == "call_function"]
    assert set(targets) == {aten.mul.Tensor}
    saved = [s.nbytes for s in parts.saved if s.input_index is None]
    assert sorted(saved) == [8 * HIDDEN * 24, 8 * HIDDEN * COLUMNS]


@pytest.mark.parametrize("loss", [of_each, squared])
def test_backward_computes_blocks_again_where_gradients_are_not_linear_in_one_number(
    loss: Program,
) -> None:
    joint = joint_of(loss, *operands())
    joint_in_blocks(joint, FORCED)
    parts = weft_aot_autograd.partition(joint)
    counts = [
        sum(n.target in (aten.mm.default, aten.addmm.default) for n in part.graph.nodes)
        for part in (parts.forward, parts.backward)
    ]
    assert counts == [4, 12]
    assert all(s.nbytes <= 8 * 24 for s in parts.saved if s.input_index is None)


def test_a_budget_keeps_gradients_that_forward_computes() -> None:
    joint = joint_of(mean_loss, *operands())
    joint_in_blocks(joint, FORCED)
    options = weft_aot_autograd.PartitionOptions(activation_memory_budget=0.0)
    backward = weft_aot_autograd.partition(joint, options=options).backward
    assert not any(n.target is aten.mm.default for n in backward.graph.nodes)


def test_float16_gradients_are_not_taken_out_of_their_range() -> None:
    inputs = operands(dtype=torch.float16)
    joint = joint_of(mean_loss, *inputs)
    joint_in_blocks(joint, FORCED)
    scale = torch.tensor(2.0**16, dtype=torch.float16).clamp(max=60000.0)
    backward = weft_aot_autograd.partition(joint).backward
    assert sum(n.target is aten.mm.default for n in backward.graph.nodes) == 12
    want = torch.autograd.grad(mean_loss(*inputs), inputs[:2], scale)
    got = run(joint, inputs, [scale])[1:]
    torch.testing.assert_close(got, list(want), rtol=2e-2, atol=2.0)


@pytest.mark.parametrize("in_forward", [True, False])
def test_sums_of_many_rows_in_bfloat16_are_as_exact_as_eagers(in_forward: bool) -> None:
    """Over eight draws: of one, how far sums are off is up to how their last bits fall."""
    errors = [[0.0, 0.0], [0.0, 0.0]]
    options = RowBlockOptions(1, 0, blocks=16, gradients_in_forward=in_forward)
    for _ in range(8):
        h, w, targets = operands((2048,), torch.bfloat16)
        exact = [x.detach().double().requires_grad_() for x in (h, w)]
        wanted = torch.autograd.grad(mean_loss(*exact, targets), exact)
        eagers = torch.autograd.grad(mean_loss(h, w, targets), (h, w))
        joint = joint_of(mean_loss, h, w, targets)
        joint_in_blocks(joint, options)
        got = run(joint, [h, w, targets], [torch.ones((), dtype=torch.bfloat16)])[1:]
        for place, found in enumerate(zip(wanted, eagers, got, strict=True)):
            for kind, x in enumerate(found[1:]):
                errors[place][kind] += float((x.double() - found[0]).norm())
    for theirs, ours in errors:
        assert ours <= 1.1 * theirs


def test_a_matrix_that_backward_makes() -> None:
    """The gradient of what is wide without a matmul, and what follows from it, has no part in forward."""

    def program(h: Tensor, w: Tensor) -> Tensor:
        return F.gelu(h.repeat(1, COLUMNS // HIDDEN)) @ w

    h, w, _ = operands()
    assert joint_in_blocks(joint_of(program, h, w), FORCED) == 0
    joint = joint_of(program, h, w)
    assert joint_in_blocks(joint, replace(FORCED, layers=True)) == 1
    want = program(h, w)
    tangent = torch.randn_like(want)
    gradients = torch.autograd.grad(want, [h, w], tangent)
    torch.testing.assert_close(run(joint, [h, w], [tangent]), [want.detach(), *gradients])
    assert widest(joint.graph_module.graph) <= 24 * COLUMNS


def gated(h: Tensor, w: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return h + (F.silu(F.linear(h, w)) * F.linear(h, up)) @ down


@pytest.mark.parametrize("layers", [True, False])
def test_a_layer_between_matmuls_is_in_blocks_where_that_is_asked_for(layers: bool) -> None:
    h, w, _ = operands()
    inputs = [h, w, *(w.detach().clone().requires_grad_() for _ in range(2))]
    joint = joint_of(gated, *inputs)
    assert joint_in_blocks(joint, replace(FORCED, layers=layers)) == layers
    want = gated(*inputs)
    tangent = torch.randn_like(want)
    gradients = torch.autograd.grad(want, inputs, tangent)
    torch.testing.assert_close(run(joint, inputs, [tangent]), [want.detach(), *gradients])
    matmuls = sum(n.target is aten.mm.default for n in joint.graph_module.graph.nodes)
    assert (matmuls == 3 + 6) == (not layers)


def test_a_layer_in_inference_is_in_blocks() -> None:
    h, w, _ = operands()
    inputs = [x.detach() for x in (h, w, w, w)]
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(gated), inputs)
    module = weft_aot_autograd.trace_inference(functional).graph_module
    assert forward_in_blocks(module.graph, FORCED) == 1
    module.recompile()
    torch.testing.assert_close(module(*inputs)[0], gated(*inputs))


@pytest.mark.parametrize("rows", [8, 23, 64])
@pytest.mark.parametrize("blocks", [2, 3, 7])
def test_every_row_is_in_one_block(rows: int, blocks: int) -> None:
    inputs = operands((rows,))
    joint = joint_of(mean_loss, *inputs)
    count = joint_in_blocks(joint, RowBlockOptions(1, 0, blocks=blocks))
    assert count == (rows >= 2 * blocks)
    want = mean_loss(*inputs)
    gradients = torch.autograd.grad(want, inputs[:2])
    got = run(joint, inputs, [torch.ones_like(want)])
    torch.testing.assert_close(got, [want.detach(), *gradients])


def test_a_bias_has_the_sum_over_all_blocks() -> None:
    def program(h: Tensor, w: Tensor, b: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(h, w, b), targets)

    h, w, targets = operands()
    inputs = [h, w, torch.randn(COLUMNS, dtype=torch.float64, requires_grad=True), targets]
    joint = joint_of(program, *inputs)
    assert joint_in_blocks(joint, FORCED) == 1
    gradients = torch.autograd.grad(program(*inputs), inputs[:3])
    got = run(joint, inputs, [torch.ones((), dtype=torch.float64)])
    torch.testing.assert_close(got[1:], list(gradients))


def returned(h: Tensor, w: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    scores = logits(h, w)
    return F.cross_entropy(scores, targets.view(-1)), scores


def normed_over_rows(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
    scores = logits(h, w)
    return F.cross_entropy(scores - scores.amax(0), targets.view(-1))


def centred_on_all(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
    scores = logits(h, w)
    return F.cross_entropy(scores * scores.mean(), targets.view(-1))


def sorted_along_rows(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits(h, w).cumsum(0), targets.view(-1))


@pytest.mark.parametrize("program", [returned, normed_over_rows, centred_on_all, sorted_along_rows])
def test_what_reads_all_rows_stays_whole(program: Program) -> None:
    joint = joint_of(program, *operands())
    before = [n.target for n in joint.graph_module.graph.nodes]
    assert joint_in_blocks(joint, FORCED) == 0
    assert [n.target for n in joint.graph_module.graph.nodes] == before


def test_rows_are_taken_first_of_large_matrices_only() -> None:
    for options, rows in ((RowBlockOptions(1 << 20, 0), 36), (FORCED, 32)):
        joint = joint_of(of_next, *operands((4, 9)))
        joint_in_blocks(joint, options)
        matmuls = [n for n in joint.graph_module.graph.nodes if n.target is aten.mm.default]
        wide = [n.meta["val"].shape[0] for n in matmuls if n.meta["val"].shape[1] == COLUMNS]
        assert sum(wide) == rows


def test_only_what_is_large_beside_the_rest_is_in_blocks() -> None:
    inputs = operands((64,))
    nbytes, others = 64 * COLUMNS * 8, 8 * HIDDEN * (64 + COLUMNS) + 64 * 8 + 8
    for options, count in (
        (RowBlockOptions(nbytes, 0), 1),
        (RowBlockOptions(nbytes + 1, 0), 0),
        (RowBlockOptions(1, nbytes / others), 1),
        (RowBlockOptions(1, 1.01 * nbytes / others), 0),
        (RowBlockOptions(None, 0), 0),
        (RowBlockOptions(), 0),
    ):
        assert joint_in_blocks(joint_of(mean_loss, *inputs), options) == count


@pytest.mark.parametrize(("layers", "count"), [(0, 1), (3, 1), (12, 0)])
def test_what_is_small_beside_all_that_is_saved_stays_whole(layers: int, count: int) -> None:
    def program(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
        for _ in range(layers):
            h = torch.tanh(h)
        return mean_loss(h, w, targets)

    inputs = operands((64,))
    options = RowBlockOptions(min_bytes=1, min_share=0, min_saved_share=2 * COLUMNS / HIDDEN / 12)
    assert joint_in_blocks(joint_of(program, *inputs), options) == count


@pytest.mark.parametrize(
    ("block_rows", "count"), [(64, 4), (16, 4), (12, 5), (10, 6), (8, 8), (1, 16)]
)
def test_how_many_blocks_there_are(block_rows: int, count: int) -> None:
    joint = joint_of(mean_loss, *operands((64,)))
    joint_in_blocks(joint, RowBlockOptions(1, 0, block_rows=block_rows))
    matmuls = (aten.mm.default, aten.addmm.default)
    nodes = joint.graph_module.graph.nodes
    rows = [n.meta["val"].shape[0] for n in nodes if n.target is aten._log_softmax.default]
    assert sum(rows) == 64 and len(rows) >= count and max(rows) - min(rows) < len(rows)
    assert sum(n.target in matmuls for n in nodes) == 3 * len(rows)
