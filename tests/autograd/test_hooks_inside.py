"""Hooks registered in a compiled function: called as in eager, in the same order, with the same gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch.utils import _pytree as pytree

from tests.staged_backend import by_operators

LOG: list[Any] = []
P = torch.nn.Parameter(torch.ones(3))


def sees(x: torch.Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: LOG.append(g.clone()))
    return (y * y).sum()


def changes(x: torch.Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return (y * y).sum()


def retains(x: torch.Tensor) -> Any:
    y = x * 2
    y.retain_grad()
    LOG.append(y)
    return (y * y).sum()


def of_input(x: torch.Tensor) -> Any:
    x.register_hook(lambda g: g * 5)
    return (x * x).sum()


def of_result(x: torch.Tensor) -> Any:
    y = x * x
    y.register_hook(lambda g: g * 5)
    return y


def of_node(x: torch.Tensor) -> Any:
    y = x * 2
    y.grad_fn.register_hook(
        lambda gi, go: (
            LOG.append((gi[0].clone() if gi[0] is not None else None, go[0].clone())),
            (gi[0] * 7,) + gi[1:],
        )[1]
    )
    return (y * y).sum()


def removed(x: torch.Tensor) -> Any:
    y = x * 2
    h = y.register_hook(lambda g: g * 3)
    h.remove()
    return (y * y).sum()


def several_in_order(x: torch.Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: g * 3)
    y.register_hook(lambda g: g + 1)
    y.retain_grad()
    y.register_hook(lambda g: (LOG.append(g.clone()), g * 2)[1])
    z = y * y
    LOG.append(y)
    return z.sum()


def written_between(x: torch.Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: LOG.append(g.clone()))
    y.mul_(3)
    y.register_hook(lambda g: (LOG.append(g.clone()), g * 2)[1])
    return y.sum()


def after_accumulation(x: torch.Tensor) -> Any:
    h = P.register_post_accumulate_grad_hook(lambda q: LOG.append(q.grad.clone()))
    y = (x * P).sum()
    y.backward()
    h.remove()
    r = P.grad.clone()
    P.grad = None
    return r


def called_in_the_function(x: torch.Tensor) -> Any:
    def hook(g):
        hook.n += 1
        return g * 2

    hook.n = 0
    y = x.sin()
    y.register_hook(hook)
    z = y.cos()
    z.register_hook(hook)
    (z + y).sum().backward()
    return x.grad.clone(), torch.tensor(hook.n)


def before_node(x: torch.Tensor) -> Any:
    y = x * 2

    def pre(go):
        LOG.append(go[0].clone())
        return (go[0] * 2,)

    y.grad_fn.register_prehook(pre)
    return (y * y).sum()


def of_a_view(x: torch.Tensor) -> Any:
    a, b = x.chunk(2) if x.numel() % 2 == 0 else (x[:1], x[1:])
    a.register_hook(lambda g: g * 2)
    return (a.sum() * b).sum()


def of_several(x: torch.Tensor) -> Any:
    y = x * 2
    torch.autograd.graph.register_multi_grad_hook((y,), lambda gs: LOG.append(gs[0].clone()))
    return (y * y).sum()


def of_two_results(x: torch.Tensor) -> Any:
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda g: g.clamp(max=1))
    return [y, y * 3]


def of_a_view_that_retains(x: torch.Tensor) -> Any:
    y = x * 2
    v = y.view(-1)
    v.register_hook(lambda g: g * 2)
    v.retain_grad()
    LOG.append(v)
    return (v * y).sum()


def reads_a_tensor(x: torch.Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: g * y.detach())
    return (y.exp()).sum()


def in_a_loop(x: torch.Tensor) -> Any:
    for i in range(3):
        x = x * 2
        x.register_hook(lambda g, i=i: g * (i + 1))
    return x.sum()


def after_results_of_it(x: torch.Tensor) -> Any:
    y = x * 2
    z = y * y
    y.register_hook(lambda g: g * 3)
    return z


def of_a_row_with_a_view(x: torch.Tensor) -> Any:
    for row in x.view(1, 3):
        part = row.split(2)[-1]
    row.register_hook(lambda g: g * 3)
    return part


def of_a_view_of_an_input(x: torch.Tensor) -> Any:
    y = x.view(-1)
    z = y.view(3, 1)
    y.register_hook(lambda g: g * 3)
    return z


def of_what_gets_no_gradient(x: torch.Tensor) -> Any:
    y, z = x.exp(), x * 3
    y.register_hook(lambda g: LOG.append(g.clone()))
    return z


def after_a_write(x: torch.Tensor) -> Any:
    y = x * 2
    y.mul_(3)
    z = y * y
    y.register_hook(lambda g: g * 3)
    return z


def behind_a_break(x: torch.Tensor) -> Any:
    y = x * 2
    z = y * y
    torch.get_num_threads()
    y.register_hook(lambda g: g * 3)
    return z


def after_results_in_a_loop(x: torch.Tensor) -> Any:
    z = torch.zeros(3)
    for _ in range(3):
        y = x.exp()
        z = z + y * y
        y.register_hook(lambda g: g * 3)
    return z


def of_several_with_results(x: torch.Tensor) -> Any:
    y, z = x * 2, x.exp()
    product = y * z
    torch.autograd.graph.register_multi_grad_hook((y, z), lambda gs: LOG.extend(gs))
    return product


def of_the_node_with_results(x: torch.Tensor) -> Any:
    y = x * 2
    z = y * y
    y.grad_fn.register_prehook(lambda gs: (gs[0] * 3,))
    return z


def gradient_of_a_view(x: torch.Tensor) -> Any:
    y = (x * 2).view(1, 3)
    v = y.flatten()
    (g,) = torch.autograd.grad(v.sum(), v, allow_unused=True, retain_graph=True)
    return g, v


def gradients_of_intermediates(x: torch.Tensor) -> Any:
    y = x * 2
    z = y.exp()
    w = (y * z).sum()
    return *torch.autograd.grad(w, inputs=[z, y], retain_graph=True), w


def behind_a_loop(x: torch.Tensor) -> Any:
    y = x.sin()
    for _ in range(25):
        y = y * 0.9
    z = y.exp()
    z.register_hook(lambda g: g * 3)
    return z * y


def behind_a_branch(x: torch.Tensor) -> Any:
    y = x.sin() if x.sum() > 0 else x.cos()
    z = y.exp()
    z.register_hook(lambda g: g * 3)
    return z * y


def of_what_only_integers_are_made_of(x: torch.Tensor) -> Any:
    y = x.reshape(-1)
    z = y.sin()
    z.register_hook(lambda g: g * 3)
    return y.var(0), z.argmin(-1)


def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2
    return y, y.sin()


def four(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y, z = two(x)
    return (y, z, *two(z * y))


class Keeps(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = x * 3
        return self.kept.cos()


def of_a_callees_first(x: torch.Tensor) -> Any:
    y, z = two(x)
    y.register_hook(lambda g: g * 3)
    return y + z


def of_a_callees_last(x: torch.Tensor) -> Any:
    y, z = two(x)
    z.register_hook(lambda g: g * 3)
    return y + z


def of_what_callees_call(x: torch.Tensor) -> Any:
    results = four(x)
    for k, y in enumerate(results):
        y.register_hook(lambda g, k=k: g * (k + 2))
    return results


def of_what_a_module_keeps(x: torch.Tensor) -> Any:
    module = Keeps()
    y = module(x)
    module.kept.register_hook(lambda g: g * 3)
    return y, module.kept


def gradient_between_a_callees_results(x: torch.Tensor) -> Any:
    y, z = two(x)
    return torch.autograd.grad(z.sum(), y, retain_graph=True)[0], z


def of_a_callee_of_before(x: torch.Tensor) -> Any:
    z = two(x)[1]
    y, other = two(z)
    y.retain_grad()
    LOG.append(y)
    return y * other


def beside_a_write_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    total: Any = 0.0
    for _ in range(2):
        y = x.sin()
        total += y.sum()
    y.register_hook(lambda g: g * 2)
    return total


def beside_what_an_object_keeps(x: torch.Tensor) -> torch.Tensor:
    meter = {"total": x.cos().sum()}
    for k in range(3):
        y = x.sin() + k
        meter["total"] += y.sum()
        y.register_hook(lambda g: g * 2)
    return meter["total"]


PROGRAMS = (
    beside_a_write_in_a_loop,
    beside_what_an_object_keeps,
    of_a_callees_first,
    of_a_callees_last,
    of_what_callees_call,
    of_what_a_module_keeps,
    gradient_between_a_callees_results,
    of_a_callee_of_before,
    of_what_only_integers_are_made_of,
    behind_a_loop,
    behind_a_branch,
    sees,
    changes,
    retains,
    of_input,
    of_result,
    of_node,
    removed,
    several_in_order,
    written_between,
    after_accumulation,
    called_in_the_function,
    before_node,
    of_a_view,
    of_several,
    of_two_results,
    of_a_view_that_retains,
    reads_a_tensor,
    in_a_loop,
    after_results_of_it,
    of_a_row_with_a_view,
    of_a_view_of_an_input,
    of_what_gets_no_gradient,
    after_a_write,
    behind_a_break,
    after_results_in_a_loop,
    of_several_with_results,
    of_the_node_with_results,
    gradient_of_a_view,
    gradients_of_intermediates,
)


def outcome(run: Callable[[torch.Tensor], Any]) -> list[Any]:
    """Of two calls: results, gradients, and what hooks and retaining tensors have seen."""
    found: list[Any] = []
    for seed in range(2):
        LOG.clear()
        torch.manual_seed(seed)
        x = torch.randn(3, requires_grad=True)
        results = pytree.tree_leaves(run(x))
        total = [r.sum() for r in results if r.requires_grad]
        if total:
            torch.stack(total).sum().backward()
        seen = pytree.tree_leaves(LOG)
        grads = [t.grad for t in seen if t.retains_grad]
        found += [*results, x.grad, *seen, *grads]
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_like_eager(program: Callable[[torch.Tensor], Any]) -> None:
    expected = outcome(program)
    found = outcome(weft.compile(program, backend=by_operators))
    torch.testing.assert_close(found, expected)
