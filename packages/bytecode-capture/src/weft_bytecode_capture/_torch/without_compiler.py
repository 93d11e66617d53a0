"""Running torch's rules for operators on fake tensors while torch's compiler is not loaded.

Importing the compiler takes longer than capturing a small model, and two things in these rules import it: a
setting, which its fake mode reads, and the mark of reference implementations that the compiler is not to
trace.  While it is not loaded, nobody has set the one, and nothing heeds the other.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch._compile
import torch._refs
from torch._decomp import decomposition_table, meta_table
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

COMPILER = "torch._dynamo"
_SETTINGS = "torch._dynamo.config"
_REFERENCES = "torch._refs"

_OF_TORCH = frozenset({"aten", "prims"})
_OF_DATA = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
_INDEX = torch.ops.aten.index.Tensor
"""Gives a size of data where it is asked for by a mask."""


def needs_no_compiler(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether ``func`` is torch's own, and makes and takes no symbols, which know about the compiler."""
    if _RUNS_UNTRACED is None or not isinstance(func, OpOverload):
        return False
    if func.namespace not in _OF_TORCH:
        return False
    operands = pytree.tree_leaves((args, kwargs))
    if _OF_DATA.intersection(func.tags) and (func is not _INDEX or any(map(_is_mask, operands))):
        return False
    return not any(map(_is_symbolic, operands))


def _is_mask(argument: Any) -> bool:
    """Whether a tensor may say by its values what is taken of another."""
    return isinstance(argument, torch.Tensor) and argument.dtype in (torch.bool, torch.uint8)


def _is_symbolic(argument: Any) -> bool:
    if isinstance(argument, FakeTensor):
        return bool(argument._has_symbolic_sizes_strides)
    return isinstance(argument, torch.SymInt | torch.SymFloat | torch.SymBool)


# -- a setting ---------------------------------------------------------------------------------------------


class _Unloaded:
    """A module that is not loaded, of which ``known`` is as it will be then; all else loads it."""

    def __init__(self, module: str, **known: Any) -> None:
        self.__dict__.update(known)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)


class _TorchWithoutCompiler:
    """What a function of torch's sees as ``torch``."""

    def __getattr__(self, name: str) -> Any:
        if name == "_dynamo" and COMPILER not in sys.modules:
            return _Unloaded(COMPILER, config=_Unloaded(_SETTINGS, _custom_ops_profile=None))
        return getattr(torch, name)


def without_compiler(function: Any) -> Callable[..., Any]:
    """``function`` of torch's, which does not load the compiler to see whether operators have profiles."""
    return types.FunctionType(
        function.__code__,
        {**function.__globals__, "torch": _TorchWithoutCompiler()},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


# -- marks -------------------------------------------------------------------------------------------------

_UNTRACED = "__dynamo_disable"
"""The attribute of a marked function that the compiler's form of it is kept in, which is called instead."""

_RUNS_UNTRACED = next(
    (
        constant
        for constant in torch._compile._disable_dynamo.__code__.co_consts
        if isinstance(constant, types.CodeType) and _UNTRACED in constant.co_consts
    ),
    None,
)
"""The code of all marked functions, which imports the compiler for that form where there is none yet."""


@contextlib.contextmanager
def references_as_they_are() -> Iterator[None]:
    """Let marked reference implementations run as they are, which needs no compiler, inside."""
    unmarked = [function for function in _references() if not hasattr(function, _UNTRACED)]
    for function in unmarked:
        setattr(function, _UNTRACED, function)
    try:
        yield
    finally:
        for function in unmarked:
            if function.__dict__.get(_UNTRACED) is function:  # else the compiler has been there
                delattr(function, _UNTRACED)


@functools.cache
def _references() -> tuple[Any, ...]:
    """The functions of torch's reference implementations that are marked."""
    modules = [m for name, m in list(sys.modules.items()) if name.startswith(_REFERENCES)]
    places: tuple[Mapping[Any, Any], ...] = *map(vars, modules), decomposition_table, meta_table
    functions = _functions_in(value for place in places for value in list(place.values()))
    marked = (function for function in functions if function.__code__ is _RUNS_UNTRACED)
    return tuple(_closed_over(function)["fn"] for function in marked)


def _closed_over(function: types.FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}


def _functions_in(values: Iterable[Any]) -> Iterator[Any]:
    """The functions among ``values``, and those that these wrap or close over."""
    waiting, seen = list(values), set()
    while waiting:
        function = waiting.pop()
        if type(function) is not types.FunctionType or function in seen:
            continue
        seen.add(function)
        yield function
        waiting.append(function.__dict__.get("__wrapped__"))
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                waiting.append(cell.cell_contents)
