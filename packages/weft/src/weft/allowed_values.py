"""What entries of the program cache may name: types of plain data, never what does something when called.

Pickle calls whatever an entry names.  Here that is the stages' dataclasses and enumerations, torch's dtypes
and the like, and operators of Python on numbers, which are the targets of nodes.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import operator
import pickle
from typing import Any

import sympy
import torch

from ._torch import SYMBOLIC_TYPES
from .registry import stage_packages

_NUMBERS = (
    "abs add and_ eq floordiv ge getitem gt invert le lshift lt mod mul ne neg not_ or_ pos pow rshift sub "
    "truediv xor"
)
_NAMED: dict[str, frozenset[str]] = {
    "_operator": frozenset(_NUMBERS.split()),
    "builtins": frozenset(
        "abs bool bytearray bytes complex dict float frozenset int list max min object range round set slice "
        "str tuple".split()
    ),
    "collections": frozenset({"OrderedDict"}),
    "math": frozenset({"ceil", "floor", "trunc", "sqrt", "pow"}),
    "torch": frozenset(
        {"Size", "device", "Tensor", "sym_float", "sym_int", "sym_max", "sym_min", "sym_not"}
    ),
    "torch.fx.immutable_collections": frozenset({"immutable_dict", "immutable_list"}),
    "torch.serialization": frozenset({"_get_layout"}),
    "torch.utils._sympy.value_ranges": frozenset({"ValueRanges"}),
}
_TORCH_MODULES = ("torch", "torch._utils")
_TORCH_TYPES = (torch.dtype, torch.layout, torch.memory_format)


def allowed(module: str, name: str) -> Any:
    """What an entry names; raises UnpicklingError for what it may not name."""
    is_ours = module.partition(".")[0] in stage_packages()
    if is_ours or module in _NAMED or module in _TORCH_MODULES:
        found: Any = functools.reduce(getattr, name.split("."), importlib.import_module(module))
        if name in _NAMED.get(module, ()) or (is_ours and _is_data(found, module)):
            return found
        is_torchs = isinstance(found, _TORCH_TYPES) or found in SYMBOLIC_TYPES
        if module in _TORCH_MODULES and is_torchs:
            return found
    raise pickle.UnpicklingError(f"{module}.{name} is nothing that entries hold")


def check_named(value: Any) -> None:
    """Raise PicklingError where ``value`` is a type or a function that an entry may not name."""
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        module = getattr(value, "__module__", None) or "builtins"
        try:
            allowed(module, value.__qualname__)
        except (pickle.UnpicklingError, AttributeError, ImportError) as error:
            raise pickle.PicklingError(str(error)) from error


def _is_data(found: Any, module: str) -> bool:
    """Whether that is a type, of that very module, whose values are fields and nothing else."""
    if not isinstance(found, type) or found.__module__ != module:
        return False
    is_tuple = issubclass(found, tuple) and hasattr(found, "_fields")
    return dataclasses.is_dataclass(found) or issubclass(found, enum.Enum) or is_tuple


def expression_parts(value: sympy.Basic) -> tuple[Any, ...]:
    """An expression's kind and what it is made of: names, numbers and expressions."""
    if isinstance(value, sympy.Symbol) and type(value) is sympy.Symbol:
        (name,), assumptions = value.__getnewargs_ex__()
        return "symbol", name, tuple(sorted(assumptions.items()))
    if isinstance(value, sympy.Integer):
        return "integer", int(value)
    if isinstance(value, sympy.Rational):
        return "rational", int(value.p), int(value.q)
    if isinstance(value, sympy.Float):
        return "float", str(value), int(value._prec)
    if not all(isinstance(argument, sympy.Basic) for argument in value.args):
        raise pickle.PicklingError(f"an expression of {type(value).__name__}")
    return "made of", type(value).__module__, type(value).__qualname__, *value.args


def expression_of_parts(kind: str, *parts: Any) -> sympy.Basic:
    """The expression again; raises UnpicklingError.

    SymPy evaluates texts where it expects expressions: so no text reaches it but a symbol's name or a number.
    """
    if kind == "symbol" and isinstance(parts[0], str):
        return sympy.Symbol(parts[0], **{str(name): _truth(is_so) for name, is_so in parts[1]})
    if kind == "integer" and isinstance(parts[0], int):
        return sympy.Integer(parts[0])
    if kind == "rational" and all(isinstance(part, int) for part in parts):
        return sympy.Rational(*parts)
    if kind == "float":
        return sympy.Float(
            str(float(parts[0])) if parts[1] == 53 else parts[0], precision=int(parts[1])
        )
    if kind == "made of" and all(isinstance(part, sympy.Basic) for part in parts[2:]):
        root = parts[0].partition(".")[0]
        if root in ("sympy", *stage_packages()) or parts[0].startswith("torch.utils._sympy."):
            made = operator.attrgetter(parts[1])(importlib.import_module(parts[0]))
            if isinstance(made, type) and issubclass(made, sympy.Basic):
                found: sympy.Basic = made(*parts[2:])
                return found
    raise pickle.UnpicklingError(f"no expression: {kind}")


def _truth(value: Any) -> bool | None:
    return None if value is None else bool(value)
