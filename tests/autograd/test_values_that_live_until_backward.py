"""What is written between forward and backward: gradients, and errors, are those of eager."""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import weft
from torch import Tensor

from tests.regions.random_programs import COLUMNS, ROWS, Program

Function = Callable[..., Sequence[Tensor]]
# Is given the leaves, what the program was given (computed from them) and what it returned; runs backward.
Use = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], None]


def all_backward(leaves: Sequence[Tensor], given: Sequence[Tensor], got: Sequence[Tensor]) -> None:
    losses = [(k + 1) * (r * r).sum() for k, r in enumerate(got) if r.requires_grad]
    torch.stack(losses).sum().backward()


def outcome(program: Function, use: Use = all_backward) -> Any:
    """Results, whether they have gradients, and the leaves' gradients; the error of backward instead."""
    generator = torch.Generator().manual_seed(0)
    shape = (ROWS, COLUMNS)
    leaves = [torch.randint(-3, 4, shape, generator=generator).double() for _ in range(2)]
    given = [leaf.requires_grad_() * 1 for leaf in leaves]
    got = program(*given)
    values = [result.detach().clone() for result in got]
    try:
        use(leaves, given, got)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return "written to"
    return values, [r.requires_grad for r in got], [leaf.grad for leaf in leaves]


def check(got: Any, want: Any, message: str = "") -> None:
    if isinstance(want, str) or isinstance(got, str):
        assert got == want, message
    else:
        torch.testing.assert_close(
            got, want, rtol=1e-10, atol=1e-10, msg=lambda m: f"{m}\n{message}"
        )


def beside_eager(program: Function, use: Use = all_backward) -> Any:
    want = outcome(program, use)
    got = outcome(weft.compile(program, fullgraph=True), use)
    check(got, want)
    return want


def write_inputs(leaves: Any, given: Any, got: Any) -> None:
    with torch.no_grad():
        for tensor in given:
            tensor.mul_(3)
    all_backward(leaves, given, got)


def write_results(leaves: Any, given: Any, got: Any) -> None:
    losses = [r.sum() for r in got if r.requires_grad]
    with torch.no_grad():
        for tensor in got:
            tensor.fill_(7)
    torch.stack(losses).sum().backward()


def use_first(leaves: Any, given: Any, got: Any) -> None:
    got[0].sum().backward()


def test_a_choice_keeps_its_mask() -> None:
    want = beside_eager(lambda a, b: [torch.where(a > b, a * 2, b) + 0], write_inputs)
    assert want != "written to"


def test_a_sum_is_kept_rather_than_its_terms() -> None:
    assert beside_eager(lambda a, b: [(a + b).sin().cos()], write_inputs) != "written to"


def test_eager_holds_the_input() -> None:
    assert beside_eager(lambda a, b: [a.sin() + b], write_inputs) == "written to"


def test_results_that_eager_does_not_hold() -> None:
    assert beside_eager(lambda a, b: [a * 2, (a * 2 + 1).sin() + b], write_results) != "written to"


def test_results_that_eager_holds() -> None:
    assert beside_eager(lambda a, b: [(a * 2).exp(), b * 3], write_results) == "written to"


def test_a_written_input_that_backward_needs() -> None:
    def program(a: Tensor, b: Tensor) -> list[Tensor]:
        a.mul_(2)
        return [(a + b) * b]

    beside_eager(program)


def test_inputs_without_a_gradient_this_time() -> None:
    """None, not zeros: an optimizer leaves such a parameter as it is."""
    want = beside_eager(lambda a, b: [a.sin(), b.cos()], use_first)
    assert want[2][1] is None


def test_gradients_of_what_is_overwritten_are_zero() -> None:
    def program(a: Tensor, b: Tensor) -> list[Tensor]:
        c = a * 2
        c.zero_()
        b.copy_((b > 0).double())
        return [c, b * 3]

    want = beside_eager(program)
    assert all(not gradient.any() for gradient in want[2])


def test_writes_without_gradients() -> None:
    def program(a: Tensor, b: Tensor) -> list[Tensor]:
        w = a * 2
        row = w[0]
        with torch.no_grad():
            w.mul_(0.5)
            row.add_(1)
        return [w * b, row.sin(), w.cos()]

    beside_eager(program)


