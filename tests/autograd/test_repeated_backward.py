"""Several backward calls through one compiled graph, as a GAN's step makes them: beside eager."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import nn
from torch.utils import _pytree as pytree
from weft_guards import note_faithful_hook

from tests.staged_backend import by_operators

Step = Callable[..., Any]


class Nets:
    """A generator, a discriminator, and what a step leaves in their parameters."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.g = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.d = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.w = torch.full((4,), 1.5, requires_grad=True)

    def parameters(self) -> list[torch.Tensor]:
        return [*self.g.parameters(), *self.d.parameters(), self.w]


def gan(n: Nets, optimizer: Any = torch.optim.SGD) -> Step:
    of_g, of_d = optimizer(n.g.parameters(), lr=0.05), optimizer(n.d.parameters(), lr=0.05)

    def step(x: torch.Tensor) -> Any:
        of_d.zero_grad()
        made = n.g(x.cos())
        loss_d = n.d(x).mean() - n.d(made.detach()).mean()
        loss_d.backward()
        of_d.step()
        of_g.zero_grad()
        loss_g = -n.d(made).mean()
        loss_g.backward()
        of_g.step()
        return loss_d.detach(), loss_g.detach()

    return step


def gan_with_adam(n: Nets) -> Step:
    return gan(n, torch.optim.Adam)


def apart(n: Nets) -> Step:
    def step(x: torch.Tensor) -> Any:
        a, b = n.g(x).exp().sum(), n.d(x).exp().sum()
        a.backward()
        b.backward()
        return a.detach() + b.detach()

    return step


def apart_the_other_way(n: Nets) -> Step:
    def step(x: torch.Tensor) -> Any:
        a, b = n.g(x).exp().sum(), n.d(x).exp().sum()
        (grads,) = torch.autograd.grad(b, [n.d[0].weight])
        a.backward()
        return grads

    return step


def three(n: Nets) -> Step:
    def step(x: torch.Tensor) -> Any:
        a, b, c = n.g(x).exp().sum(), n.d(x).exp().sum(), (n.w * x).sin().sum()
        b.backward()
        (c + c * 2).backward()
        a.backward()

    return step


def shared_sums(n: Nets) -> Step:
    def step(x: torch.Tensor) -> Any:
        h = n.w + x
        a, b = h.sum(), (h * 2).sum()
        a.backward()
        b.backward()

    return step


def the_same_sum(n: Nets) -> Step:
    def step(x: torch.Tensor) -> Any:
        y = (n.w + x).sum()
        y.backward()
        y.backward()

    return step


def retained(n: Nets) -> Step:
    def step(x: torch.Tensor) -> Any:
        h = n.g(x)
        a, b = (h**2).sum(), h.sin().sum()
        a.backward(retain_graph=True)
        b.backward(retain_graph=True)
        (a + b).backward()

    return step


def retained_at_first(n: Nets) -> Step:
    def step(x: torch.Tensor) -> Any:
        a, b = n.g(x).exp().sum(), n.d(x).exp().sum()
        a.backward(retain_graph=True)
        a.backward()
        b.backward()

    return step


def shared(n: Nets) -> Step:
    def step(x: torch.Tensor) -> Any:
        h = n.g(x)
        a, b = (h**2).sum(), h.sin().sum()
        a.backward()
        b.backward()

    return step


def twice(n: Nets) -> Step:
    def step(x: torch.Tensor) -> Any:
        y = n.g(x).exp().sum()
        y.backward()
        y.backward()

    return step


def second_of_three(n: Nets) -> Step:
    def step(x: torch.Tensor) -> Any:
        a, b = n.g(x).exp().sum(), n.d(x).exp().sum()
        a.backward()
        b.backward()
        a.backward()

    return step


def written_between(n: Nets) -> Step:
    def step(x: torch.Tensor) -> Any:
        a, b = n.g(x).exp().sum(), (n.w * n.w * x).sum()
        a.backward()
        with torch.no_grad():
            n.w.add_(1)
        b.backward()

    return step


def written_and_not_read(n: Nets) -> Step:
    def step(x: torch.Tensor) -> Any:
        a, b = n.g(x).exp().sum(), (n.w * n.w * x).sum()
        b.backward()
        with torch.no_grad():
            n.w.add_(1)
        a.backward()

    return step


def penalty(n: Nets) -> Step:
    def step(x: torch.Tensor) -> Any:
        x.requires_grad_()
        score = n.d(x).sum()
        (gradient,) = torch.autograd.grad(score, x, create_graph=True)
        (score + ((gradient.norm(dim=1) - 1) ** 2).mean()).backward()
        n.g(x).exp().sum().backward()

    return step


def chosen_inputs(n: Nets) -> Step:
    def step(x: torch.Tensor) -> Any:
        a, b = n.d(n.g(x)).sum(), n.w.exp().sum()
        a.backward(inputs=list(n.g.parameters()))
        b.backward()

    return step


