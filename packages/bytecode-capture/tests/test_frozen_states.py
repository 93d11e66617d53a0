"""Whatever a variable's class keeps is part of its state: no class can keep something that regions miss."""

from __future__ import annotations

import array
import ast
import collections
import functools
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import weft_bytecode_capture.symbolic
from weft_bytecode_capture.symbolic.evaluator import FrameEvaluator
from weft_bytecode_capture.symbolic.models.containers.sequences import ListVariable
from weft_bytecode_capture.symbolic.models.iterators.builtin_iterators import LazyIteratorVariable
from weft_bytecode_capture.symbolic.models.iterators.generators import GeneratorVariable
from weft_bytecode_capture.symbolic.models.objects.weak_references import WeakReferenceVariable
from weft_bytecode_capture.symbolic.regions.state import frozen_states
from weft_bytecode_capture.symbolic.regions.state.frozen_states import frozen_state, is_same
from weft_bytecode_capture.symbolic.variables.base import Variable
from weft_bytecode_capture.symbolic.variables.constant import ConstantVariable

package = weft_bytecode_capture.symbolic
for _found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
    importlib.import_module(_found.name)


def classes() -> Iterator[type[Variable]]:
    pending = [Variable]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        if kind.__module__.startswith(package.__name__):
            yield kind


def assigned(kind: type) -> set[str]:
    """The attributes that methods of a class, beside its constructor, bind anew."""
    found = set()
    for name, member in vars(kind).items():
        function = (
            inspect.unwrap(getattr(member, "fget", None) or member)
            if callable(getattr(member, "fget", member))
            else None
        )
        if name == "__init__" or not inspect.isfunction(function):
            continue
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
            is_bound = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if is_bound and isinstance(node.value, ast.Name) and node.value.id == "self":
                found.add(node.attr)
    return found


CHANGING = [(kind, name) for kind in classes() for name in sorted(assigned(kind))]

NOTES = {
    "created_at": "where an iterator was made, for breaks",
    "version": "how often a list has changed, for iterators over it; its elements are compared",
    "_has_no_finalizers": "what is known of the ends of a list's elements",
    "_made": "the view that a row is, once something uses it",
    "loaded_instead": "what the code after the graph loads",
}
"""Why an attribute is no state of the program's."""


def test_the_table_finds_classes() -> None:
    assert (GeneratorVariable, "started") in CHANGING
    assert len({kind for kind, _ in CHANGING}) > 20
    assert set(NOTES) == frozen_states._NOTES


@pytest.mark.parametrize(("kind", "name"), CHANGING, ids=lambda v: getattr(v, "__name__", v))
def test_what_methods_bind_anew_is_state(kind: type[Variable], name: str) -> None:
    if name in NOTES or isinstance(inspect.getattr_static(kind, name, None), property):
        return
    made = kind.__new__(kind)
    if issubclass(kind, GeneratorVariable):
        made.frame = FrameEvaluator.__new__(FrameEvaluator)  # type: ignore[attr-defined]
        vars(made.frame).update(dict.fromkeys(frozen_states.FRAME_STATE))  # type: ignore[attr-defined]
    setattr(made, name, object())
    before = frozen_state(made)
    assert is_same(before, frozen_state(made))
    setattr(made, name, object())
    assert not is_same(before, frozen_state(made))


def closure() -> tuple[Any, Callable[[], None]]:
    count = 0

    def step(evaluator: Any) -> Any:
        return count

    def change() -> None:
        nonlocal count
        count += 1

    step.__module__ = LazyIteratorVariable.__module__
    return step, change


class Helper:
    """A helper object of a variable."""

    def __init__(self) -> None:
        self.held: list[int] = []


Helper.__module__ = LazyIteratorVariable.__module__


def changed_inside() -> Iterator[tuple[str, Any, Callable[[], Any]]]:
    for made in ([1], [[1]], ([1],)):
        inner: Any = made[0] if isinstance(made[0], list) else made
        yield "list", made, functools.partial(inner.append, 1)
    keyed: dict[str, Any] = {"a": {}}
    yield "dict", keyed, lambda: keyed["a"].update(b=1)
    yield "new key", {}, lambda: None
    members = {1}
    yield "set", members, lambda: members.add(2)
    queue = collections.deque([1])
    yield "deque", queue, lambda: queue.append(1)
    data, numbers = bytearray(b"a"), array.array("i", [1])
    yield "bytearray", data, lambda: data.extend(b"b")
    yield "memoryview", memoryview(bytearray(data)), lambda: None
    yield "array", numbers, lambda: numbers.append(1)
    step, change = closure()
    yield "closure", step, change
    helper = Helper()
    yield "helper", helper, lambda: helper.held.append(1)
    yield "method of a helper", helper.held.append, lambda: helper.held.append(1)
    yield "partial", functools.partial(max, helper), lambda: helper.held.append(1)


@pytest.mark.parametrize(("what", "value", "change"), list(changed_inside()))
def test_what_an_attribute_leads_to_is_state(
    what: str, value: Any, change: Callable[[], Any]
) -> None:
    made = ListVariable()
    made.extra = value  # type: ignore[attr-defined]
    before = frozen_state(made)
    assert is_same(before, frozen_state(made))
    change()
    if what == "new key":
        value["a"] = 1
    elif what == "memoryview":
        value[0] = 3
    assert not is_same(before, frozen_state(made))


@pytest.mark.parametrize("name", frozen_states.FRAME_STATE)
def test_the_frame_of_a_generator_is_state(name: str) -> None:
    frame = FrameEvaluator.__new__(FrameEvaluator)
    vars(frame).update(dict.fromkeys(frozen_states.FRAME_STATE))
    made = GeneratorVariable(frame, 0)
    before = frozen_state(made)
    assert is_same(before, frozen_state(made))
    setattr(frame, name, {"t": ConstantVariable(1)} if name in ("locals", "cells") else [before])
    assert not is_same(before, frozen_state(made))


def test_equal_constants_are_one_state() -> None:
    for value in (1, "a", b"a", True):
        assert is_same(ConstantVariable(value), ConstantVariable(value))
    for value in (1.0, True, 2, None):
        assert not is_same(ConstantVariable(1), ConstantVariable(value))


def test_a_referenced_variable_is_compared_by_identity() -> None:
    one, other = ListVariable(), ListVariable()
    assert is_same(one, one)
    assert not is_same(one, other)
    assert not issubclass(WeakReferenceVariable, ListVariable)
