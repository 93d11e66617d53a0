"""Extern calls as lines of the host program: which operator, and how its results become buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from weft_loop_ir import Buffer, BufferView, ExternCall, SizeFloat, SymbolDefinition

from weft_codegen_triton.host.expressions import print_size, print_tuple


def reads_number(call: ExternCall) -> bool:
    """Whether what a call gives is a number."""
    return any(definition.dimension is None for definition in call.defines)


def print_definition(definition: SymbolDefinition, results: Sequence[str]) -> str:
    """The line that gives a size or number of a call's ``results`` its name."""
    name = definition.symbol.name
    if definition.dimension is not None:
        return f"{name} = {results[definition.result]}.size({definition.dimension})"
    return f"{name} = {'int' if definition.symbol.is_integer else 'float'}({name})"


def print_sharing(call: ExternCall, result: str, tensor: Callable[[str], str]) -> str:
    """Whether ``result`` is in memory of an argument, as Python; of others' operators that is looked at."""
    if any(r.alias_info is not None for r in call.operator._schema.returns):
        return "True"
    if call.operator.namespace in ("aten", "prims"):
        return "False"
    operands = "".join(f"{tensor(name)}, " for name in call.reads)
    return f"lies_in({result}, ({operands}))"


def returns_list(call: ExternCall) -> bool:
    """Whether the operator gives a list, whose items are buffers."""
    returns = call.operator._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)


def print_argument(
    argument: Any, view: Callable[[BufferView], str], constant: Callable[[Any], str]
) -> str:
    """An operator's argument as Python; ``constant`` names an object that has no literal."""
    if isinstance(argument, BufferView):
        return view(argument)
    if isinstance(argument, sympy.Expr | SizeFloat):
        return print_size(argument)
    if isinstance(argument, list | tuple):
        items = "".join(f"{print_argument(a, view, constant)}, " for a in argument)
        return f"[{items}]" if isinstance(argument, list) else f"({items})"
    if argument is None or isinstance(argument, bool | int | str):
        return repr(argument)
    return constant(argument)


def print_settle(name: str, buffer: Buffer, copy: str, constant: Callable[[Any], str]) -> str:
    """The line that makes a buffer of the operator's result in the variable ``name``."""
    layout = buffer.layout
    return (
        f"{name} = settle({name}, {print_tuple(layout.size)}, {print_tuple(layout.stride)}, "
        f"{layout.dtype}, {constant(layout.device)}, {copy})"
    )
