"""Prints the function that makes the tuple of a call's results."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
from weft_loop_ir import BufferView, Unsupported

from weft_codegen_cpp.errors import CodegenError
from weft_codegen_cpp.host.parts import filled, pieces_of
from weft_codegen_cpp.host.writer import HostWriter, Place

MIN_SLOTS = 8
"""New tensors, or views of such, that are put in the tuple by one loop, fewer by a statement each."""


@dataclass(frozen=True)
class _Result:
    """The C++ expression of a result, and where it is if it is one that the call keeps.

    ``form`` is the expression around the slot of a tensor that the call has made.
    """

    code: str
    place: Place | None = None
    form: tuple[str, ...] | None = None


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
    looped = _looped(items)
    for form, positions in looped.items():
        slots = {position: items[position].place for position in positions}
        lines += _loop(form, {k: place.number for k, place in slots.items() if place is not None})
    rest = sorted(set(range(len(items))).difference(*looped.values()))
    for _, same in itertools.groupby(enumerate(rest), lambda one: _like_neighbours(items, *one)):
        positions = [position for _, position in same]
        lines += _put([items[position] for position in positions], positions[0])
    return "\n".join([*lines, "  return tuple.give();", "}", ""])


def _looped(items: Sequence[_Result]) -> dict[tuple[str, ...], list[int]]:
    """The results that are put in the tuple by loops, before others, which may be one of them: by form."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for position, item in enumerate(items):
        if item.form is not None:
            alike.setdefault(item.form, []).append(position)
    return {form: positions for form, positions in alike.items() if len(positions) >= MIN_SLOTS}


def _loop(form: Sequence[str], slots: Mapping[int, int]) -> list[str]:
    """Put results of a form in the tuple, given their slots by position."""
    table = f"table{next(iter(slots))}"
    code = filled(form, [f"{table}[k].slot"])
    rows = ", ".join(f"{{{position}, {slot}}}" for position, slot in slots.items())
    return [
        f"  static const struct {{ i32 position, slot; }} {table}[] = {{{rows}}};",
        f"  for (i64 k = 0; k < {len(slots)}; ++k)",
        f"    if (!put(tuple, {table}[k].position, {code})) return nullptr;",
    ]


def _put(items: Sequence[_Result], position: int) -> list[str]:
    """Put ``items``, which :func:`_like_neighbours` says are alike, in the tuple from ``position`` on.

    Hundreds of parameters, which are inputs or were written in place, are a loop.
    """
    count, first = len(items), items[0]
    if count == 1:
        return [f"  if (!put(tuple, {position}, {first.code})) return nullptr;"]
    code = first.code
    if first.place is not None:
        code = f"same({first.place.items}[position + {first.place.number - position}])"
    return [
        f"  for (i64 position = {position}; position < {position + count}; ++position)",
        f"  if (!put(tuple, position, {code})) return nullptr;",
    ]


def _like_neighbours(
    items: Sequence[_Result], number: int, position: int
) -> tuple[str, int | None, int]:
    """A result's expression, how many before it are in loops; of an object in a list, how much further on.

    A tensor that the call has made is like no other.
    """
    item = items[position]
    if item.place is None:
        return item.code, None, position - number
    if item.form is not None:
        return item.code, position, position - number
    return item.place.items, item.place.number - position, position - number


def _constant(writer: HostWriter, output: Any) -> _Result:
    """A size, or a Python object."""
    if isinstance(output, sympy.Expr):
        return _Result(f"api.PyLong_FromLongLong({writer.index(output)})")
    return _kept(writer.object(output))


def _kept(place: Place) -> _Result:
    if place.is_object:
        return _Result(f"same({place})", place)
    return _new(place, "api.wrap")


def _new(place: Place, function: str, arguments: str = "") -> _Result:
    """What ``function`` makes of a handle in a slot, and of ``arguments``."""
    code = f"{function}({place}{arguments})"
    return _Result(code, place, pieces_of(code)[0])


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
        rest = f"{len(output.size)}, {writer.array(output.size)}, {writer.array(output.stride)}"
        rest = f"{rest}, {writer.index(output.offset)}"
        if source.is_object:
            return _Result(f"shared_view({source.handle}, {rest})")
        return _new(source, "shared_view", f", {rest}")
    if name in made:
        return _Result(f"same(api.PyTuple_GetItem(tuple, {made[name]}))")
    made[name] = position
    return _kept(source)