STEPS = (
    gan, gan_with_adam, apart, apart_the_other_way, three, shared_sums, the_same_sum, retained,
    retained_at_first, shared, twice, second_of_three, written_between, written_and_not_read, penalty,
    chosen_inputs,
)  # fmt: skip
ERRORS = {"shared", "twice", "second_of_three", "written_between"}


def outcome(make: Callable[[Nets], Step], compiles: Callable[[Step], Step]) -> Any:
    """What three steps give and leave, or the message of the first's error."""
    nets = Nets()
    step = compiles(make(nets))
    found = []
    for k in range(3):
        torch.manual_seed(k)
        x = torch.randn(5 + k // 2, 4)
        try:
            result = step(x)
        except RuntimeError as error:
            return str(error)[:60].partition(" by an inplace")[0]
        state = [None if p.grad is None else p.grad.clone() for p in nets.parameters()]
        found.append((result, state, [p.detach().clone() for p in nets.parameters()]))
    return pytree.tree_leaves(found)


@pytest.mark.filterwarnings("ignore:weft. gradients of gradients")
@pytest.mark.parametrize("make", STEPS, ids=lambda make: make.__name__)
def test_like_eager(make: Callable[[Nets], Step]) -> None:
    expected = outcome(make, lambda step: step)
    found = outcome(make, lambda step: weft.compile(step, backend=by_operators))
    assert isinstance(expected, str) == (make.__name__ in ERRORS)
    if isinstance(expected, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("error:weft")
@pytest.mark.native
def test_native_programs() -> None:
    torch.testing.assert_close(outcome(gan, weft.compile), outcome(gan, lambda step: step))


def test_backward_outside() -> None:
    """The compiled function only gives what several backward calls begin with."""
    nets = Nets()

    @weft.compile(fullgraph=True, backend=by_operators)
    def losses(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = nets.w + x
        return nets.g(x).exp().sum(), nets.d(x).exp().sum(), h.sum(), (h * 2).sum()

    x = torch.linspace(-1, 1, 20).view(5, 4)
    for loss in losses(x):
        loss.backward()
    found = [p.grad for p in nets.parameters()]
    for p in nets.parameters():
        p.grad = None
    h = nets.w + x
    total = nets.g(x).exp().sum() + nets.d(x).exp().sum() + h.sum() + (h * 2).sum()
    total.backward()
    torch.testing.assert_close(found, [p.grad for p in nets.parameters()])


def test_a_graph_that_backward_only_passes() -> None:
    """Backward of one result goes through a later graph, none of whose other results it needs."""
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    v = torch.tensor([3.0, 4.0], requires_grad=True)

    @weft.compile(backend=by_operators)
    def first(x: torch.Tensor) -> Any:
        return (w * x).exp(), (v * x).exp()

    @weft.compile(backend=by_operators)
    def second(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a.sin(), b.sin()

    x = torch.tensor([0.1, 0.2])
    a, b = second(*first(x))
    a.sum().backward()
    b.sum().backward()
    expected = torch.autograd.grad((w * x).exp().sin().sum() + (v * x).exp().sin().sum(), [w, v])
    torch.testing.assert_close([w.grad, v.grad], list(expected))


def test_what_is_on_the_way_of_a_gradient_is_let_go() -> None:
    """Another result that needs the same values can't have its gradient then, as in eager."""
    w = torch.randn(4, 4, requires_grad=True)

    @weft.compile(backend=by_operators)
    def f(x: torch.Tensor) -> Any:
        h = (x @ w).sin()
        return (h @ w).exp().sum(), h.sum()

    x = torch.randn(4, 4)
    loss, rest = f(x)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        rest.backward()


def test_results_kept_for_another_backward_are_freed_with_it() -> None:
    w = torch.randn(4, requires_grad=True)

    @weft.compile(backend=by_operators)
    def f(x: torch.Tensor) -> Any:
        return (w * x).exp(), w.sin().exp()

    a, b = f(torch.randn(4))
    a.sum().backward()
    left = weakref.ref(b)
    del a, b
    assert left() is None  # no cycle with the node that keeps its values


def _offloaded(tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    return "offloaded", tensor * 2


HOOKS: dict[str, Any] = {
    "other objects": (_offloaded, lambda packed: packed[1] / 2),
    "other tensors": (lambda tensor: tensor * 2, lambda packed: packed / 2),
}
for _, unpack in HOOKS.values():  # so that compiled code runs under them, as under a checkpoint's
    note_faithful_hook(unpack)


@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("retain", [False, True])
def test_results_one_by_one_under_hooks_for_saved_tensors(hooks: str, retain: bool) -> None:
    """What is left for the other results is what the hooks give back."""

    def heads(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = (x * weight).tanh()
        return h.exp() * x.sin(), (x.cos() * weight).exp() + x.tanh()

    weight = torch.linspace(0.5, 1.5, 3, requires_grad=True)
    seen = []
    for call in (heads, weft.compile(heads)):
        x = torch.tensor([0.5, 0.25, -1.0], requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(*HOOKS[hooks]):
            first, second = call(x)
        found = torch.autograd.grad(first.sum(), [x, weight], retain_graph=retain)
        seen.append([*found, *torch.autograd.grad(second.sum(), [x, weight])])
    torch.testing.assert_close(seen[1], seen[0])


def test_results_of_a_checkpoint_one_by_one() -> None:
    def heads(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.tanh() * 2, x.sin().exp()

    seen = []
    for call in (heads, weft.compile(heads)):
        x = torch.tensor([0.5, 0.25, -1.0], requires_grad=True)
        first, second = torch.utils.checkpoint.checkpoint(call, x, use_reentrant=False)
        seen.append([torch.autograd.grad(y.sum(), x)[0] for y in (first, second)])
    torch.testing.assert_close(seen[1], seen[0])


def apart_of_two(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sin(), w.cos()


def apart_and_together(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sin() * w, w.cos(), x.exp()


@pytest.mark.parametrize("computed", [False, True], ids=["leaves", "computed"])
@pytest.mark.parametrize("function", [apart_of_two, apart_and_together])
def test_gradients_of_one_argument_let_go_of_what_leads_there(
    function: Callable[..., tuple[torch.Tensor, ...]], computed: bool
) -> None:
    """``grad(result, x)`` where the result doesn't lead to ``x`` visits nothing: it has gradients later."""
    compiled = weft.compile(function, fullgraph=True, backend=by_operators)
    asked = [(k, name) for k in range(len(function(*torch.ones(2, 2)))) for name in ("x", "w")]
    for first, second, third in itertools.product(asked, repeat=3):
        told = []
        for call in (function, compiled):
            values = {"x": torch.tensor([0.5, 2.0]), "w": torch.tensor([1.5, 0.25])}
            given = {name: value.requires_grad_() for name, value in values.items()}
            if computed:
                given = {name: value.tanh() for name, value in given.items()}
            results = call(*given.values())
            found: list[Any] = []
            for k, name in (first, second, third):
                try:
                    found += torch.autograd.grad(results[k].sum(), given[name], allow_unused=True)
                except RuntimeError as error:
                    found.append(torch.tensor("a second time" in str(error)))
            told.append(found)
        torch.testing.assert_close(told[1], told[0])


def test_arguments_are_let_go_of_with_the_last_backward() -> None:
    """Of what backward reads, as in eager, though its results live on."""

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        return (x * w).sum(), (x * w.sin()).sum(0)

    seen = []
    for called in (function, weft.compile(function)):
        w = torch.ones(3, requires_grad=True)
        x = torch.ones(2, 3)
        reference = weakref.ref(x)
        first, second = called(x, w)
        del x
        row = [reference() is None]
        first.backward(retain_graph=True)
        row.append(reference() is None)
        first.backward()
        row.append(reference() is None)
        second.sum().backward()
        row.append(reference() is None)
        for result in (first, second.sum()):
            with pytest.raises(RuntimeError, match="a second time"):
                result.backward(create_graph=True)
        seen.append((row, w.grad))
    assert seen[0][0] == seen[1][0] == [False, False, False, True]
    torch.testing.assert_close(seen[1][1], seen[0][1])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x * 2,
        lambda x, n: (x / 3).sum(),
        lambda x, n: x * n,
        lambda x, n: n - 2 * x,
        lambda x, n: x.expand(2, 3) * 1.0,
        lambda x, n: (x.mean(), x.sum()),
        lambda x, n: torch.add(x, x, alpha=2) - n,
        lambda x, n: x.lerp(x, 0.3),
        lambda x, n: torch.cat([x[1:], -x]),
        lambda x, n: (x * 2, x + 1),
        lambda x, n: (x.relu(), x + n),
    ],
)
def test_a_second_backward_where_only_numbers_were_kept(function: Callable[..., Any]) -> None:
    """Autograd keeps a number that a tensor is multiplied by as a tensor, which it frees; others it keeps."""
    compiled, told = weft.compile(function), []
    for called in (function, compiled):
        answers = []
        for number in (2.5, 3.5, 4.5):
            x = torch.ones(3, requires_grad=True)
            results = called(x, number)
            for result in results if isinstance(results, tuple) else (results,):
                result.sum().backward()
                try:
                    result.sum().backward()
                    answers.append("again")
                except RuntimeError as error:
                    answers.append(str(error).partition(" (")[0])
            assert x.grad is not None
            answers.append(x.grad.tolist())
        told.append(answers)
    assert told[1] == told[0]
