"""``torch.amp.GradScaler`` in captured steps: one graph once the optimizer has its state, eager's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor, nn

unscale: Callable[..., None] = torch._amp_foreach_non_finite_check_and_unscale_

GRADIENTS = {
    "several": lambda: [torch.randn(3, 4), torch.randn(5), torch.randn(())],
    "none": list,
    "empty": lambda: [torch.randn(0, 3), torch.randn(2)],
    "transposed": lambda: [torch.randn(3, 4).t(), torch.randn(6)[::2]],
    "bfloat16": lambda: [torch.randn(9).bfloat16(), torch.randn(3, 3).bfloat16()],
    "float16": lambda: [torch.randn(9).half() * 1000],
    "float64": lambda: [torch.randn(4).double()],
    "mixed": lambda: [torch.randn(4), torch.randn(4).bfloat16(), torch.randn(2).double()],
}


@pytest.mark.parametrize("spoiled", [None, float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("name", GRADIENTS)
def test_unscaled_gradients_are_eagers(name: str, spoiled: float | None) -> None:
    torch.manual_seed(0)
    gradients = GRADIENTS[name]()
    if spoiled is not None and gradients:
        gradients[-1].view(-1)[-1:] = spoiled
    numbers = [torch.zeros(()), torch.tensor([1 / 3.0])]
    copies = [[t.clone() for t in part] for part in (gradients, numbers)]

    def run(gradients: list[Tensor], found: Tensor, inverse: Tensor) -> Tensor:
        unscale(gradients, found, inverse)
        return found * 2

    want = run(gradients, *numbers)
    got = weft.compile(run, fullgraph=True)(copies[0], *copies[1])
    assert torch.equal(got, want)
    for mine, theirs in zip([*copies[0], *copies[1]], [*gradients, *numbers], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda gradients, numbers: gradients.append(torch.arange(3)),
        lambda gradients, numbers: numbers.__setitem__(0, torch.zeros((), dtype=torch.float64)),
        lambda gradients, numbers: numbers.__setitem__(1, torch.ones(2)),
    ],
)
def test_what_eager_refuses_raises(change: Callable[[Any, Any], None]) -> None:
    gradients, numbers = [torch.ones(3)], [torch.zeros(()), torch.ones(1)]
    change(gradients, numbers)

    def run(gradients: list[Tensor], found: Tensor, inverse: Tensor) -> Tensor:
        unscale(gradients, found, inverse)
        return found * 2

    with pytest.raises(RuntimeError) as expected:
        run(gradients, *numbers)
    with pytest.raises(RuntimeError) as raised:
        weft.compile(run)(gradients, *numbers)
    assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]


def adversarial(compile: Callable[[Any], Any], log: weft.CompileLog) -> Any:
    """Two optimizers and one scaler; the third step's loss is infinite."""
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 3), nn.Linear(3, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (generator, critic)]
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        fake = generator(x)
        of_critic = F.softplus(critic(fake.detach())).mean()
        optimizers[1].zero_grad()
        scaler.scale(of_critic).backward()
        scaler.step(optimizers[1])
        of_generator = F.softplus(-critic(generator(x))).mean()
        optimizers[0].zero_grad()
        scaler.scale(of_generator).backward()
        scaler.step(optimizers[0])
        scaler.update()
        return of_critic.detach(), of_generator.detach()

    compiled, found = compile(step), []
    for number in range(6):
        x = torch.randn(5, 4) * (float("inf") if number == 2 else 1.0)
        with weft.observe(log):
            found += [*compiled(x), scaler.get_scale()]
    return found, [p.detach() for m in (generator, critic) for p in m.parameters()]


def test_two_optimizers_share_a_scaler() -> None:
    log = weft.CompileLog()
    want = adversarial(lambda step: step, log)
    got = adversarial(lambda step: weft.compile(step, fullgraph=True), log)
    torch.testing.assert_close(got, want, equal_nan=True)


def test_a_branch_writes_to_weights_behind_their_backward() -> None:
    """What backward has let go of may be written to, as data says, and what it holds."""

    def step(weight: Tensor, x: Tensor, retains: bool) -> tuple[Tensor, Tensor]:
        loss = (x @ weight.square()).sum()
        (gradient,) = torch.autograd.grad(loss, weight, retain_graph=retains)
        with torch.no_grad():
            if gradient.isfinite().all():
                weight.sub_(0.1 * gradient)
        return loss, gradient

    for retains in (False, True):
        log, results = weft.CompileLog(), []
        for run in (step, weft.compile(step)):
            torch.manual_seed(0)
            weight = torch.randn(3, 2, requires_grad=True)
            with weft.observe(log):
                loss, gradient = run(weight, torch.randn(4, 3), retains)
            with pytest.raises(RuntimeError, match="second time" if not retains else "version"):
                loss.backward()
            results.append([weight.detach(), loss.detach(), gradient])
        torch.testing.assert_close(results[1], results[0])
        assert not log.graph_breaks