def test_writes_through_detached_views() -> None:
    def program(a: Tensor, b: Tensor) -> list[Tensor]:
        w = a * 2
        w.detach()[1:].mul_(0.5)
        w.detach()[0].copy_(b[0] * 3)
        held = torch.zeros_like(b)
        held.detach().copy_(b * 3)
        return [w * b, w[2].sin(), held * b]

    beside_eager(program)


def test_writes_with_gradients_after_writes_without() -> None:
    def program(a: Tensor, b: Tensor) -> list[Tensor]:
        total = torch.zeros_like(a)
        total.add_(a * b)
        with torch.no_grad():
            total.clamp_(-4, 4)
        total.mul_(b)
        return [total, total * a]

    beside_eager(program)


def test_writes_through_views_of_results_and_inputs() -> None:
    def program(a: Tensor, b: Tensor) -> list[Tensor]:
        c = a * 2
        return [c, c[0], b[1:], b + 1]

    def write_views(leaves: Any, given: Any, got: Any) -> None:
        got[1].mul_(3)
        got[2].mul_(5)
        ((got[0] * got[0]).sum() + (given[1] * given[1]).sum()).backward()

    assert beside_eager(program, write_views) != "written to"


def test_backward_to_some_of_the_inputs() -> None:
    def second_only(leaves: Any, given: Any, got: Any) -> None:
        got[0].sum().backward(inputs=[leaves[1]])

    want = beside_eager(lambda a, b: [(a * b).sin()], second_only)
    assert want[2][0] is None


def test_parameters_that_are_frozen_and_freed_again() -> None:
    seen = []
    for compiled in (False, True):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2)
        called: Any = weft.compile(layer, fullgraph=True) if compiled else layer
        found: list[Any] = []
        for frozen in (False, True, False):
            layer.zero_grad()
            layer.weight.requires_grad_(not frozen)
            called(torch.ones(4, 3)).square().sum().backward()
            found += [parameter.grad for parameter in layer.parameters()]
        seen.append(found)
    assert seen[0][2] is None
    assert seen[1][2] is None
    torch.testing.assert_close(
        [g for g in seen[1] if g is not None], [g for g in seen[0] if g is not None]
    )


class Averaged(torch.nn.Module):
    """A weight that each call bounds and normalises, and its moving average, which the call uses too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 9).view(3, 3))
        self.average: Tensor
        self.register_buffer("average", torch.zeros(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.clamp_(-0.5, 0.5)
            self.weight.div_(self.weight.norm())
            self.average.mul_(0.9).add_(self.weight, alpha=0.1)
        return (x @ self.weight + (x @ self.average).tanh()).square().sum()


def test_training_a_weight_that_forward_writes() -> None:
    seen = []
    for compiled in (False, True):
        model = Averaged()
        called: Any = weft.compile(model, fullgraph=True) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(0)
        losses = []
        for _ in range(5):
            loss = called(torch.randn(4, 3, generator=generator))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        seen.append([*losses, model.weight.detach(), model.average])
    torch.testing.assert_close(seen[1], seen[0])


# Seeds of random programs whose graphs end at branches, so that later graphs write to what earlier ones
# were given.  WEFT_GRADIENT_PROGRAMS says how many there are.
SEEDS = range(int(os.environ.get("WEFT_GRADIENT_PROGRAMS", "10")))
# In this one what a branch writes to depends on the side; without its region the graph breaks there.
WITH_OTHER_GRADIENTS_ON_A_SIDE = 2022
# In these a graph's result is overwritten by a later one: eager holds nothing for it then.
WITH_UNUSED_RESULTS = (39, 78)


@pytest.mark.parametrize(
    "seed", sorted({*SEEDS, *WITH_UNUSED_RESULTS, WITH_OTHER_GRADIENTS_ON_A_SIDE})
)
def test_random_programs_with_writes(seed: int) -> None:
    source = Program(seed).source
    name = f"<gradients of program {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(source, name, "exec"), scope)
    want = outcome(scope["program"])
    if want == "written to":
        pytest.skip("not a program of eager's")
    keeps = seed == WITH_OTHER_GRADIENTS_ON_A_SIDE or seed % 2
    options = {"keep_control_flow": bool(keeps and seed not in WITH_UNUSED_RESULTS)}
    got = outcome(weft.compile(scope["program"], options=options))
    check(got, want, source)
