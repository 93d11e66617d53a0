"""``weft.compile(optimizer.step)`` beside eager steps: parameters, state, and how often it compiles."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import weft
from torch import Tensor, nn
from weft.report import CompileLog, observe

from .staged_backend import by_operators


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def gradients(*modules: nn.Module) -> None:
    """New gradients of the same loss for each module."""
    x = torch.randn(8, 5)
    for module in modules:
        module.zero_grad(set_to_none=True)
        module(x).pow(2).mean().backward()


def state_of(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    for state in optimizer.state.values():
        yield from state.items()


def check_same(plain: torch.optim.Optimizer, other: torch.optim.Optimizer) -> None:
    for group, compiled_group in zip(plain.param_groups, other.param_groups, strict=True):
        torch.testing.assert_close(compiled_group["params"], group["params"], equal_nan=True)
    for (name, want), (compiled_name, got) in zip(state_of(plain), state_of(other), strict=True):
        assert compiled_name == name
        if want is not None:
            torch.testing.assert_close(
                got, want, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
            )


class Pair:
    """Two networks alike, and an optimizer of each: the first steps eagerly, the second compiled."""

    def __init__(self, make: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]) -> None:
        self.plain = network()
        self.model = copy.deepcopy(self.plain)
        self.first, self.second = (make(m.parameters()) for m in (self.plain, self.model))

    @functools.cached_property
    def compiled_step(self) -> Callable[[], Any]:
        """Made at the first step: a scheduler puts a method of its own in the place of ``step``."""
        return weft.compile(self.second.step)

    def step(self) -> CompileLog:
        """Both step with new gradients and come to the same; what the second compiled for it."""
        gradients(self.plain, self.model)
        self.first.step()
        with observe(CompileLog()) as log:
            self.compiled_step()
        check_same(self.first, self.second)
        return log


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "sgd of lists": (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
    "adam": (torch.optim.Adam, {"weight_decay": 0.1}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True, "maximize": True}),
    "adamw": (torch.optim.AdamW, {}),
    "adamw of lists": (torch.optim.AdamW, {"foreach": True}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1}),
    "adagrad of lists": (torch.optim.Adagrad, {"lr_decay": 0.1, "foreach": True}),
    "nadam": (torch.optim.NAdam, {}),
    "adamax": (torch.optim.Adamax, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "radam": (torch.optim.RAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "rprop": (torch.optim.Rprop, {}),
    "adafactor": (torch.optim.Adafactor, {"weight_decay": 0.1}),
    "adafactor of lists": (
        torch.optim.Adafactor,
        {"foreach": True, "maximize": True, "eps": (1e-7, 1e-3)},  # torch 2.11 wants the first
    ),
}
SLOW = {"nadam", "adamax", "adadelta", "amsgrad", "adagrad of lists", "radam", "rprop"}


def case(name: str) -> Any:
    return pytest.param(name, id=name, marks=pytest.mark.slow if name in SLOW else ())


@pytest.mark.parametrize("name", [case(name) for name in CASES])
def test_steps_are_eagers_and_compiled_at_most_twice(name: str) -> None:
    """The first step makes the state, the second finds it; later ones have new gradients only."""
    kind, options = CASES[name]
    pair = Pair(lambda parameters: kind(parameters, lr=1e-2, **options))
    for number in range(5):
        log = pair.step()
        compiled = [graph for graph in log.graphs if graph.kernel_count]
        assert len(compiled) <= (1 if number < 2 else 0)
        assert all(graph.eager_reason is None for graph in log.graphs)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_a_learning_rate_in_a_tensor_changes_without_compiling(kind: Any) -> None:
    rates = [torch.tensor(1e-2) for _ in range(2)]
    left = iter(rates)
    pair = Pair(lambda parameters: kind(parameters, lr=next(left)))
    for number in range(4):
        log = pair.step()
        assert number < 2 or not log.graphs
        for rate in rates:
            rate.mul_(0.5)


def test_a_learning_rate_changed_by_a_scheduler() -> None:
    pair = Pair(lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))
    schedules = [
        torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
        for optimizer in (pair.first, pair.second)
    ]
    for _ in range(5):
        pair.step()
        for schedule in schedules:
            schedule.step()
        check_same(pair.first, pair.second)


SCHEDULES: dict[str, Any] = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.95**epoch),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=60),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=50),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_schedules_compile_nothing_after_the_second_step(kind: Any, name: str) -> None:
    """Learning rate, momentum and step are numbers of Python that differ in each of fifty steps."""
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    pair = Pair(lambda parameters: kind(parameters, lr=1e-2, **options))
    schedules = [SCHEDULES[name](optimizer) for optimizer in (pair.first, pair.second)]
    for number in range(50):
        log = pair.step()
        assert number < 2 or not log.graphs
        for schedule in schedules:
            schedule.step()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_updates_of_torchs_own_stay_eager(kind: Any) -> None:
    pair = Pair(lambda parameters: kind(parameters, lr=1e-2, fused=True))
    for _ in range(3):
        pair.step()


def test_sparse_gradients_stay_eager() -> None:
    """How many elements a sparse tensor has is not known while capturing."""
    plain = nn.EmbeddingBag(6, 4, sparse=True, mode="sum")
    model = copy.deepcopy(plain)
    first, second = (torch.optim.SparseAdam(m.parameters(), lr=1e-2) for m in (plain, model))
    step = weft.compile(second.step)
    for number in range(3):
        tokens = torch.randint(0, 6, (2, 1 + number))
        for module in (plain, model):
            module.zero_grad(set_to_none=True)
            module(tokens).pow(2).sum().backward()
        first.step()
        step()
        check_same(first, second)


def test_state_that_was_loaded() -> None:
    plain = network()
    model = copy.deepcopy(plain)
    first, second = (torch.optim.Adam(m.parameters(), lr=1e-2) for m in (plain, model))
    gradients(plain)
    first.step()
    model.load_state_dict(plain.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    step = weft.compile(second.step)
    for _ in range(2):
        gradients(plain, model)
        first.step()
        step()
        check_same(first, second)


@pytest.mark.parametrize("foreach", [False, True])
def test_a_loaded_step_that_raises(foreach: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adafactor raises a count of steps to a negative power: the graph checks that it is positive."""
    monkeypatch.setattr(weft.api, "foreign_backend", lambda backend: backend)
    pair = Pair(
        lambda parameters: torch.optim.Adafactor(parameters, eps=(1e-7, 1e-3), foreach=foreach)
    )
    pair.compiled_step = weft.compile(pair.second.step, backend=by_operators)
    pair.step()
    for step in (-1.0, -2.0):
        gradients(pair.plain, pair.model)
        said = []
        for optimizer, run in ((pair.first, pair.first.step), (pair.second, pair.compiled_step)):
            for state in optimizer.state.values():
                state["step"].fill_(step)
            with pytest.raises((TypeError, ZeroDivisionError)) as caught:
                run()
            said.append(repr(caught.value))
        assert said[0] == said[1]
        check_same(pair.first, pair.second)


