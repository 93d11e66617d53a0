"""Branches and loops whose gradients are there in some calls only: one graph, and eager's gradients."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import weft

Tensors = Sequence[torch.Tensor]


def compared(function: Callable[..., Any], arguments: Tensors) -> list[Any]:
    """Which results have gradients, the results, and the gradients of the arguments, None where absent."""
    results = function(*arguments)
    results = results if isinstance(results, tuple) else (results,)
    differentiable = [r for r in results if r.requires_grad]
    if differentiable:
        sum((k + 1) * (r * r).sum() for k, r in enumerate(differentiable)).backward()  # type: ignore[union-attr]
    flags = [r.requires_grad for r in results]
    return [flags, *(r.detach() for r in results), *(a.grad for a in arguments)]


def check(function: Callable[..., Any], calls: Sequence[Callable[[], Tensors]]) -> None:
    """One graph for all calls, which give what eager does."""
    compiled, log = weft.compile(function, fullgraph=True), weft.CompileLog()
    for make in calls:
        expected = compared(function, make())
        with weft.observe(log):
            actual = compared(compiled, make())
        assert_same(actual, expected)
    assert len(log.graphs) == 1


def assert_same(actual: list[Any], expected: list[Any]) -> None:
    assert actual[0] == expected[0]
    for ours, theirs in zip(actual[1:], expected[1:], strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, equal_nan=True)


def given(scale: float, of_x: bool = True, of_w: bool = True) -> Callable[[], Tensors]:
    """Arguments x, of the sign and size of ``scale``, and w."""

    def make() -> Tensors:
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(3, generator=generator, dtype=torch.float64) * scale
        w = torch.randn(3, generator=generator, dtype=torch.float64)
        return x.requires_grad_(of_x), w.requires_grad_(of_w)

    return make


NAN = float("nan")
CALLS = {
    "both": [given(s) for s in (1, -1, 6, 0.01, 0, NAN, -6)],
    "w": [given(s, of_x=False) for s in (1, -1, 6, 0.01, 0, NAN)],
}


def one_sided(x, w):
    if x.sum() > 0:
        x = x * w
    return x.sin()


def early_return(x, w):
    if x.sum() > 0:
        return x * w
    return x.cos()


def early_return_of_a_pair(x, w):
    y = x.exp()
    if x.sum() > 1:
        return y * w, y + 1
    return y * 2, w * 3


def either_parameter(x, w):
    return x * 3 if x.sum() > 0 else w.exp()


def used_elsewhere(x, w):
    y = x * w
    if x.sum() > 0:
        y = y + w.sin()
    return y, w * 2


def unvisited_infinity(x, w):
    inverse = 1 / (w * 0)
    y = x * 2
    if x.sum() > 0:
        y = y + inverse
    return y + w


def two_in_a_row(x, w):
    y = x + 1
    if x.sum() > 0:
        y = y * w
    if x.sum() > 2:
        y = y - w.sin()
    return y


def nested(x, w):
    y = x * 2
    if x.sum() > 0:
        y = y.sin()
        if x.sum() > 2:
            y = y * w
    return y


def detached_on_a_side(x, w):
    y = x * w
    if x.sum() > 0:
        y = y.detach()
    return y * 2


def no_grad_on_a_side(x, w):
    y = x.sin()
    if x.sum() > 0:
        with torch.no_grad():
            y = y * w
    return y


def in_a_loop(x, w):
    h = torch.zeros_like(w)
    for _ in range(20):
        h = h.sin() + x.mean()
        if h.sum() > 2:
            h = h * w
    return h


def state_of_a_loop(x, w):
    first, second = x * 1, x * 1
    for _ in range(20):
        if first.sum() > second.sum():
            first, second = second.cos(), first * w
        else:
            first = first + 0.1
    return first, second


def contracted(x, w):
    h = x
    while h.norm() > 0.5:
        h = h * 0.7 + 0.01 * (h * w)
    return h


def from_zeros(x, w):
    z, following = torch.zeros_like(x), torch.tanh(x)
    n = 0
    while (following - z).norm() > 1e-3:
        z = following
        following = torch.tanh(z * w * 0.2 + x)
        n += 1
    return z * 2, following, following * n


def bounded(x, w):
    h, n = x, 0
    while n < 30 and h.abs().max() > 0.1:
        h = h * w * 0.3
        n += 1
    return h * n


def one_after_the_other(x, w):
    """A value that w reaches from the third iteration on."""
    a, b, c = x * 1, x * 2, x * 3
    n = 0
    while n < 50 and c.abs().sum() > 1:
        a, b, c = w * 0.2, a * 0.5, b * 0.5
        n += 1
    return c


def branch_in_an_unbounded_loop(x, w):
    h = x
    while h.norm() > 0.2:
        h = h * 0.6
        if h.sum() > 1:
            h = h * torch.sigmoid(w)
    return h


def loop_in_a_branch_side(x, w):
    y = x.sin()
    if x.sum() > 0:
        for _ in range(20):
            y = y * torch.sigmoid(w)
    return y


def detached_in_a_loop(x, w):
    h, total = x, torch.zeros_like(x)
    while h.norm() > 0.3:
        h = (h * 0.5).detach() + 0.01 * w
        total = total + h
    return total, h


def products_in_a_loop(x, w):
    h = x.unsqueeze(0)
    while h.norm() > 0.3:
        h = torch.tanh(h @ torch.diag(w.tanh())) * 0.8
    return h * 2


def written_by_a_loop(x, w):
    """What the loop writes to begins without gradients, and has none where no iteration runs."""
    out, k = torch.zeros(4, dtype=x.dtype), 0
    while k < 4 and x.sum() > k:
        out[k] = (x * w).sum() * (k + 1)
        k += 1
    return out + 0


def written_by_a_loop_and_returned(x, w):
    out, h = torch.zeros(3, dtype=x.dtype), x.detach()
    while h.norm() > 0.5:
        h = h * 0.4
        out += h * w
    return out


def written_by_two_loops(x, w):
    out, h = torch.zeros(2, 3, dtype=x.dtype), x.detach()
    for k in range(2):
        while h.norm() > 1 - 0.5 * k:
            h = h * 0.4
            out[k] += h * w
    return out.sin()


PROGRAMS = [
    one_sided,
    early_return,
    early_return_of_a_pair,
    either_parameter,
    used_elsewhere,
    unvisited_infinity,
    two_in_a_row,
    nested,
    detached_on_a_side,
    no_grad_on_a_side,
    in_a_loop,
    state_of_a_loop,
    contracted,
    from_zeros,
    bounded,
    one_after_the_other,
    branch_in_an_unbounded_loop,
    loop_in_a_branch_side,
    detached_in_a_loop,
    products_in_a_loop,
    written_by_a_loop,
    written_by_a_loop_and_returned,
    written_by_two_loops,
]


@pytest.mark.parametrize("calls", ["both", "w"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: Callable[..., Any], calls: str) -> None:
    check(program, CALLS[calls])


def test_derivatives_are_those_of_differences() -> None:
    for program in (two_in_a_row, in_a_loop, from_zeros, branch_in_an_unbounded_loop):
        compiled = weft.compile(program, fullgraph=True)
        for scale in (1.0, 2.7):
            assert torch.autograd.gradcheck(compiled, tuple(given(scale)()))


def test_gradients_of_some_results_only() -> None:
    """Of each result alone: which arguments have a gradient depends on the side, too."""

    def function(x, w):
        first, second = x * 2, w * 3
        if x.sum() > 0:
            first, second = second.sin(), first + second
        return first, second

    compiled = weft.compile(function, fullgraph=True)
    for make in CALLS["both"]:
        for k in range(2):
            found = []
            for called in (function, compiled):
                arguments = make()
                called(*arguments)[k].sum().backward()
                found.append([None, *(a.grad for a in arguments)])
            assert_same(found[1], found[0])


@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_parameters_keep_no_gradient_and_the_optimizer_skips_them(scale: float) -> None:
    """Weight decay would move a parameter whose gradient is zero rather than none."""

    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            if x.sum() > 0:
                y = y + self.second(y)
            return y

    found = []
    for compile_model in (lambda m: m, lambda m: weft.compile(m, fullgraph=True)):
        model = Gated()
        run = compile_model(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            run(torch.ones(2, 3) * scale * (-1 if step == 2 else 1)).square().sum().backward()
            optimizer.step()
        found.append([p.detach() for p in model.parameters()])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gradients_that_a_loop_may_write_to_an_argument() -> None:
    """Data would decide whether a tensor of the caller's has gradients."""

    def function(x, w, out):
        h = x.detach()
        while h.norm() > 0.5:
            h = h * 0.4
            out += h * w
        return h

    found = []
    for called in (function, weft.compile(function)):
        for make in CALLS["w"]:
            x, w = make()
            out = torch.zeros(3, dtype=x.dtype)
            called(x, w, out)
            if out.requires_grad:
                out.sum().backward()
            found.append((out.requires_grad, out.detach(), w.grad))
    count = len(CALLS["w"])
    for ours, theirs in zip(found[count:], found[:count], strict=True):
        assert ours[0] == theirs[0] and (ours[2] is None) == (theirs[2] is None)
        torch.testing.assert_close(ours[1:], theirs[1:], equal_nan=True)


