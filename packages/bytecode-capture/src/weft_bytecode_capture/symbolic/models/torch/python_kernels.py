"""Operators of which the program gives the kernel in Python: it reads and changes objects as the graph runs.

What the program has changed until then is written back behind the graph only: the kernel would find what
there was before.  And what the kernel changes the program must not know from the capture.
"""

from __future__ import annotations

import collections
import contextlib
import dis
import inspect
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...._torch import python_kernels
from ....unsupported import Unsupported
from ...kernel_writes import KernelWrites
from ...policy import is_library_module
from ...protocol import Evaluator

MAX_FUNCTIONS = 100
"""Functions through which a kernel's names are followed."""

MAX_OBJECTS = 1000
"""Objects that are looked for among the changed ones: what a kernel names, and what that holds."""


def check_kernels(evaluator: Evaluator, function: Any) -> None:
    """Raise :class:`Unsupported` where the kernels of ``function`` and the program share changing objects.

    A kernel may read what the program has changed, or change what the program knows; what it changes and
    the program does not know yet is noted.  Known are the globals that it names, what they hold, and its
    closure; so of functions and methods that it calls.
    """
    kernels = python_kernels(function)
    if isinstance(function, types.FunctionType) and not is_library_module(function.__module__):
        kernels = (function,)
    if not kernels:
        return
    if evaluator.side_effects:
        _require_unchanged(evaluator, function, kernels)
    every = evaluator.state.kernel_writes
    writes = every.by_function.get(function)
    if writes is None:
        writes = every.by_function[function] = _writes_of(kernels)
    if any(evaluator.builder.known(value) is not None for value in writes.objects.values()):
        raise Unsupported("state that a kernel changes", repr(function))
    every.update(writes)


def _require_unchanged(evaluator: Evaluator, function: Any, kernels: Sequence[Any]) -> None:
    mutated = set(map(id, evaluator.side_effects.mutated_variables()))
    changed = {
        id(value) for value, variable, _ in evaluator.builder.wrapped() if id(variable) in mutated
    }
    state = evaluator.state
    changed |= {id(kind) for kind, _ in state.class_writes}
    written = {(id(m.dictionary), name) for m in state.written_globals() for name in m.written}
    places, named = _named(dict(_called(kernels)))
    if not written.isdisjoint(places) or any(id(v) in changed for v in _reachable(named)):
        raise Unsupported("changed state that a kernel reads", repr(function))


def _writes_of(kernels: Sequence[Any]) -> KernelWrites:
    """What the code of kernels, and of what they call, may change of objects that they name.

    What a function does to some object it may do to each that it, or what it calls, names; and if it takes
    arguments to each that its callers name.
    """
    writes = KernelWrites()
    callees = dict(_called(kernels))
    changes = {function: _changes_in(function, writes) for function in callees}
    for _ in callees:  # from callee to caller, which may be deep
        for function, called in callees.items():
            for callee in called:
                if callee in changes and callee.__code__.co_argcount:
                    changes[function] |= changes[callee]
    for function in callees:
        if changes[function]:
            within = dict(_called([function]))
            _note_changed(writes, changes[function], _named(within)[1])
    return writes


def _changes_in(function: types.FunctionType, writes: KernelWrites) -> set[tuple[str, str]]:
    """How a function's code changes objects: what it calls or binds; ``writes`` gets names that it binds."""
    changes = set[tuple[str, str]]()
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    for code in _codes(function.__code__):
        changes |= {(_CALL, name) for name in _CHANGING_METHODS.intersection(code.co_names)}
        for instruction in dis.get_instructions(code):
            name = instruction.argval
            match instruction.opname:
                case "STORE_GLOBAL" | "DELETE_GLOBAL":
                    writes.globals.add((id(function.__globals__), name))
                case "STORE_DEREF" | "DELETE_DEREF" if name in cells:
                    writes.cells.add(id(cells[name]))
                case "STORE_ATTR" | "DELETE_ATTR":
                    changes.add((_BIND, name))
                case "STORE_SUBSCR" | "DELETE_SUBSCR" | "STORE_SLICE":
                    changes.add((_CALL, "__setitem__"))
    return changes


def _note_changed(
    writes: KernelWrites, changes: set[tuple[str, str]], named: Sequence[Any]
) -> None:
    modules = (value for value in named if isinstance(value, types.ModuleType))
    for value in (*_reachable(named), *modules):
        if isinstance(value, _CONTAINERS):
            if any(how == _CALL and hasattr(value, name) for how, name in changes):
                writes.objects[id(value)] = value
        elif not _is_of_library(value):
            there = getattr(value, "__dict__", {})
            bound = {name for how, name in changes if how == _BIND and name in there}
            writes.attributes |= bound
            if isinstance(value, types.ModuleType):
                writes.globals |= {(id(there), name) for name in bound}


_CALL, _BIND = "call", "bind"


def _is_of_library(value: Any) -> bool:
    """Whether it is a library's class or module, whose attributes no kernel is thought to bind."""
    if isinstance(value, types.ModuleType):
        return is_library_module(value.__name__)
    return isinstance(value, type) and is_library_module(value.__module__)


_CONTAINERS = (list, dict, set, bytearray, collections.deque)
_CHANGING_METHODS = frozenset(
    "add append appendleft clear difference_update discard extend extendleft insert "
    "intersection_update pop popitem popleft remove reverse rotate setdefault sort "
    "symmetric_difference_update update".split()
)
_CALLED_BY_INSTRUCTIONS = ("__call__", "__setitem__", "__delitem__", "__iadd__", "__enter__")


def _called(
    kernels: Sequence[Any],
) -> Iterator[tuple[types.FunctionType, list[types.FunctionType]]]:
    """Kernels, the functions of the program that they name, and methods of what they name; with callees."""
    pending, seen = _unwrapped(kernels), set[int]()
    while pending and len(seen) < MAX_FUNCTIONS:
        function = pending.pop()
        if id(function) in seen or is_library_module(function.__module__):
            continue
        seen.add(id(function))
        held = _named([function])[1]
        callees = [value for value in held if isinstance(value, types.FunctionType)]
        names = {name for code in _codes(function.__code__) for name in code.co_names}
        for kind in {value if isinstance(value, type) else type(value) for value in held}:
            if not is_library_module(kind.__module__):
                methods = (vars(kind).get(name) for name in (*names, *_CALLED_BY_INSTRUCTIONS))
                plain = (getattr(m, "__func__", getattr(m, "fget", m)) for m in methods)
                callees += [m for m in plain if isinstance(m, types.FunctionType)]
        callees = _unwrapped(callees)
        yield function, callees
        pending += callees


def _unwrapped(functions: Iterable[Any]) -> list[types.FunctionType]:
    found = map(inspect.unwrap, functions)
    return [function for function in found if isinstance(function, types.FunctionType)]


def _named(functions: Iterable[Any]) -> tuple[set[tuple[int, str]], list[Any]]:
    """The globals that functions name, each with the identity of its dict, and the objects behind them."""
    places: set[tuple[int, str]] = set()
    named: list[Any] = []
    for function in functions:
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
