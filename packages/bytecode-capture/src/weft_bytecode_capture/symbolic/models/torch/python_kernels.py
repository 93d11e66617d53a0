"""Operators of which the program gives the kernel in Python: that reads objects when the graph runs.

What the program has changed until then is written back behind the graph only: the kernel would find what
there was before.
"""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Iterator, Sequence
from typing import Any

from ...._torch import python_kernels
from ....unsupported import Unsupported
from ...policy import is_library_module
from ...protocol import Evaluator

MAX_FUNCTIONS = 100
"""Functions through which a kernel's names are followed."""

MAX_OBJECTS = 1000
"""Objects that are looked for among the changed ones: what a kernel names, and what that holds."""


def require_unchanged(evaluator: Evaluator, function: Any) -> None:
    """Raise :class:`Unsupported` where a kernel of ``function`` may read what the program has changed.

    Known are the globals that it names, what they hold, and its closure; so of functions that it calls.
    """
    if not evaluator.side_effects:
        return
    kernels = python_kernels(function)
    if isinstance(function, types.FunctionType) and not is_library_module(function.__module__):
        kernels = (function,)
    if not kernels:
        return
    mutated = set(map(id, evaluator.side_effects.mutated_variables()))
    changed = {
        id(value) for value, variable, _ in evaluator.builder.wrapped() if id(variable) in mutated
    }
    state = evaluator.state
    changed |= {id(kind) for kind, _ in state.class_writes}
    written = {(id(m.dictionary), name) for m in state.written_globals() for name in m.written}
    places, named = _named(kernels)
    if not written.isdisjoint(places) or any(id(v) in changed for v in _reachable(named)):
        raise Unsupported("changed state that a kernel reads", repr(function))


def _named(kernels: Sequence[Any]) -> tuple[set[tuple[int, str]], list[Any]]:
    """The globals that functions name, each with the identity of its dict, and the objects behind them."""
    places: set[tuple[int, str]] = set()
    named: list[Any] = []
    pending, seen = list(kernels), set[int]()
    while pending and len(seen) < MAX_FUNCTIONS:
        function = inspect.unwrap(pending.pop())
        if id(function) in seen or is_library_module(function.__module__):
            continue
        seen.add(id(function))
        names = {name for code in _codes(function.__code__) for name in code.co_names}
        found = names & function.__globals__.keys()
        places |= {(id(function.__globals__), name) for name in found}
        held = [function.__globals__[name] for name in found]
        held += _contents(function.__closure__ or ())
        held += function.__defaults__ or ()
        for module in [v for v in held if isinstance(v, types.ModuleType)]:
            if not is_library_module(module.__name__):
                there = names & vars(module).keys()
                places |= {(id(vars(module)), name) for name in there}
                held += [vars(module)[name] for name in there]
        pending += [value for value in held if isinstance(value, types.FunctionType)]
        named += held
    return places, named


def _contents(cells: Sequence[types.CellType]) -> Iterator[Any]:
    for cell in cells:
        with contextlib.suppress(ValueError):  # nothing is bound yet
            yield cell.cell_contents


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _reachable(objects: Sequence[Any]) -> Iterator[Any]:
    """The objects, their classes, and what they hold as attributes and elements."""
    pending, seen = list(objects), set[int]()
    for value in pending:  # which grows
        if len(seen) >= MAX_OBJECTS:
            return
        if id(value) in seen or isinstance(value, (types.ModuleType, types.FunctionType)):
            continue
        seen.add(id(value))
        yield value
        kind = type(value)
        if kind is dict:
            pending += value.values()
        elif kind in (list, tuple, set, frozenset):
            pending += value
        else:
            pending += [kind, *getattr(value, "__dict__", {}).values()]
