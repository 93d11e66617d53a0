"""Loops over what a graph without inputs draws, and loops whose carried tensors' layout sizes decide."""

from __future__ import annotations

import pytest
import torch
import weft


def test_a_loop_counted_by_what_was_drawn() -> None:
    def function() -> tuple[torch.Tensor, int]:
        drawn = torch.randn(4)
        n = int(drawn.argmax().item())
        for _ in range(n % 9):
            drawn = drawn + 1
        return drawn, n

    for seed in range(4):
        torch.manual_seed(seed)
        found, n = weft.compile(function)()
        torch.manual_seed(seed)
        wanted, m = function()
        torch.testing.assert_close(found, wanted)
        assert n == m


@pytest.mark.parametrize("sizes", [(1, 3, 5), (3, 1, 4), (2, 2)])
def test_a_loop_that_keeps_parts_of_a_split(sizes: tuple[int, ...]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept = [x]
        y.unsqueeze_(0)
        last = y.split(2, -1)[-1]
        for _ in x:
            kept[-1] = last
        return kept[-1]

    compiled = weft.compile(function)
    for n in sizes:
        x, y = torch.randn(n, n), torch.randn(n, n)
        found, wanted = compiled(x, y.clone()), function(x, y.clone())
        assert torch.equal(found, wanted)
        assert found.shape == wanted.shape


def test_two_loops_whose_one_turn_the_size_of_a_step_decides() -> None:
    """``clamp`` by ``-n`` makes a number of ``n``: both counters have one value then."""

    def function(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        low = x.clamp(-n, 0.0)
        for i in range(n % 9):
            first = low.topk(1, 0)[0]
            first[0] = 0.5 + i
        for i in range(n % 7):
            second = low.topk(2, 0)[0]
            second[0] = 2.5 - i
        return first, second

    compiled = weft.compile(function, dynamic=True)
    x = torch.linspace(-3, 1, 8, dtype=torch.float64, requires_grad=True)
    for n in (1, 2, 1, 3):
        found, wanted = compiled(x, n), function(x, n)
        assert torch.equal(torch.cat(found), torch.cat(wanted))
        gradients = [torch.autograd.grad(torch.cat(r).sum(), x)[0] for r in (found, wanted)]
        torch.testing.assert_close(*gradients)


def test_an_empty_loop_in_a_branch_that_ends_another() -> None:
    seen: list[int] = []

    def function(x: torch.Tensor, flag: bool, n: int) -> torch.Tensor:
        total = x
        for _ in range(n % 9):
            while len(seen) < 6 and seen.append(0) is None:
                pass
            try:
                total = x.sum() + total
            finally:
                if flag and total.sum() > 0:
                    break  # noqa: B012
        return total

    for n in (1, 5):
        found, left = weft.compile(function)(torch.ones(3), True, n), list(seen)
        seen.clear()
        torch.testing.assert_close(found, function(torch.ones(3), True, n))
        assert seen == left
        seen.clear()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("is_inside", [False, True])
def test_rows_are_written_to_where_no_gradients_are_recorded(
    is_inside: bool, dynamic: bool | None
) -> None:
    """Autograd refuses writes to one of the views that ``unbind`` gives, as iteration does."""

    def function(x: torch.Tensor) -> tuple[str, torch.Tensor]:
        rows, told = x.floor(), ""
        try:
            for row in rows:
                if is_inside:
                    row.mul_(2)
            row.mul_(2)
        except RuntimeError as error:
            told = str(error).rpartition("is a view")[2]
        return told, rows

    compiled = weft.compile(function, dynamic=dynamic)
    for requires_grad in (True, False):
        x = torch.linspace(-3, 5, 75).view(25, 3).requires_grad_(requires_grad)
        found, wanted = compiled(x), function(x)
        assert found[0] == wanted[0] and bool(found[0]) == requires_grad
        torch.testing.assert_close(found[1], wanted[1])


def test_free_variables_that_are_first_read_in_a_loop() -> None:
    """What a loop reads of a closure is there behind it too, be it a module or what the loop rebinds."""
    layer, total = torch.nn.Linear(4, 4), torch.zeros(4)

    def settle(x: torch.Tensor, turns: int) -> torch.Tensor | str:
        nonlocal total
        z = x
        try:
            for _ in range(turns):
                before, z = z, torch.tanh(0.5 * layer(z))
                total = total + z
                if (z - before).norm() < 1e-3:
                    break
            return layer(z) + total
        except NameError as error:
            return str(error)

    compiled = weft.compile(settle, fullgraph=True)
    with torch.no_grad():
        for turns in (20, 3, 0, 1):
            x = torch.linspace(-turns, 1, 4)
            found = []
            for function in (compiled, settle):
                total = torch.ones(4)
                found += [function(x, turns), total]
            torch.testing.assert_close(found[:2], found[2:])