def test_questions_about_gradients_break() -> None:
    def function(x, w):
        if x.sum() > 0:
            x = x * w
        return x * 2 if x.requires_grad else x * 3

    compiled = weft.compile(function)
    for make in CALLS["w"]:
        assert_same(compared(compiled, make()), compared(function, make()))


def test_a_test_of_two_parts() -> None:
    """The second part is tested inside a branch, and the loop is in it: not kept yet."""

    def function(x, w):
        h, n = x, 0
        while h.abs().sum() > 0.1 and n < 30:
            h = h * w * 0.3
            n += 1
        return h * n

    compiled = weft.compile(function)
    for make in CALLS["both"]:
        assert_same(compared(compiled, make()), compared(function, make()))


def test_random_numbers_in_a_loop_without_a_bound() -> None:
    """Backward could not run the iterations again: the loop is not kept."""

    def function(x, w):
        h = x
        while h.norm() > 0.5:
            h = torch.nn.functional.dropout(h, 0.2) * 0.5 + 0.01 * w
        return h

    compiled = weft.compile(function)
    for make in CALLS["both"]:
        found = []
        for called in (function, compiled):
            torch.manual_seed(1)
            found.append(compared(called, make()))
        assert_same(found[1], found[0])


def cond_of_one_side(x, w):
    return torch.cond(x.sum() > 0, lambda x: x * w, lambda x: x.sin(), (x,))


