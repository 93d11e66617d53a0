"""Sizes and numbers that depend on data: read in the middle of the host program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from weft_loop_ir import (
    BufferView,
    ExternCall,
    Requirement,
    Schedule,
    SymbolDefinition,
    all_items,
)
from weft_loop_ir.unsupported import Unsupported

from weft_codegen_cpp.kernel.dtypes import NARROW_FLOATS, memory_type

Index = Callable[[Any], str]

_CONDITIONS = {"nonnegative": ">= 0", "zero": "== 0", "nonzero": "!= 0"}


def definitions(schedule: Schedule) -> Iterator[SymbolDefinition]:
    """What calls of the program define, in order."""
    for item in all_items(schedule.steps):
        if isinstance(item, ExternCall):
            yield from item.defines


def is_read(call: ExternCall) -> bool:
    """Whether a call reads a number, which the host program does by itself."""
    return call.operator is torch.ops.aten._local_scalar_dense.default


def read_number(call: ExternCall, index: Index) -> list[str]:
    """Read the element of the call's only argument into the symbol that the call defines."""
    (view,) = call.arguments
    (definition,) = call.defines
    assert isinstance(view, BufferView)
    if view.dtype.is_complex or (memory_type(view.dtype) == "ui8" and view.dtype != torch.uint8):
        raise Unsupported("a number read from a tensor", f"of dtype {view.dtype}")
    element = f"c.{view.buffer}[{index(view.offset)}]"
    half = NARROW_FLOATS.get(view.dtype)
    if half is not None:
        element = f"{half}_to_f32({element})"
    kind = "i64" if definition.symbol.is_integer else "f64"
    return [f"c.{definition.symbol.name} = {kind}({element});"]


def read_sizes(call: ExternCall, sources: Mapping[str, str]) -> list[str]:
    """Read the sizes that the call defines from its results, by the C++ expressions of their handles."""
    lines = []
    for definition in call.defines:
        name = call.outputs[definition.result]
        assert name is not None and definition.dimension is not None
        lines.append(
            f"{{ i64* sizes = nullptr; api.get_sizes({sources[name]}, &sizes); "
            f"c.{definition.symbol.name} = sizes[{definition.dimension}]; }}"
        )
    return lines


def check_requirements(requirements: Sequence[Requirement], index: Index) -> list[str]:
    """End the call where what later steps rely on does not hold."""
    return [
        f"if (!({index(r.expression)} {_CONDITIONS[r.relation]})) "
        f"return c.failed = {_text(r.message)}, requirement_failed;"
        for r in requirements
    ]


def _text(message: str) -> str:
    plain = message.encode("ascii", "replace").decode().replace("\\", "\\\\").replace('"', '\\"')
    return '"' + plain.replace("\n", "\\n") + '"'


def with_own_sizes(
    call: ExternCall, results: Sequence[Any], values: dict[sympy.Symbol, Any]
) -> dict[sympy.Symbol, Any]:
    """``values`` and the sizes that the results of ``call`` give."""
    own = {
        d.symbol: sympy.Integer(results[d.result].shape[d.dimension])
        for d in call.defines
        if d.dimension is not None
    }
    return values | own
