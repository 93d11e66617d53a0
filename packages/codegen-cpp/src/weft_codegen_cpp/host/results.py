"""Prints the function that makes the tuple of a call's results."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
from weft_loop_ir import BufferView, Unsupported

from weft_codegen_cpp.errors import CodegenError
from weft_codegen_cpp.host.writer import HostWriter

_OWNED = re.compile(r"api\.wrap\(c\.owned\[(\d+)\]\)")
_IN_A_LIST = re.compile(r"same\((c\.[\w>-]+)\[(\d+)\]\)")

MIN_SLOTS = 8
"""New tensors in a row that are put in the tuple by a loop, fewer by a statement each."""


def print_results(writer: HostWriter, given: Mapping[str, str]) -> str:
    """The function ``results``.  ``given`` maps inputs and constants to the expressions of their objects."""
    outputs = writer.schedule.outputs
    lines = [
        "// The tuple that the call returns.",
        "static Object results(Call& c) {",
        f"  Reference tuple(api.PyTuple_New({len(outputs)}));",
        "  if (!tuple.object) return nullptr;",
    ]
    made: dict[str, int] = {}  # outputs that are whole buffers, returned as one object
    items = [
        _tensor(writer, output, position, made, given)
        if isinstance(output, BufferView)
        else _constant(writer, output)
        for position, output in enumerate(outputs)
    ]
    position = 0
    for (item, distance), same in itertools.groupby(enumerate(items), _like_neighbours):
        count = len(list(same))
        lines += _put(items[position : position + count], position, item, distance)
        position += count
    return "\n".join([*lines, "  return tuple.give();", "}", ""])


def _put(items: Sequence[str], position: int, item: str, distance: int | None) -> list[str]:
    """Put ``items``, which :func:`_like_neighbours` says are alike, in the tuple from ``position`` on.

    Hundreds of parameters, which are inputs or were written in place, or of new tensors are a loop.
    """
    count = len(items)
    if item == _OWNED.pattern and count >= MIN_SLOTS:
        slots = ", ".join(found[1] for found in map(_OWNED.fullmatch, items) if found is not None)
        return [
            f"  static const i32 slots{position}[] = {{{slots}}};",
            f"  for (i64 k = 0; k < {count}; ++k)",
            f"    if (!put(tuple, {position} + k, api.wrap(c.owned[slots{position}[k]]))) return nullptr;",
        ]
    if item == _OWNED.pattern or count == 1:
        return [
            f"  if (!put(tuple, {position + k}, {item})) return nullptr;"
            for k, item in enumerate(items)
        ]
    if distance is not None:
        item = f"same({item}[position + {distance}])"
    return [
        f"  for (i64 position = {position}; position < {position + count}; ++position)",
        f"  if (!put(tuple, position, {item})) return nullptr;",
    ]


def _like_neighbours(numbered: tuple[int, str]) -> tuple[str, int | None]:
    """A result's expression; of an object in a list, the list and how much further on it is there.

    All tensors that the call has made are alike.
    """
    position, item = numbered
    if _OWNED.fullmatch(item):
        return _OWNED.pattern, None
    found = _IN_A_LIST.fullmatch(item)
    return (item, None) if found is None else (found[1], int(found[2]) - position)


def _constant(writer: HostWriter, output: Any) -> str:
    """A size, or a Python object."""
    if isinstance(output, sympy.Expr):
        return f"api.PyLong_FromLongLong({writer.index(output)})"
    return f"same({writer.object(output)})"


def _tensor(
    writer: HostWriter,
    output: BufferView,
    position: int,
    made: dict[str, int],
    given: Mapping[str, str],
) -> str:
    """A tensor, a view of one, or one that an earlier result is too (by ``made``)."""
    name = output.buffer
    layout = writer.schedule.buffers[name].layout
    if output.dtype != layout.dtype:
        raise Unsupported("a result of another dtype", f"{layout.dtype} as {output.dtype}")
    if name not in writer.sources:
        raise CodegenError(f"a result lies in the arena ({name})")
    handle = writer.sources[name]
    if not writer.is_whole(output):
        view = f"{handle}, {len(output.size)}, {writer.array(output.size)}"
        strides, offset = writer.array(output.stride), writer.index(output.offset)
        return f"shared_view({view}, {strides}, {offset})"
    if name in made:
        return f"same(api.PyTuple_GetItem(tuple, {made[name]}))"
    made[name] = position
    if name in given:
        return f"same({given[name]})"
    from_python = writer.object_of(name)
    return f"api.wrap({handle})" if from_python is None else f"same({from_python})"
