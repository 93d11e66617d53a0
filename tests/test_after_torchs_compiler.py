"""What torch's compiler leaves replaced in a process that has used it is seen through."""

from __future__ import annotations

import copy

import pytest
import torch
import weft
from torch import Tensor, nn
from torch._dynamo.eval_frame import TorchPatcher
from torch._dynamo.mutation_guard import install_generation_tagging_init


@pytest.fixture(autouse=True)
def _as_torch_compile_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after ``torch.compile``; the methods of modules are put back."""
    methods = {name: vars(nn.Module)[name] for name in ("__init__", "__setstate__")}
    TorchPatcher.patch()
    for name, method in methods.items():
        monkeypatch.setattr(nn.Module, name, method)
    for _ in range(2):  # a process may have done so before
        monkeypatch.setattr(nn.Module, "___needs_generation_tag_patch", True, raising=False)
        install_generation_tagging_init()


@pytest.mark.parametrize(
    "optimizer_class", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop]
)
def test_the_first_step_of_an_optimizer(optimizer_class: type[torch.optim.Optimizer]) -> None:
    assert getattr(optimizer_class._init_group, "__wrapped__", None) is not None  # type: ignore[attr-defined]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    for run in (step, weft.compile(step, fullgraph=True)):
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        optimizer = optimizer_class(model.parameters(), lr=0.1)
        losses.append([run(model, optimizer, torch.ones(2, 3)).detach() for _ in range(3)])
    torch.testing.assert_close(*losses)


class Scaled(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x * self.by


def test_modules_made_and_copied_inside() -> None:
    module = nn.Linear(3, 3)

    def program(x: Tensor) -> Tensor:
        return Scaled(2.0)(copy.deepcopy(module)(x))

    x = torch.ones(2, 3)
    torch.testing.assert_close(weft.compile(program, fullgraph=True)(x), program(x))
