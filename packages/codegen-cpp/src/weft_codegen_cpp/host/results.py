"""Prints the function that makes the tuple of a call's results."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
from weft_loop_ir import BufferView, Unsupported

from weft_codegen_cpp.errors import CodegenError
from weft_codegen_cpp.host.writer import HostWriter, Place

MIN_SLOTS = 8
"""New tensors in a row that are put in the tuple by a loop, fewer by a statement each."""


@dataclass(frozen=True)
class _Result:
    """The C++ expression of a result, and where it is if it is one that the call keeps."""

    code: str
    place: Place | None = None

    @property
    def is_new(self) -> bool:
        """Whether it is a tensor that the call has made and that is no Python object yet."""
        return self.place is not None and not self.place.is_object


def print_results(writer: HostWriter) -> str:
    """The function ``results``."""
    outputs = writer.schedule.outputs
    lines = [
        "// The tuple that the call returns.",
        "static Object results(Call& c) {",
        f"  Reference tuple(api.PyTuple_New({len(outputs)}));",
        "  if (!tuple.object) return nullptr;",
    ]
    made: dict[str, int] = {}  # outputs that are whole buffers, returned as one object
    items = [
        _tensor(writer, output, position, made)
        if isinstance(output, BufferView)
        else _constant(writer, output)
        for position, output in enumerate(outputs)
    ]
    position = 0
    for _, same in itertools.groupby(enumerate(items), _like_neighbours):
        count = len(list(same))
        lines += _put(items[position : position + count], position)
        position += count
    return "\n".join([*lines, "  return tuple.give();", "}", ""])


def _put(items: Sequence[_Result], position: int) -> list[str]:
    """Put ``items``, which :func:`_like_neighbours` says are alike, in the tuple from ``position`` on.

    Hundreds of parameters, which are inputs or were written in place, or of new tensors are a loop.
    """
    count, first = len(items), items[0]
    if first.is_new and count >= MIN_SLOTS:
        slots = ", ".join(str(item.place.number) for item in items if item.place is not None)
        return [
            f"  static const i32 slots{position}[] = {{{slots}}};",
            f"  for (i64 k = 0; k < {count}; ++k)",
            f"    if (!put(tuple, {position} + k, api.wrap(c.owned[slots{position}[k]]))) return nullptr;",
        ]
    if first.is_new or count == 1:
        return [
            f"  if (!put(tuple, {position + k}, {item.code})) return nullptr;"
            for k, item in enumerate(items)
        ]
    code = first.code
    if first.place is not None:
        code = f"same({first.place.items}[position + {first.place.number - position}])"
    return [
        f"  for (i64 position = {position}; position < {position + count}; ++position)",
        f"  if (!put(tuple, position, {code})) return nullptr;",
    ]


def _like_neighbours(numbered: tuple[int, _Result]) -> tuple[str, int | None]:
    """A result's expression; of an object in a list, the list and how much further on it is there.

    All tensors that the call has made are alike.
    """
    position, item = numbered
    if item.place is None:
        return item.code, None
    return item.place.items, None if item.is_new else item.place.number - position


def _constant(writer: HostWriter, output: Any) -> _Result:
    """A size, or a Python object."""
    if isinstance(output, sympy.Expr):
        return _Result(f"api.PyLong_FromLongLong({writer.index(output)})")
    return _kept(writer.object(output))


def _kept(place: Place) -> _Result:
    return _Result(f"same({place})" if place.is_object else f"api.wrap({place})", place)


def _tensor(writer: HostWriter, output: BufferView, position: int, made: dict[str, int]) -> _Result:
    """A tensor, a view of one, or one that an earlier result is too (by ``made``)."""
    name = output.buffer
    layout = writer.schedule.buffers[name].layout
    if output.dtype != layout.dtype:
        raise Unsupported("a result of another dtype", f"{layout.dtype} as {output.dtype}")
    if name not in writer.sources:
        raise CodegenError(f"a result lies in the arena ({name})")
    source = writer.sources[name]
    if not writer.is_whole(output):
        view = f"{source.handle}, {len(output.size)}, {writer.array(output.size)}"
        strides, offset = writer.array(output.stride), writer.index(output.offset)
        return _Result(f"shared_view({view}, {strides}, {offset})")
    if name in made:
        return _Result(f"same(api.PyTuple_GetItem(tuple, {made[name]}))")
    made[name] = position
    return _kept(source)
