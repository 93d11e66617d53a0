"""Backward of a loss is compiled as such where other results come with it; whatever is asked for is right."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from torch.nn import functional as F

RESULTS = ("loss", "penalty", "logits", "hidden")


def model(x: Tensor, weight: Tensor, head: Tensor) -> tuple[Tensor, ...]:
    hidden = (x @ weight).tanh()
    logits = hidden @ head
    loss = F.cross_entropy(logits, torch.arange(4))
    return loss, hidden.square().mean(), logits, hidden


def arguments() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 3), (3, 5), (5, 6))
    return [
        torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes
    ]


def gradients(f: Any, asked: tuple[str, ...], **options: Any) -> list[Any]:
    given = arguments()
    results = dict(zip(RESULTS, f(*given), strict=True))
    total = sum(results[name].square().sum() for name in asked)
    found = torch.autograd.grad(total, given, allow_unused=True, **options)
    if options.get("create_graph"):
        found += torch.autograd.grad(found[0].square().sum(), given, allow_unused=True)
    elif options.get("retain_graph"):
        found += torch.autograd.grad(results["logits"].sum(), given[:2])
    return [*found]


@pytest.mark.parametrize("options", [{}, {"retain_graph": True}, {"create_graph": True}], ids=str)
def test_gradients_of_any_results(options: dict[str, bool]) -> None:
    compiled = weft.compile(model, fullgraph=True)
    for count in range(1, len(RESULTS) + 1):
        for asked in itertools.combinations(RESULTS, count):
            found, wanted = (
                gradients(compiled, asked, **options),
                gradients(model, asked, **options),
            )
            torch.testing.assert_close(found, wanted, msg=lambda m, a=asked: f"{a}: {m}")


def test_gradients_between_results() -> None:
    def between(f: Any, target: str, source: str) -> Any:
        results = dict(zip(RESULTS, f(*arguments()), strict=True))
        return torch.autograd.grad(results[target].sum(), results[source])

    compiled = weft.compile(model, fullgraph=True)
    for target, source in (("loss", "logits"), ("loss", "hidden"), ("logits", "hidden")):
        found, wanted = between(compiled, target, source), between(model, target, source)
        torch.testing.assert_close(found, wanted)


def test_hooks_of_results_are_called_as_in_eager() -> None:
    def observed(f: Any) -> list[tuple[str, Tensor]]:
        seen: list[tuple[str, Tensor]] = []
        results = dict(zip(RESULTS, f(*arguments()), strict=True))
        del results["penalty"]
        for name, result in results.items():
            result.register_hook(lambda g, name=name: seen.append((name, g)))
        results["loss"].backward()
        return seen

    found, wanted = observed(weft.compile(model, fullgraph=True)), observed(model)
    assert [name for name, _ in found] == [name for name, _ in wanted]
    torch.testing.assert_close([g for _, g in found], [g for _, g in wanted])


class Rounded(torch.autograd.Function):
    """Its gradient is not linear: by what it is divided depends on it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        scale = gradient.abs().max().clamp(min=1e-9)
        rounded = (gradient / scale * 8).round() * scale / 8
        return rounded @ weight.t(), x.t() @ rounded


def with_rule(x: Tensor, weight: Tensor, head: Tensor) -> tuple[Tensor, ...]:
    hidden = Rounded.apply(x, weight).tanh()
    logits = hidden @ head
    return F.cross_entropy(logits, torch.arange(4)), hidden.square().mean(), logits, hidden


def test_gradients_of_any_results_through_a_rule(tmp_path: Path) -> None:
    """What the program wrote gets one sum, whichever results have gradients."""
    compiled = weft.compile(with_rule, fullgraph=True, options={"dump_directory": tmp_path})
    for asked in (
        ("loss",),
        ("loss", "penalty"),
        ("loss", "logits"),
        ("hidden", "penalty"),
        RESULTS,
    ):
        found, wanted = gradients(compiled, asked), gradients(with_rule, asked)
        torch.testing.assert_close(found, wanted, msg=lambda m, a=asked: f"{a}: {m}")
    (schedule,) = tmp_path.glob("*/5_schedule_backward.txt")
    assert "tangent_0" in schedule.read_text() and "tangent_2" not in schedule.read_text()
    (graph,) = tmp_path.glob("*/3_backward.py")
    assert "aten.clone" not in graph.read_text()  # what the rule computed is given as it is
