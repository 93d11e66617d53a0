"""Sizes and numbers that depend on data: read in the middle of the host program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from weft_loop_ir import BufferView, ExternCall, Loop, Schedule, SymbolDefinition, all_items
from weft_loop_ir.unsupported import Unsupported

from weft_codegen_cpp.host.parts import Pointer
from weft_codegen_cpp.kernel.expressions import NARROW_FLOATS, memory_type

Index = Callable[[Any], str]


def counters(schedule: Schedule) -> tuple[sympy.Symbol, ...]:
    """The symbols of the loops' counters, which are fields of a call."""
    loops = [item for item in all_items(schedule.steps) if isinstance(item, Loop)]
    return tuple(dict.fromkeys(loop.count.symbol for loop in loops if loop.count is not None))


def made_again(schedule: Schedule) -> frozenset[str]:
    """The buffers that several calls make: each branch its own, or one before a loop and one in it."""
    calls = [item for item in all_items(schedule.steps) if isinstance(item, ExternCall)]
    times = Counter(name for call in calls for name in call.outputs if name is not None)
    return frozenset(name for name, number in times.items() if number > 1)


def is_read(call: ExternCall) -> bool:
    """Whether a call reads a number, which the host program does by itself."""
    return call.operator is torch.ops.aten._local_scalar_dense.default


def print_definition(
    call: ExternCall, definition: SymbolDefinition, handle: Callable[[str], str], index: Index
) -> str:
    """Read what ``call`` defines: the element that it reads, or the size of a result.

    ``handle`` gives the C++ expression of a buffer's tensor.
    """
    target = f"c.{definition.symbol.name}"
    if definition.dimension is not None:
        name = call.outputs[definition.result]
        assert name is not None
        read = f"api.get_sizes({handle(name)}, &sizes); {target} = sizes[{definition.dimension}];"
        return f"{{ i64* sizes = nullptr; {read} }}"
    (view,) = call.arguments
    assert isinstance(view, BufferView)
    if view.dtype.is_complex or (memory_type(view.dtype) == "ui8" and view.dtype != torch.uint8):
        raise Unsupported("a number read from a tensor", f"of dtype {view.dtype}")
    element = f"{Pointer(view.buffer)}[{index(view.offset)}]"
    half = NARROW_FLOATS.get(view.dtype)
    if half is not None:
        element = f"{half}_to_f32({element})"
    kind = "i64" if definition.symbol.is_integer else "f64"
    return f"{target} = {kind}({element});"


def quoted(message: str) -> str:
    """``message`` as a C++ string."""
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
