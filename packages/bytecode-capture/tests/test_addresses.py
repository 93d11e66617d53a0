"""``id`` of objects from outside is a constant; of those made in the frame it tells them apart."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from differential import check
from weft_bytecode_capture import CaptureOptions as Options
from weft_bytecode_capture import GraphBreakError, capture, compile_frames


class Settings:
    def __init__(self, factor: float) -> None:
        self.factor = factor


def _run_graph(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    return graph_module.forward


def test_tables_by_address_hold_what_eager_puts_there() -> None:
    tables: list[dict[int, float]] = [{}, {}]
    objects = [Settings(2.0), Settings(3.0), lambda: None]

    def scaled(x: torch.Tensor, settings: Any, table: dict[int, float]) -> torch.Tensor:
        table[id(settings)] = table.get(id(settings), 0.0) + 1.0
        return x * table[id(settings)]

    compiled = compile_frames(scaled, _run_graph, Options(fullgraph=True))
    for settings in (*objects, *objects, objects[0]):
        x = torch.randn(3)
        assert torch.equal(compiled(x, settings, tables[0]), scaled(x, settings, tables[1]))
    assert tables[0] == tables[1]


def test_an_object_in_the_place_of_a_dead_one_is_another() -> None:
    def told(x: torch.Tensor, settings: Settings, seen: list[int]) -> torch.Tensor:
        seen.append(id(settings))
        return x + 1

    compiled = compile_frames(told, _run_graph)
    for factor in range(4):
        settings, seen = Settings(factor), list[int]()
        compiled(torch.ones(2), settings, seen)
        assert seen == [id(settings)]
        del settings


def test_parameters_are_told_apart_by_address() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    chosen = {id(p) for p in model[0].parameters()}

    def total(x: torch.Tensor) -> torch.Tensor:
        parts = [p.sum() for p in model.parameters() if id(p) in chosen]
        return x + torch.stack(parts).sum()

    found = capture(total, options=Options(fullgraph=True))(torch.ones(2))
    assert torch.equal(found.result, total(torch.ones(2)))
    assert len(found.graphs) == 1


@pytest.mark.parametrize("made", [lambda x: x, lambda x: x + 1, lambda x: [x], lambda x: 3])
def test_other_addresses_end_the_graph(made: Any) -> None:
    def address(x: torch.Tensor) -> Any:
        return x * 2, id(made(x)) > 0

    with pytest.raises(GraphBreakError, match=r"id\(\)"):
        capture(address, options=Options(fullgraph=True))(torch.ones(2))
    assert capture(address)(torch.ones(2)).result[1] is True


def told_apart(x: torch.Tensor) -> Any:
    one, two = Settings(1.0), Settings(2.0)
    listed = [one, two, one]
    names = {id(one): "one", id(two): "two"}
    facts = id(one) == id(listed[0]), id(one) == id(two), id(one) != id(two), id(x) == id(x)
    return (
        len({id(o) for o in listed}),
        names[id(listed[1])],
        facts,
        len(set(map(id, listed))),
        x + 1,
    )


def tensors(x: torch.Tensor, y: torch.Tensor) -> Any:
    return id(x) == id(y), len({id(x), id(y)}), id(x) in {id(y): 1}, x + y


def walked(x: torch.Tensor) -> Any:
    seen = set()

    def count(part: Any) -> int:
        if id(part) in seen:
            return 0
        seen.add(id(part))
        return 1 + sum(map(count, part)) if isinstance(part, list) else 1

    listed: list[Any] = [[x], [x]]
    listed += [listed, listed[0]]
    return count(listed), x * 2


X, Y = torch.ones(2), torch.zeros(2)


@pytest.mark.parametrize("program", [told_apart, walked])
def test_addresses_tell_new_objects_apart(program: Any) -> None:
    check(program, [(X,)], fullgraph=True)


def test_addresses_tell_tensors_apart() -> None:
    check(tensors, [(X, X), (X, Y), (Y, X), (Y, Y), (X, Y)], fullgraph=True)


def test_the_address_of_an_object_that_is_gone_may_be_anothers() -> None:
    def reused(x: torch.Tensor) -> Any:
        return x + 1, len({id([n]) for n in range(5)}) <= 5

    with pytest.raises(GraphBreakError, match=r"id\(\)"):
        capture(reused, options=Options(fullgraph=True))(X)
    check(reused, [(X,)], fullgraph=False)


def test_what_was_kept_by_address_may_be_stale() -> None:
    kept: dict[int, int] = {}

    def noted(x: torch.Tensor) -> Any:
        made = Settings(1.0)
        kept.setdefault(id(made), 3)
        return x + len(kept)

    compiled = compile_frames(noted, _run_graph)
    assert torch.equal(compiled(X), X + 1)
    with pytest.raises(GraphBreakError, match=r"id\(\)"):
        capture(noted, options=Options(fullgraph=True))(X)


class Part:
    def __init__(self, factor: float) -> None:
        self.factor, self.names = factor, {"a", "b"}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = Part(self.factor + 1)
        memo[id(self)] = made
        return made


def copied_by_turns(x: torch.Tensor) -> Any:
    total = x
    for factor in (1.0, 2.0, 3.0):
        part = Part(factor)
        first, second = copy.deepcopy([part, part])
        total = total * first.factor + (first is second)
        del part, first, second
    return total


def compared_at_once(x: torch.Tensor) -> Any:
    same = 0
    for factor in (1.0, 2.0):
        part = Settings(factor)
        same += id(part) == id(part)
        del part
    return x + same


@pytest.mark.parametrize("program", [copied_by_turns, compared_at_once])
def test_addresses_that_nothing_holds_any_more(program: Any) -> None:
    check(program, [(X,), (Y,), (X,)], fullgraph=True)


def kept_number(x: torch.Tensor) -> Any:
    address = id([1])
    return x + 1, address == id([2]) or True


def kept_key(x: torch.Tensor) -> Any:
    table = {id([n]): n for n in range(3)}
    return x + 1, len(table) <= 3


@pytest.mark.parametrize("program", [kept_number, kept_key])
def test_addresses_that_are_held_still(program: Any) -> None:
    with pytest.raises(GraphBreakError, match=r"id\(\)"):
        capture(program, options=Options(fullgraph=True))(X)
    check(program, [(X,)], fullgraph=False)
