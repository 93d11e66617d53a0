"""Prints the function that makes the tuple of a call's results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
from weft_loop_ir import BufferView

from weft_codegen_cpp.errors import CodegenError
from weft_codegen_cpp.host.writer import HostWriter


def print_results(writer: HostWriter, given: Mapping[str, str]) -> str:
    """The function ``results``.  ``given`` maps inputs and constants to the expressions of their objects."""
    outputs = writer.schedule.outputs
    lines = [
        "// The tuple that the call returns.",
        "static Object results(Call& c) {",
        f"  Object tuple = api.PyTuple_New({len(outputs)});",
        "  Object item = nullptr;",
    ]
    made: dict[str, int] = {}  # outputs that are whole buffers, returned as one object
    for position, output in enumerate(outputs):
        if isinstance(output, BufferView):
            item = _tensor(writer, output, position, made, given)
        else:
            item = _constant(writer, output)
        lines += ["  " + line for line in item]
        lines.append("  if (!item) { api.Py_DecRef(tuple); return nullptr; }")
        lines.append(f"  api.PyTuple_SetItem(tuple, {position}, item);")
    return "\n".join([*lines, "  return tuple;", "}", ""])


def _same_object(expression: str) -> list[str]:
    return [f"item = {expression};", "api.Py_IncRef(item);"]


def _constant(writer: HostWriter, output: Any) -> list[str]:
    """A size, or a Python object."""
    if isinstance(output, sympy.Expr):
        return [f"item = api.PyLong_FromLongLong({writer.index(output)});"]
    return _same_object(writer.object(output))


def _tensor(
    writer: HostWriter,
    output: BufferView,
    position: int,
    made: dict[str, int],
    given: Mapping[str, str],
) -> list[str]:
    """A tensor, a view of one, or one that an earlier result is too (by ``made``)."""
    name = output.buffer
    layout = writer.schedule.buffers[name].layout
    if output.dtype != layout.dtype:
        raise CodegenError(f"a result that views {layout.dtype} as {output.dtype}")
    if name not in writer.sources:
        raise CodegenError(f"a result lies in the arena ({name})")
    handle = writer.sources[name]
    if not writer.is_whole(output):
        view = f"{handle}, {len(output.size)}, {writer.array(output.size)}"
        strides, offset = writer.array(output.stride), writer.index(output.offset)
        return [f"item = shared_view({view}, {strides}, {offset});"]
    if name in made:
        return _same_object(f"api.PyTuple_GetItem(tuple, {made[name]})")
    made[name] = position
    if name in given:
        return _same_object(given[name])
    from_python = writer.object_of(name)
    return [f"item = api.wrap({handle});"] if from_python is None else _same_object(from_python)
