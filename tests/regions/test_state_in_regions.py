"""What loops and branches do to Python state is eager's: results, and the final state of every object.

Each program of the table runs in one kind of region here, given its state or making it; the slow test runs
all of them in all kinds, at more lengths.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from weft_bytecode_capture import capture

from . import state_of_containers, state_of_objects, state_outside_frames, state_programs
from .state_programs import PROGRAMS, StateProgram

Tensor = torch.Tensor
LENGTHS = (20, 0, 1, 2, 7, 20, 40)


def counted(one: StateProgram, inside: bool) -> Callable[..., Any]:
    make, step, see = one.make, one.step, one.see

    def run(x: Tensor, n: int, s: Any) -> Any:
        if inside:
            s = make()
        y = x * 1
        for i in range(n):
            y = step(s, y, i)
        return y, see(s) if inside else None

    return run


def over_rows(one: StateProgram, inside: bool) -> Callable[..., Any]:
    make, step, see = one.make, one.step, one.see

    def run(x: Tensor, n: int, s: Any) -> Any:
        if inside:
            s = make()
        y = x * 1
        for row in x.repeat(n, 1):
            y = step(s, y + row, 3)
        return y, see(s) if inside else None

    return run


def until(one: StateProgram, inside: bool) -> Callable[..., Any]:
    make, step, see = one.make, one.step, one.see

    def run(x: Tensor, n: int, s: Any) -> Any:
        if inside:
            s = make()
        y, left = x * 1, torch.tensor(n)
        while left > 0:
            y = step(s, y, 1)
            left = left - 1
        return y, see(s) if inside else None

    return run


def branching(one: StateProgram, inside: bool) -> Callable[..., Any]:
    make, step, see = one.make, one.step, one.see

    def run(x: Tensor, n: int, s: Any) -> Any:
        if inside:
            s = make()
        y = x * 1
        if y.sum() > n - 7:
            y = step(s, y, 1)
        else:
            y = y * 2
        if y.sum() < n:
            y = y * 2
        else:
            y = step(s, y, 2)
        return y, see(s) if inside else None

    return run


def alike(left: Any, right: Any) -> bool:
    """Whether two values that are made of plain parts and tensors are equal."""
    if isinstance(left, Tensor):
        return isinstance(right, Tensor) and left.shape == right.shape and torch.equal(left, right)
    if type(left) is not type(right):
        return False
    if isinstance(left, Mapping):
        same = list(left) == list(right)
        return same and all(alike(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)) or type(left).__name__ == "deque":
        return len(left) == len(right) and all(map(alike, left, right))
    if hasattr(left, "__dict__") and type(left).__eq__ is object.__eq__:
        return alike(vars(left), vars(right))
    return bool(left == right)


def _without_history(value: Any) -> dict[int, Any]:
    """What copies are of tensors that autograd holds, which have no other, and of counters.

    CPython 3.14 copies no iterators of itertools.
    """
    held, found = [value], {}
    while held:
        part = held.pop()
        if isinstance(part, Tensor):
            found[id(part)] = part.detach().clone()
        elif isinstance(part, itertools.count):
            found[id(part)] = eval(repr(part), {"count": itertools.count})
        elif isinstance(part, Mapping):
            held += part.values()
            held.append(getattr(getattr(part, "default_factory", None), "__self__", None))
        elif isinstance(part, (list, tuple)):
            held += part
    return found


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives or raises, and warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found: Any = function(*arguments)
        except Exception as error:
            found = type(error), str(error)
    found = copy.deepcopy(found, _without_history(found))
    mine = [str(w.message) for w in caught if not str(w.message).startswith("weft")]
    return found, mine


TABLES = (state_of_containers, state_of_objects, state_outside_frames)  # which fill PROGRAMS
LOOPS = (counted, over_rows, until, branching)
EVERY = [(one, loop, inside) for one in PROGRAMS for loop in LOOPS for inside in (False, True)]
QUICK = [EVERY[8 * k + k * 3 % 8] for k in range(len(PROGRAMS))]


def _name(value: object) -> str:
    if isinstance(value, bool):
        return "made" if value else "given"
    return str(getattr(value, "name", getattr(value, "__name__", value)))


def check(
    capsys: pytest.CaptureFixture[str],
    one: StateProgram,
    loop: Callable[[StateProgram, bool], Callable[..., Any]],
    inside: bool,
    lengths: Sequence[int],
) -> None:
    """Results, warnings, what is printed and the state after each call of several on one state."""
    plain, compiled = loop(one, inside), capture(loop(one, inside))
    x = torch.tensor([0.5, -1.0, 2.0, 0.25])
    grads = torch.is_grad_enabled()

    def calls(function: Callable[..., Any]) -> list[Any]:
        state, found = one.make(), []
        try:
            for n in lengths:
                found.append((n, outcome(function, x, n, state), outcome(one.see, state)))
        finally:
            torch.set_grad_enabled(grads)
        return [*found, capsys.readouterr().out]

    wanted, got = calls(plain), calls(lambda *a: compiled(*a).result)
    for left, right in zip(got, wanted, strict=True):
        assert alike(left, right), (left, right)


def test_the_tables_are_there() -> None:
    made = {one.make.__module__ for one in PROGRAMS} | {one.step.__module__ for one in PROGRAMS}
    assert {table.__name__ for table in TABLES} <= made
    assert len({one.name for one in PROGRAMS}) == len(PROGRAMS) > 250


@pytest.mark.parametrize(("one", "loop", "inside"), QUICK, ids=_name)
def test_state_is_eagers(
    one: StateProgram,
    loop: Callable[[StateProgram, bool], Callable[..., Any]],
    inside: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check(capsys, one, loop, inside, (20, 1))


@pytest.mark.slow
@pytest.mark.parametrize(("one", "loop", "inside"), EVERY, ids=_name)
def test_state_is_eagers_in_all_regions(
    one: StateProgram,
    loop: Callable[[StateProgram, bool], Callable[..., Any]],
    inside: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check(capsys, one, loop, inside, LENGTHS)


def sent_in_a_branch(x: Tensor, n: int) -> Tensor:
    numbers = state_programs.counting_by_send()
    next(numbers)
    if torch.equal(x, x):
        n = numbers.send(n)
        if x.sum() > 0 or n > 2:
            pass
        else:
            pass
    return x * n


def drawn_in_a_loop(x: Tensor, n: int) -> Tensor:
    numbers = state_programs.counting()
    y = x
    for _ in range(4):
        for _ in range(3):
            n = next(numbers)
            y = y + n
        if torch.equal(y, x):
            break
    return y


def test_generators_that_regions_try_are_put_back() -> None:
    """Where a region is tried and not kept, it has changed no generator's frame."""
    for function in (sent_in_a_branch, drawn_in_a_loop):
        compiled = capture(function)
        for fill in (1.0, -1.0, torch.nan):
            x = torch.full((3,), fill)
            torch.testing.assert_close(compiled(x, 3).result, function(x, 3), equal_nan=True)
