"""Branches that are the first to change the caller's lists, dicts and objects: eager's state after calls."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, CaptureResult, capture

from .objects_in_results import identities, tensors_in
from .test_random_programs import Line

Tensor = torch.Tensor


class Slotted:
    """An object with a slot."""

    __slots__ = ("held",)

    def __init__(self, held: Tensor) -> None:
        self.held = held


class Cache(torch.nn.Module):
    """A module whose forward methods change what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.h = torch.zeros(3)
        self.n = 0
        self.name = "cache"
        self.log: list[Any] = [torch.ones(3), torch.ones(3) * 2]
        self.known: dict[str, Any] = {"a": torch.ones(3), "b": 1}
        self.slotted = Slotted(torch.ones(3))
        self.register_buffer("buffer", torch.ones(3))

    def state(self) -> list[Any]:
        extra = {k: v for k, v in vars(self).items() if k in ("z", "n", "name", "h")}
        return [extra, self.log, self.known, self.slotted.held, self.buffer]


def attribute(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.h = x + 1
    return m.h * 2


def number(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.n += 1
    return x + m.n


def key(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.known["a"] = x * 3
    return x + m.known["a"]


def number_by_key(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.known["b"] = m.known["b"] + 2
    else:
        m.known["b"] = 7
    return x + m.known["b"]


def element(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.log[0] = x * 2
    else:
        m.log[-1] = x - 1
    return m.log[0] + m.log[1]


def elements_swapped(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.log[0], m.log[1] = m.log[1], m.log[0]
    return m.log[0] * 2


def appended_on_both_sides(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.log.append(x)
        m.log.append(x + 1)
    else:
        m.log.extend([x - 1, x])
    return x + 1


def read_and_appended(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.log.append(m.log[0] + x)
    else:
        m.log.append(m.log[-1])
    return m.log[-1] * 2


def key_on_both_sides(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.known["z"] = x + 1
        m.known["a"] = x
    else:
        m.known["z"] = m.known["a"] * 2
    return x


def attribute_on_both_sides(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.z = x + 1
    else:
        m.z = x - 1
    return m.z + m.h


def slot(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.slotted.held = x + 1
    return m.slotted.held + 1


def read_before(m: Cache, x: Tensor) -> Any:
    h, a = m.h, m.known["a"]
    if x.sum() > 0:
        m.h, m.known["a"] = a + x, h + x
    return h, a, m.h


def both_get_the_argument(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.h = x
        m.log[0] = x
    return x * 2


def one_after_another(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.h = x + 1
    if x.sum() > 1:
        m.n += 2
        m.known["a"] = x
    return m.h + m.n


def inside_another(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.h = x + 1
        if x.sum() > 4:
            m.n += 2
            m.h = m.h * 2
        m.known["a"] = m.h
    else:
        m.n = m.n - 1
    return m.h + m.n


def in_a_loop(m: Cache, x: Tensor) -> Any:
    for i in range(20):
        if (x * i).sum() > 5:
            m.h = m.h + x
            m.n += 1
    return m.h


def in_a_while(m: Cache, x: Tensor) -> Any:
    while x.sum() > 0:
        if x[0] > 1:
            m.known["a"] = m.known["a"] + x
        x = x - 1
    return x


def written_before_the_branch(m: Cache, x: Tensor) -> Any:
    m.name = "changed"
    m.known["z"] = x
    if x.sum() > 0:
        m.h = x + 1
        m.known["a"] = x * 2
    return m.h


def element_written_in_place(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.h.add_(x)
        m.known["a"] = m.h
    return m.h + m.known["a"]


REGIONS: dict[Callable[..., Any], int] = {
    attribute: 1,
    number: 0,  # both are computed, and one is chosen
    key: 1,
    number_by_key: 0,
    element: 1,
    elements_swapped: 1,
    appended_on_both_sides: 1,
    read_and_appended: 1,
    key_on_both_sides: 1,
    attribute_on_both_sides: 1,
    slot: 1,
    read_before: 1,
    both_get_the_argument: 1,
    one_after_another: 2,
    inside_another: 1,
    in_a_loop: 2,
    written_before_the_branch: 1,
    element_written_in_place: 1,
}
"""Programs with how many regions their first graph has."""


def appended_on_one_side(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.log.append(x)
    return x + 1


def key_on_one_side(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.known["z"] = x
    return x + 1


def attribute_on_one_side(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.z = x
    return x + 1


def keys_in_another_order(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.known["y"], m.known["z"] = x + 1, x
    else:
        m.known["z"], m.known["y"] = x, x - 1
    return x + 1


def key_deleted(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.known.pop("a")
    return x + 1


def element_taken_out(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.log.pop()
    return x + 1


def element_taken_out_of_a_changed_list(m: Cache, x: Tensor) -> Any:
    log = m.log
    log.append(x * 2)
    log[-1] = x * 4
    if x.sum() > 0:
        log.pop()
    return x + 1


def attribute_deleted(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        del m.name
    return x + 1


def text(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.name = "positive"
    return x + 1


def other_dims(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.h = x[None]
    return x + 1


def buffer_bound_anew(m: Cache, x: Tensor) -> Any:
    if x.sum() > 0:
        m.buffer = x + 1
    return m.buffer + 1


NOT_KEPT = {
    appended_on_one_side: "list that one branch makes longer",
    key_on_one_side: "key or attribute that one branch makes",
    attribute_on_one_side: "key or attribute that one branch makes",
    keys_in_another_order: "object that a region changes",
    key_deleted: "object that a region changes",
    element_taken_out: "object that a region changes",
    element_taken_out_of_a_changed_list: "object that a region changes",
    text: "value that differs by branch",
    other_dims: "tensor that differs by branch",
}


def outcome(function: Callable[..., Any], m: Cache, x: Tensor) -> Any:
    try:
        return function(m, x)
    except (KeyError, IndexError, AttributeError) as error:
        return type(error).__name__


def check(
    function: Callable[..., Any], rolled_loop_length: int = 16
) -> list[tuple[int, CaptureResult]]:
    """Results and the module's state are eager's after each call; regions of, and all about, each call."""
    line, found = Line(), []
    options = CaptureOptions(rolled_loop_length=rolled_loop_length)
    compiled = capture(function, options=options, backend=line)

    def compiled_into(results: list[Any]) -> Callable[[Cache, Tensor], Any]:
        def run(m: Cache, x: Tensor) -> Any:
            results.append(compiled(m, x))
            return results[0].result

        return run

    mine, theirs = Cache(), Cache()
    for scale in (1, -1, 2, -3, 0):
        given = [torch.arange(3.0) * scale for _ in range(2)]
        before = line.regions
        with torch.no_grad():
            wanted = outcome(function, theirs, given[1])
            results: list[Any] = []
            got = outcome(compiled_into(results), mine, given[0])
        left, right = (got, mine.state(), given[0]), (wanted, theirs.state(), given[1])
        assert identities(left) == identities(right)
        torch.testing.assert_close(tensors_in(left), tensors_in(right))
        found.append((line.regions - before, *results))
    return found


@pytest.mark.parametrize("function", REGIONS, ids=lambda f: f.__name__)
def test_changes_of_either_side_are_joined(function: Callable[..., Any]) -> None:
    assert check(function)[0][0] == REGIONS[function]


@pytest.mark.parametrize("function", NOT_KEPT, ids=lambda f: f.__name__)
def test_changes_that_do_not_correspond_break(function: Callable[..., Any]) -> None:
    regions, result = check(function)[0]
    assert regions == 0
    (unkept,) = {
        u.reason.splitlines()[0] for report in result.reports for u in report.unkept_regions
    }
    assert unkept == NOT_KEPT[function]


@pytest.mark.parametrize("function", [attribute_deleted, buffer_bound_anew, in_a_while])
def test_others_are_eager_too(function: Callable[..., Any]) -> None:
    check(function)


@pytest.mark.parametrize("kind", [collections.OrderedDict, collections.defaultdict])
def test_other_kinds_of_dicts(kind: type[Any]) -> None:
    def function(d: Any, x: Tensor) -> Tensor:
        if x.sum() > 0:
            d["a"] = x * 2
        return d["a"] + 1

    compiled = capture(function, backend=Line())
    mine, theirs = kind(), kind()
    mine["a"], theirs["a"] = torch.ones(3), torch.ones(3)
    for scale in (1, -1, 2):
        x = torch.ones(3) * scale
        torch.testing.assert_close(compiled(mine, x).result, function(theirs, x))
        torch.testing.assert_close(dict(mine), dict(theirs))


def test_how_to_append_on_both_sides() -> None:
    """What the reason advises where one side appends: kept, and the caller's lists are right."""

    def function(values: list[Tensor], kept: list[Tensor], x: Tensor) -> Tensor:
        test = x.sum() > 0
        values.append(torch.where(test, x, 0))
        kept.append(test)
        return x + 1

    line = Line()
    compiled = capture(function, backend=line)
    mine: list[list[Tensor]] = [[], []]
    for scale in (1, -1, 2):
        compiled(*mine, torch.ones(3) * scale)
    assert [bool(t) for t in mine[1]] == [True, False, True]
    torch.testing.assert_close(torch.stack(mine[0])[:, 0], torch.tensor([1.0, 0.0, 2.0]))


_VALUES = ("x + 1", "m.h * 0.5", "m.known['a'] - x", "m.log[0] + m.log[-1]", "x", "m.h")
_STATEMENTS = (
    "m.h = {value}",
    "m.n += 1",
    "m.n = {n}",
    "m.known['a'] = {value}",
    "m.known['b'] = m.n",
    "m.log[0] = {value}",
    "m.log[1], m.log[0] = m.log[0], {value}",
    "m.slotted.held = {value}",
    "h = m.h + {n}",
    "m.h = h",
    "m.h = (m.h + 1).clamp(-9, 9)",
)
_ON_BOTH_SIDES = ("m.log.append({value})", "m.known['z'] = {value}", "m.z = {value}")
_TESTS = ("x.sum() > {n}", "m.h.sum() > {n}", "m.known['a'][0] > {n}", "h[1] > {n}")


def random_program(seed: int) -> Callable[[Cache, Tensor], Any]:
    """A function of branches, one in another and in loops, that change a module."""
    pick = random.Random(seed)

    def fill(text: str) -> str:
        return text.format(value=pick.choice(_VALUES), n=pick.choice((-2, -1, 0, 1, 3)))

    def block(indent: str, count: int) -> list[str]:
        return [line for _ in range(count) for line in statement(indent)]

    def statement(indent: str) -> list[str]:
        kind, inner = pick.random(), indent + "    "
        if kind < 0.3 and len(indent) < 12:
            one, other = block(inner, pick.randint(1, 3)), block(inner, pick.randint(1, 2))
            for both in pick.sample(_ON_BOTH_SIDES, pick.choice((0, 0, 1, 2))):
                one.append(inner + fill(both))
                other.append(inner + fill(both))
            head = f"{indent}if {fill(pick.choice(_TESTS))}:"
            return [head, *one, f"{indent}else:", *other]
        if kind < 0.38 and len(indent) < 8:
            return [f"{indent}for _ in range(5):", *block(inner, 2)]
        if kind < 0.41:
            return [indent + fill(pick.choice(_ON_BOTH_SIDES))]
        return [indent + fill(pick.choice(_STATEMENTS))]

    lines = [
        "def program(m, x):",
        "    h = x * 2",
        *block("    ", 5),
        "    return m.h + m.n, h + 0",
    ]
    scope: dict[str, Any] = {}
    exec(compile("\n".join(lines), f"<program {seed}>", "exec"), scope)
    return scope["program"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    check(random_program(seed), rolled_loop_length=4)