@pytest.fixture
def lbfgs_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own compiler, once used in a process, keeps its step, and what that calls, from compilers."""
    written = inspect.unwrap(
        torch.optim.LBFGS.step, stop=lambda f: f.__code__.co_filename.endswith("_contextlib.py")
    )
    monkeypatch.setattr(torch.optim.LBFGS, "step", written)


@pytest.mark.usefixtures("lbfgs_as_written")
@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_an_optimizer_that_evaluates_the_loss_itself(line_search: str | None) -> None:
    """LBFGS calls a closure with gradients enabled, from a step that has them disabled.

    The closure is one graph, however often it is called; the step is left to CPython.
    """
    losses: list[Tensor] = []
    log = CompileLog()
    for compiled in (False, True):
        model = network().double()
        options = {"lr": 0.5, "max_iter": 6, "line_search_fn": line_search}
        optimizer = torch.optim.LBFGS(model.parameters(), **options)
        x = torch.randn(16, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

        def closure(model: Any = model, optimizer: Any = optimizer, x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = (model(x) - x[:, :2]).square().mean()
            loss.backward()
            return loss  # type: ignore[no-any-return]

        step = weft.compile(optimizer.step) if compiled else optimizer.step
        with observe(log):
            losses += [step(closure).detach() for _ in range(2)]
        losses += list(model.parameters())
    half = len(losses) // 2
    torch.testing.assert_close(losses[half:], losses[:half], rtol=1e-8, atol=1e-8)
    assert len(log.graphs) == 1
    assert {b.kind for b in log.graph_breaks} == {"function that is left to CPython"}


def test_a_whole_step_breaks_only_at_backward() -> None:
    """Forward and loss are one graph, the update another; there is no third with kernels."""

    def train(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = module(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    plain = network()
    model = copy.deepcopy(plain)
    first, second = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (plain, model))
    compiled = weft.compile(train)
    for number in range(4):
        x = torch.randn(8, 5)
        with observe(CompileLog()) as log:
            got = compiled(model, second, x)
        torch.testing.assert_close(got, train(plain, first, x))
        check_same(first, second)
        assert len([g for g in log.graphs if g.kernel_count]) <= (2 if number < 2 else 0)


@pytest.mark.parametrize("foreach", [False, True])
def test_branches_on_counts_of_steps_are_in_the_graph(
    foreach: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step is rectified, or averaged, from some step on: the graph chooses, and no other is compiled."""
    kinds: dict[Any, dict[str, Any]] = {
        torch.optim.RAdam: {"betas": (0.6, 0.7), "weight_decay": 0.1},
        torch.optim.ASGD: {"t0": 2.0, "lambd": 0.1},
        torch.optim.NAdam: {"decoupled_weight_decay": True, "weight_decay": 0.1},
    }
    # Writes in branches are there for the stages that follow, which make values of them.
    monkeypatch.setattr(weft.api, "foreign_backend", lambda backend: backend)
    for kind, options in kinds.items():
        pair = Pair(functools.partial(kind, lr=0.1, foreach=foreach, **options))
        pair.compiled_step = weft.compile(pair.second.step, backend=by_operators)
        for number in range(4):
            log = pair.step()
            assert not log.graph_breaks
            assert len(log.conversions) <= (number < 2)


class Rectified(torch.optim.Optimizer):
    """An optimizer as people write them: the count of steps is in a tensor, which Python reads."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["mean"] = torch.zeros_like(parameter)
                    state["square"] = torch.zeros_like(parameter)
                state["step"] += 1
                count = state["step"].item()
                state["mean"].lerp_(parameter.grad, 1 - first)
                state["square"].lerp_(parameter.grad.square(), 1 - second)
                rate = group["lr"] * math.sqrt(1 - second**count) / (1 - first**count)
                norm = parameter.norm().item() ** 0.5
                step = state["mean"] / (state["square"].sqrt() + 1e-8)
                parameter.add_(step, alpha=-rate * count**-0.1 * max(norm, 0.1))


def test_counts_and_norms_that_python_reads() -> None:
    pair = Pair(lambda parameters: Rectified(parameters, lr=0.1))
    for number in range(4):
        log = pair.step()
        assert not log.graph_breaks
        assert len([graph for graph in log.graphs if graph.kernel_count]) <= (number < 2)
        assert all(graph.eager_reason is None for graph in log.graphs)
