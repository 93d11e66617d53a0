"""What an attribute leads to is the very object: returned, written afterwards, or in the compiled code."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import capture

Tensor = torch.Tensor


class Owner:
    """A class with a method, a dict of its own and a partial method."""

    label = 1

    def __init__(self) -> None:
        self.n = 1

    def method(self, x: Tensor) -> Tensor:
        return x * self.n

    half = functools.partialmethod(method)


def made_function() -> Callable[..., Any]:
    cell = [3]

    def function(a: Tensor, b: list[int] = [1], *, c: dict[str, int] = {"d": 2}) -> Any:  # noqa: B006
        return a * b[0] + c["d"] + cell[0]

    function.note = {"e": 5}  # type: ignore[attr-defined]
    return function


def a_partial() -> Any:
    made = functools.partial(made_function(), b=[2], c={"d": 4})
    made.note = {"e": 6}  # type: ignore[attr-defined]
    return made


READS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "keywords": (a_partial, lambda o: o.keywords),
    "value_of_a_keyword": (a_partial, lambda o: o.keywords["b"]),
    "args": (lambda: functools.partial(max, [1], {"d": 1}), lambda o: o.args),
    "argument": (lambda: functools.partial(max, [1], {"d": 1}), lambda o: o.args[1]),
    "func": (a_partial, lambda o: o.func),
    "note_of_a_partial": (a_partial, lambda o: o.note),
    "self_of_a_method": (lambda: Owner().method, lambda o: o.__self__),
    "func_of_a_method": (lambda: Owner().method, lambda o: o.__func__),
    "self_of_a_partial_method": (Owner, lambda o: o.half.args[0] if o.half.args else o),
    "vars_of_an_instance": (Owner, lambda o: vars(o)),
    "dict_of_an_instance": (Owner, lambda o: o.__dict__),
    "defaults": (made_function, lambda o: o.__defaults__),
    "default": (made_function, lambda o: o.__defaults__[0]),
    "keyword_defaults": (made_function, lambda o: o.__kwdefaults__),
    "dict_of_a_function": (made_function, lambda o: o.__dict__),
    "note_of_a_function": (made_function, lambda o: o.note),
    "closure": (made_function, lambda o: o.__closure__),
    "cell": (made_function, lambda o: o.__closure__[0]),
    "contents_of_a_cell": (made_function, lambda o: o.__closure__[0].cell_contents),
    "proxied": (lambda: types.MappingProxyType({"a": [1]}), lambda o: o["a"]),
    "proxy": (lambda: types.MappingProxyType({"a": [1]}), lambda o: o),
    "label": (lambda: type("Made", (), {"label": [1]}), lambda o: o.__dict__["label"]),
}


def written(value: Any) -> None:
    """Change an object in place, if it can be changed."""
    if isinstance(value, dict):
        value["f"] = value.get("f", 0) + 1
    elif isinstance(value, list):
        value.append(7)
    elif isinstance(value, types.CellType):
        value.cell_contents = 8
    elif isinstance(value, Owner):
        value.n += 1


def same(found: Any, wanted: Any) -> bool:
    return found is wanted or (isinstance(found, types.MethodType) and found == wanted)


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("writes", ["nobody", "inside", "outside"])
def test_the_very_object(name: str, writes: str) -> None:
    make, read = READS[name]

    def program(x: Tensor, o: Any) -> Any:
        found = read(o)
        if writes == "inside":
            written(found)
        return x * 2, found, [found, read(o)]

    compiled = capture(program)
    mine, theirs = make(), make()
    for _ in range(3):
        x = torch.ones(2)
        got, wanted = compiled(x, mine).result, program(x, theirs)
        assert torch.equal(got[0], wanted[0])
        stable = read(theirs) is read(theirs)
        assert stable == (read(mine) is read(mine))
        if stable:
            assert got[1] is read(mine) is got[2][0] is got[2][1]
        if isinstance(got[1], (dict, list, int)):
            assert repr(got[1]).split(" at ")[0] == repr(wanted[1]).split(" at ")[0]
        assert type(got[1]) is type(wanted[1])
        if writes == "outside":
            written(got[1])
            written(wanted[1])
            assert str(read(mine)).split(" at ")[0] == str(read(theirs)).split(" at ")[0]


def made_inside(x: Tensor) -> Any:
    p = functools.partial(made_function(), b=[2])
    p.keywords["c"] = {"d": x.shape[0]}
    held = p.keywords
    held["b"].append(x.dim())
    return p(x), p, held, p.args


def nested_inside(x: Tensor) -> Any:
    p = functools.partial(dict, a=1)
    q = functools.partial(p, b=2)
    p.keywords["a"] = 5
    return q, p, q.keywords, p.keywords, q(), p(c=x.shape[0])


@pytest.mark.parametrize("function", [made_inside, nested_inside])
def test_partials_made_inside(function: Callable[[Tensor], Any]) -> None:
    x = torch.ones(2)
    got, wanted = capture(function)(x).result, function(x)
    if function is made_inside:
        assert torch.equal(got[0], wanted[0])
        assert got[2] is got[1].keywords
        assert got[1].keywords == wanted[1].keywords
        got[2]["b"] = [9]
        assert torch.equal(got[1](x), x * 9 + 2 + 3)
        return
    for mine, theirs in zip(got[:2], wanted[:2], strict=True):
        assert (mine.func, mine.args, mine.keywords) == (theirs.func, theirs.args, theirs.keywords)
    assert got[2] is got[0].keywords
    assert got[3] is got[1].keywords
    assert got[4:] == wanted[4:]


def test_an_attribute_that_a_partial_gets_later() -> None:
    def program(x: Tensor, p: Any) -> Any:
        return x + getattr(p, "note", 3)

    compiled, x = capture(program), torch.ones(2)
    p: Any = functools.partial(max)
    for _ in range(2):
        assert torch.equal(compiled(x, p).result, program(x, p))
    p.note = 5
    assert torch.equal(compiled(x, p).result, program(x, p))
    p.note = 6
    assert torch.equal(compiled(x, p).result, program(x, p))