def cond_of_two_results(x, w):
    first, second = torch.cond(
        x.sum() > 0, lambda x: (x * w, x * 2), lambda x: (x.sin(), w * 3), (x,)
    )
    return first + 0, second.detach()


@pytest.mark.parametrize("calls", ["both", "w"])
@pytest.mark.parametrize("program", [cond_of_one_side, cond_of_two_results])
def test_torch_cond_gives_zeros(program: Callable[..., Any], calls: str) -> None:
    """torch's own operator gives what the side not taken uses gradients of zero."""
    check(program, CALLS[calls])


def one_result_without_gradients(x, w):
    a, b = x * 1, w * 1
    if w.sum() > 0:
        a, b = a * 2, b * 3
    return a.detach() + 0, b + 0


def test_no_gradient_where_only_a_region_leads_to_another() -> None:
    """The branch's backward gives zeros for ``x``, to which no result leads: eager gives None."""
    check(one_result_without_gradients, CALLS["both"])


def test_no_gradient_where_loops_and_branches_hide_that_none_leads() -> None:
    agree(113)


class _Program:
    """A random program of branches and loops on tensors' values: the source of a function of x and w."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._loops = 0
        lines = ["def program(x, w):", "    a, b, c = x * 1, w * 2, x.detach() * 0.5"]
        for _ in range(3):
            lines += self._statement(1)
        self.source = "\n".join([*lines, "    return a + 0, b + 0, c + 0"])

    def _fill(self, text: str) -> str:
        pick = self._random.choice
        n = pick((-1, 0, 1, 2))
        return text.format(t=pick("abc"), u=pick("abcxw"), v=pick("abcxw"), n=n)

    def _statement(self, depth: int) -> list[str]:
        indent, kind = "    " * depth, self._random.random()
        if depth < 3 and kind < 0.35:
            lines = [indent + self._fill("if {u}.sum() > {n}:"), *self._body(depth + 1)]
            if self._random.random() < 0.4:
                lines += [f"{indent}else:", *self._body(depth + 1)]
            elif self._random.random() < 0.2:
                lines.append(indent + self._fill("    return {u} * 2, {v} + 1, c + 0"))
            return lines
        if depth < 2 and kind < 0.55:
            self._loops += 1
            counter = f"n{self._loops}"
            test = self._fill("{u}.sum() > {n}")
            return [
                f"{indent}{counter} = 0",
                f"{indent}while {test} and {counter} < 6:",
                *self._body(depth + 1),
                f"{indent}    {counter} += 1",
            ]
        if kind < 0.62:
            return [f"{indent}with torch.no_grad():", *self._body(3, indent + "    ")]
        return [indent + self._fill(self._random.choice(_ASSIGNMENTS))]

    def _body(self, depth: int, indent: str | None = None) -> list[str]:
        if indent is not None:
            return [indent + self._fill(self._random.choice(_ASSIGNMENTS))]
        return [line for _ in range(self._random.randint(1, 2)) for line in self._statement(depth)]


_ASSIGNMENTS = (
    "{t} = torch.tanh({u} + {v})",
    "{t} = {u} * {v}.sigmoid()",
    "{t} = ({u} * {n} - {v}).clamp(-3, 3)",
    "{t} = {u}.detach() + 0.1",
    "{t} = torch.where({u} > {n}, {u}, {v} * 0.5)",
    "{t} = torch.zeros_like({u})",
    "a, b = b.sin(), a * 0.9",
)


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    agree(seed)


def agree(seed: int) -> None:
    source = _Program(seed).source
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(source, f"<program {seed}>", "exec"), scope)
    program = scope["program"]
    compiled = weft.compile(program)
    for make in (given(2), given(-2)):
        try:
            assert_same(compared(compiled, make()), compared(program, make()))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}\n{source}") from error
