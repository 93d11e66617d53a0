"""What all parts of the host program's printer share: statements, objects, tensors and where they lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sympy
from weft_loop_ir import BufferView, HostWalk, Schedule, Step, definitions, print_index
from weft_loop_ir.unsupported import Unsupported

from weft_codegen_cpp import _torch
from weft_codegen_cpp.host.data_symbols import counters, made_again
from weft_codegen_cpp.host.parts import Message, Pointer, Slot
from weft_codegen_cpp.host.statements import STATUS, AllocationRow, Failure, Row, Statement, ViewRow
from weft_codegen_cpp.kernel.expressions import INDEX, MAGNITUDE, memory_type
from weft_codegen_cpp.options import CppOptions

MAX_DIMENSIONS = 8  # as in weft_host.h


@dataclass(frozen=True)
class Place:
    """Where a call keeps a tensor: an element of a list, of Python objects or of handles."""

    items: str
    number: int
    is_object: bool = True

    def __str__(self) -> str:
        return f"{self.items}[{Slot(self.number)}]"

    @property
    def handle(self) -> str:
        return f"handle_of({self})" if self.is_object else str(self)


class HostWriter(HostWalk):
    """The statements of a host program so far, and what they name.

    ``steps`` are the statements, ``objects`` what the program refers to by position.  ``sources`` maps a
    buffer to where its tensor is, where it has a tensor.  ``owned`` names the buffers
    whose tensors the call owns, by slot, ``made_in_regions`` those whose slot may be empty.  ``views``
    counts the tensors that the program makes once and points elsewhere at each call.  ``functions`` are
    those that it needs besides kernels.
    """

    def __init__(self, schedule: Schedule, options: CppOptions) -> None:
        super().__init__(schedule)
        self.options = options
        self.objects: list[Any] = []
        self.steps: list[Statement] = []
        self.sources: dict[str, Place] = {}
        self.owned: list[str] = []
        self._slots: dict[str, int] = {}  # by buffer, the places in ``owned``
        self.made_in_regions: set[str] = set()
        self.functions: list[str] = []
        self.views = 0
        self.headers: set[str] = set()
        self._none: Place | None = None  # the object, of which one is enough
        self.symbols = {s.symbol: s for s in schedule.symbols}
        self.counters = counters(schedule)
        self.made_again = made_again(schedule)
        given = (definition.symbol for _, definition in definitions(schedule.steps))
        self.given = tuple(dict.fromkeys(given))

    def emit(self, *lines: str, rows: tuple[Row, ...] | None = None) -> None:
        """Append a statement that never ends a call."""
        self.steps.append(Statement(lines, rows=rows))

    def comment(self, text: str) -> None:
        self.emit(f"// {text}", rows=())

    @contextmanager
    def collected(self) -> Iterator[list[Statement]]:
        """What is appended meanwhile, which is kept apart."""
        outer, self.steps = self.steps, []
        yield self.steps
        self.steps = outer

    def nested(self, block: Sequence[Step]) -> list[Statement]:
        """The statements of a region's block.  What a call in it allocates is freed by its next run."""
        with self.collected() as inner:
            self.block(block)
        return inner

    def fail_if(
        self,
        condition: str,
        failure: Failure,
        what: str | None = None,
        rows: tuple[Row, ...] | None = None,
    ) -> None:
        """End the call with ``failure`` where ``condition`` holds; ``what``: a C++ string that says where."""
        noted = "" if what is None else f"c.failed = {Message(what)}, "
        line = f"if ({condition}) return {noted}{STATUS[failure]};"
        self.steps.append(Statement((line,), failure, rows))

    # -- expressions -------------------------------------------------------------------------------------

    def object(self, value: Any) -> Place:
        """A Python object that the program keeps."""
        if value is None and self._none is not None:
            return self._none
        self.objects.append(value)
        place = Place("c.program->objects", len(self.objects) - 1)
        if value is None:
            self._none = place
        return place

    def names(self) -> dict[sympy.Symbol, str]:
        """Where the call keeps sizes, numbers and counters."""
        return {s: f"c.{s.name}" for s in (*self.symbols, *self.counters, *self.given)}

    def magnitudes(self) -> dict[sympy.Symbol, str]:
        """The same as doubles."""
        return {symbol: f"f64({name})" for symbol, name in self.names().items()}

    def index(self, expression: Any) -> str:
        """An integer expression over sizes and counters in C++."""
        return print_index(sympy.sympify(expression), INDEX, self.names())

    def array(self, expressions: Sequence[Any]) -> str:
        """Integers as a pointer to an array that lives until the end of the statement, or for ever."""
        numbers = [sympy.sympify(e) for e in expressions]
        if all(number.is_Integer for number in numbers):
            # an int prints itself a hundred times faster
            return f"fixed<{', '.join(str(int(number)) for number in numbers) or '0'}>"
        items = ", ".join(f"i64({self.index(e)})" for e in numbers)
        return f"Extents<{len(numbers)}>{{{{{items}}}}}.values"

    # -- tensors -----------------------------------------------------------------------------------------

    def point(self, name: str, handle: str) -> None:
        """Let the call's pointer ``name`` be the memory of the tensor ``handle``."""
        type_name = memory_type(self.schedule.buffers[name].layout.dtype)
        self.emit(f"{Pointer(name)} = ({type_name}*)data_of({handle});")

    def own(self, name: str) -> int:
        """A slot for a tensor that this call owns: the one of the buffer ``name``, if it is made again."""
        slot = self._slots.get(name)
        if slot is None:
            slot = len(self.owned)
            self.owned.append(name)
            if name in self.schedule.buffers:
                self._slots[name] = slot
        if self.depth:
            self.made_in_regions.add(name)
        self.sources[name] = Place("c.owned", slot, is_object=False)
        return slot

    def own_object(self, name: str) -> int:
        """A slot for a tensor that comes as a Python object."""
        slot = self.own(name)
        self.sources[name] = Place("c.made", slot)
        return slot

    def allocate(self, name: str) -> None:
        """Print what gives the buffer ``name`` memory that this call owns."""
        layout = self.schedule.buffers[name].layout
        slot = self.own(name)
        self.drop("owned", [slot])
        compound = [e for e in layout.size if not (e.is_Integer or e.is_Symbol)]
        for extent in compound:
            magnitude = print_index(extent, MAGNITUDE, self.magnitudes())
            self.fail_if(f"!({magnitude} < max_bytes)", Failure.TOO_LARGE)
        made = (
            f"{len(layout.size)}, {self.array(layout.size)}, {self.array(layout.stride)}, "
            f"{_torch.dtype_code(layout.dtype)}"
        )
        call = f"allocate({self.sources[name]}, &{Pointer(name)}, {made})"
        is_fixed = _is_fixed((*layout.size, *layout.stride))
        rows = (AllocationRow(name, slot, made),) if is_fixed else None
        self.fail_if(f"!{call}", Failure.OPERATOR, '"allocation"', rows)

    def object_of(self, name: str) -> Place | None:
        """Where the Python object is that is the buffer's tensor, if there is one."""
        source = self.sources.get(name)
        return source if source is not None and source.is_object else None

    def has_memory(self, name: str) -> bool:
        """Whether the program gives the buffer its memory, before the step that writes it."""
        return name in self.schedule.memory.offsets or name in self.sources

    def drop(self, what: str, slots: Sequence[int]) -> None:
        """In a region: free what the last run of this step has left in ``slots``."""
        for slot in slots if self.depth else ():
            self.emit(f"if (c.{what}[{Slot(slot)}]) drop_{what}(c.{what}[{Slot(slot)}]);")

    # -- views -------------------------------------------------------------------------------------------

    def whole_view(self, name: str) -> BufferView:
        """All of a buffer."""
        layout = self.schedule.buffers[name].layout
        return BufferView(name, layout.size, layout.stride, sympy.S.Zero, layout.dtype)

    def is_whole(self, view: BufferView) -> bool:
        return view == self.whole_view(view.buffer)

    def handle(self, view: BufferView) -> str:
        """Print what makes a tensor of ``view``; gives the C++ expression of its handle."""
        if self.is_whole(view) and view.buffer in self.sources:
            return self.sources[view.buffer].handle
        number = self.views
        self.views += 1
        slot = f"c.frame->views[{Slot(number)}]"
        self.set_view(slot, view, number)
        return f"{slot}.handle"

    def address(self, view: BufferView) -> str:
        """The C++ expression of where the first element of ``view`` lies."""
        data = str(Pointer(view.buffer))
        if view.offset != 0:
            data = f"{data} + {self.index(view.offset)} * {self._stride_unit(view)}"
        return data

    def set_view(self, slot: str, view: BufferView, number: int | None = None) -> None:
        """Print what lets ``slot``, a ``View``, be a tensor of ``view``; ``number``: which of a frame's."""
        rank = len(view.size)
        if rank > MAX_DIMENSIONS:
            raise Unsupported("too many dimensions", f"{rank}, of an operator's argument")
        data = self.address(view)
        made = (
            f"{rank}, {self.array(view.size)}, {self.array(view.stride)}, "
            f"{_torch.dtype_code(view.dtype)}"
        )
        rows = self._view_rows(view, number, made)
        self.fail_if(f"!set_view({slot}, {data}, {made})", Failure.OPERATOR, '"a view"', rows)

    def _view_rows(
        self, view: BufferView, number: int | None, layout: str
    ) -> tuple[ViewRow] | None:
        if number is None or not _is_fixed((*view.size, *view.stride, view.offset)):
            return None
        buffer = self.schedule.buffers[view.buffer].layout.dtype
        size = view.dtype.itemsize if memory_type(buffer) == "ui8" else buffer.itemsize
        return (ViewRow(view.buffer, number, int(view.offset) * size, layout),)

    def _stride_unit(self, view: BufferView) -> int:
        """Elements of the pointer's type in one element of the view (1 but for opaque dtypes)."""
        pointer = memory_type(self.schedule.buffers[view.buffer].layout.dtype)
        return view.dtype.itemsize if pointer == "ui8" else 1


def _is_fixed(numbers: Sequence[Any]) -> bool:
    return all(sympy.sympify(number).is_Integer for number in numbers)
