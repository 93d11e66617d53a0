"""Losses of large logits in blocks of rows, compiled, beside eager."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor, nn

FORCED = {"row_block_bytes": 1}
COLUMNS, HIDDEN = 160, 8


class Model(nn.Module):
    """Tokens to a loss, as a causal language model has it, its matrix of logits tied to the embedding."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = nn.Embedding(COLUMNS, HIDDEN, dtype=dtype)
        self.layer = nn.Linear(HIDDEN, HIDDEN, dtype=dtype)
        self.head = nn.Linear(HIDDEN, COLUMNS, bias=False, dtype=dtype)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(torch.tanh(self.layer(self.embed(tokens)))).float()
        shifted = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
        return F.cross_entropy(logits.view(-1, COLUMNS), shifted.view(-1), ignore_index=-100)


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, COLUMNS, shape)


def in_blocks(function: Callable[..., Any], dynamic: bool | None = None) -> Callable[..., Any]:
    return weft.compile(function, options=FORCED, dynamic=dynamic, fullgraph=True)


def same_step(
    model: nn.Module, other: nn.Module, compiled: Callable[..., Any], *inputs: Tensor
) -> None:
    """One step of ``model`` in eager and of its copy ``other`` compiled give the same."""
    losses = []
    for module, call in ((model, model), (other, compiled)):
        module.zero_grad()
        losses.append(call(*inputs))
        (losses[-1] * 0.3).backward()
    torch.testing.assert_close(losses[1], losses[0])
    for want, got in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)


def test_a_model_with_tied_weights() -> None:
    model = Model()
    other = copy.deepcopy(model)
    compiled = in_blocks(other)
    for shape in ((3, 16), (3, 16)):
        same_step(model, other, compiled, tokens(*shape), tokens(*shape))
    with torch.no_grad():
        inputs = tokens(3, 16), tokens(3, 16)
        torch.testing.assert_close(compiled(*inputs), model(*inputs))


def test_rows_vary() -> None:
    model = Model()
    other = copy.deepcopy(model)
    options = {**FORCED, "error_on_recompile": True}
    compiled = weft.compile(other, options=options, dynamic=True, fullgraph=True)
    for shape in ((3, 16), (2, 9), (5, 7), (11, 2)):
        same_step(model, other, compiled, tokens(*shape), tokens(*shape))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_logits_are_never_whole(tmp_path: Path, dynamic: bool, training: bool) -> None:
    model = Model()
    options = {**FORCED, "dump_directory": tmp_path}
    with torch.set_grad_enabled(training):
        weft.compile(model, options=options, dynamic=dynamic)(tokens(3, 16), tokens(3, 16))
    (graph,) = tmp_path.glob("*/3_forward.py")
    matmuls = re.findall(r"aten\.(?:add)?mm\.default\(", graph.read_text())
    assert len(matmuls) == 1 + (12 if training else 4)  # the layer's, and three or one a block
    (schedule,) = tmp_path.glob("*/5_schedule.txt")
    assert f"float32[48, {COLUMNS}]" not in schedule.read_text()


def loss(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(h, w).float(), targets)


def operands(rows: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    h = torch.randn(rows, HIDDEN, dtype=dtype, requires_grad=True)
    w = torch.randn(COLUMNS, HIDDEN, dtype=dtype, requires_grad=True)
    return [h, w, tokens(rows)]


def beside_eager(compiled: Callable[..., Any], inputs: list[Tensor], **close: float) -> None:
    want, got = loss(*inputs), compiled(*inputs)
    torch.testing.assert_close(got, want, equal_nan=True)
    gradients = [torch.autograd.grad(r, inputs[:2], retain_graph=True) for r in (want, got)]
    torch.testing.assert_close(*reversed(gradients), equal_nan=True, **close)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    close = {} if dtype is torch.float64 else {"rtol": 2e-2, "atol": 2e-3}
    beside_eager(in_blocks(loss), operands(40, dtype), **close)


def test_all_targets_ignored() -> None:
    h, w, targets = operands(40)
    compiled = in_blocks(loss)
    beside_eager(compiled, [h, w, targets])
    beside_eager(compiled, [h, w, targets.fill_(-100)])


def test_no_rows() -> None:
    compiled = in_blocks(loss, dynamic=True)
    for rows in (40, 33, 2, 0):
        beside_eager(compiled, operands(rows))


@pytest.mark.parametrize("target", [COLUMNS, -1])
def test_a_target_out_of_range_is_eagers_error(target: int) -> None:
    h, w, targets = operands(40)
    compiled = in_blocks(loss)
    beside_eager(compiled, [h, w, targets])
    targets[37] = target
    for call in (loss, compiled):
        with pytest.raises(IndexError):
            call(h, w, targets)


def test_backward_twice_and_gradients_of_gradients() -> None:
    h, w, targets = operands(40, torch.float64)
    compiled = in_blocks(loss)
    beside_eager(compiled, [h, w, targets])
    found = []
    for call in (loss, compiled):
        (gradient,) = torch.autograd.grad(call(h, w, targets), h, create_graph=True)
        found.append(torch.autograd.grad(gradient.pow(2).sum(), (h, w)))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_gradient_that_nobody_asks_for(frozen: int) -> None:
    inputs = operands(40)
    inputs[frozen].requires_grad_(False)
    wanted = inputs[1 - frozen]
    gradients = [torch.autograd.grad(c(*inputs), wanted) for c in (loss, in_blocks(loss))]
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    def step(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return F.cross_entropy(F.linear(h, w), targets)

    inputs = operands(40)
    want, got = step(*inputs), in_blocks(step)(*inputs)
    torch.testing.assert_close(got, want)
    scale = torch.tensor(1024.0)
    gradients = [torch.autograd.grad(r, inputs[:2], scale) for r in (want, got)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=2e-2, atol=0.3)


def test_runs_are_equal_to_the_bit() -> None:
    inputs = operands(40)
    compiled = in_blocks(loss)
    runs = [torch.autograd.grad(compiled(*inputs), inputs[:2]) for _ in range(3)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def test_logits_that_are_returned_stay() -> None:
    def both(h: Tensor, w: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        scores = F.linear(h, w)
        return F.cross_entropy(scores, targets), scores

    inputs = operands(40)
    compiled = in_blocks(both)
    torch.testing.assert_close(compiled(*inputs), both(*inputs))


def test_eagers_bits_are_not_in_blocks() -> None:
    inputs = operands(40)
    compiled = weft.compile(loss, options={**FORCED, "numerics": "eager"})
    gradients = [torch.autograd.grad(c(*inputs), inputs[:2]) for c in (loss, compiled)]
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize("value", [-1, "all", 2.5])
def test_a_value_that_the_option_cannot_have(value: Any) -> None:
    with pytest.raises(RuntimeError, match="row_block_bytes"):
        weft.compile(loss, options={"row_block_bytes": value})
