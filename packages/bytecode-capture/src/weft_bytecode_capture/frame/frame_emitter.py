"""The emitter of transformed code: variables, sources and objects become instructions."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

from weft_guards import (
    ArgumentSource,
    AttributeSource,
    CellContentsSource,
    ClosureSource,
    ConstantSource,
    DictKeySource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    Quantity,
    Source,
    TypeSource,
    is_weak,
)

from ..code_objects.code_builder import CodeBuilder, is_code_constant
from ..sources import CalledSource, ComputedSource, ConvertedSource, DrawnSource, SelectedSource
from ..symbolic.variables.base import Variable
from ..unsupported import Unsupported
from .emitter import Emitter

OBJECTS = "__weft_objects"

_BUILD = {"tuple": "TUPLE", "list": "LIST", "set": "SET", "map": "MAP", "slice": "SLICE"}


class FrameEmitter(CodeBuilder, Emitter):
    """Builds the code that runs in place of a frame.

    Sources are read when the frame starts, whenever :meth:`load_source` is called: the code that reads them
    into temporaries, :meth:`emit_entry_reads`, is emitted last and placed first.
    """

    def __init__(
        self,
        base: types.CodeType,
        cells: frozenset[str],
        graph_outputs: Sequence[Variable],
        as_given: Callable[[Source], Source],
    ) -> None:
        super().__init__(base)
        self._as_given = as_given
        self.objects: list[Any] = []
        self.temporaries: list[str] = []
        self._cells = cells  # names of the frame's cell and free variables
        self._object_index: dict[int, int] = {}
        self._output_index = {id(variable): i for i, variable in enumerate(graph_outputs)}
        self._output_names: list[str] = []
        self._variable_names: dict[int, tuple[Variable, str]] = {}
        self._own_cells: dict[int, tuple[Variable, str]] = {}
        self._made_constants: dict[int, tuple[Variable, Any]] = {}
        self._being_built: set[int] = set()
        self._reads: dict[Source, str] = {}

    # Objects that existed before or are held by the entry.

    def load_object(self, value: Any) -> None:
        index = self._object_index.get(id(value))
        if index is None:
            index = self._object_index[id(value)] = len(self.objects)
            self.objects.append(value)
        self.load_local(OBJECTS)
        super().load_constant(index)
        self.load_subscript()

    def load_constant(self, value: Any) -> None:
        if is_code_constant(value):
            super().load_constant(value)
        else:
            self.load_object(value)

    def load_known(self, value: Any) -> None:
        """Push a constant, an object that the entry keeps alive, or what a weak key stands for.

        The entry is used only while that lives.
        """
        if is_weak(value):
            self.load_callable(value)
            self.call(0)
        else:
            self.load_constant(value)

    def load_source(self, source: Source) -> None:
        if isinstance(source, ConstantSource) and not source.is_weak:
            self.load_constant(source.value)
        elif isinstance(source, ArgumentSource) and source.argument not in self._cells:
            self.load_local(source.argument)
        else:
            name = self._reads.get(source)
            if name is None:
                name = self._reads[source] = self.new_temporary()
            self.load_local(name)

    def load_given(self, source: Source) -> None:
        self.load_source(self._as_given(source))

    def emit_entry_reads(self) -> None:
        """Read every source that was asked for into its temporary; paths that several share, once."""
        uses: dict[Source, int] = {}
        for source in self._reads:
            _count_uses(source, uses)
        reader = _SourceReader(self, self._reads, uses)
        for source, name in self._reads.items():
            if source not in reader.known:
                reader.push(source)
                self.store_local(name)
                reader.known[source] = name

    def load_named(self, name: str) -> None:
        """Push what a local, cell or free variable of the frame holds."""
        if name in self._cells:
            self.add("LOAD_DEREF", local=name)
        else:
            self.load_local(name)

    # Variables.

    def bind_own_cell(self, variable: Variable, name: str) -> None:
        """Let ``variable`` stand for the frame's own cell ``name``."""
        self._own_cells[id(variable)] = (variable, name)

    def bind_graph_outputs(self, names: list[str]) -> None:
        """Say which temporaries hold the graph's outputs."""
        self._output_names = names

    def load_graph_output(self, index: int) -> None:
        self.load_local(self._output_names[index])

    def load_variable(self, variable: Variable) -> None:
        variable = variable.loaded_instead or variable
        key = id(variable)
        if key in self._output_index:
            self.load_graph_output(self._output_index[key])
        elif key in self._own_cells:
            self.load_cell(self._own_cells[key][1])
        elif key in self._variable_names:
            self.load_local(self._variable_names[key][1])
        elif variable.is_made_of_numbers():
            self._build_variable(variable)
        elif variable.is_constant() and _is_singleton(variable.as_constant()):
            self.load_constant(variable.as_constant())
        elif variable.source is not None:
            self.load_source(variable.source)
        elif variable.is_constant():
            self._load_constant_of(variable)
        else:
            self._build_variable(variable)

    def _load_constant_of(self, variable: Variable) -> None:
        """Push a constant made in capture: always the same object, which the code object cannot promise."""
        key = id(variable)
        if key not in self._made_constants:
            self._made_constants[key] = (variable, variable.as_constant())
        value = self._made_constants[key][1]
        if isinstance(value, (str, frozenset)):
            self.load_object(value)
        else:
            self.load_constant(value)

    def _build_variable(self, variable: Variable) -> None:
        key = id(variable)
        if key in self._being_built:
            raise Unsupported(
                "object that contains itself",
                repr(variable),
                "an object made by the captured code refers back to itself and outlives the graph",
            )
        self._being_built.add(key)
        variable.reconstruct(self)
        self._being_built.discard(key)
        name = self.new_temporary()
        self.add("COPY", 1)
        self.store_local(name)
        self._variable_names[key] = (variable, name)

    # Attributes, items, containers.

    def store_attribute(self, name: str) -> None:
        self.add("STORE_ATTR", self.name(name))

    def store_subscript(self) -> None:
        self.add("STORE_SUBSCR")

    def build(self, kind: str, count: int) -> None:
        operation = "STRING" if kind == "string" else _BUILD[kind]
        self.add(f"BUILD_{operation}", count)

    # Calls.

    def load_callable(self, value: Any) -> None:
        with self.callee():
            self.load_object(value)

    # Temporaries and the rest.

    def new_temporary(self) -> str:
        name = f"__weft_{len(self.temporaries)}"
        self.temporaries.append(name)
        return name

    def store_temporary(self) -> str:
        name = self.new_temporary()
        self.store_local(name)
        return name

    def duplicate(self) -> None:
        self.add("COPY", 1)

    def pop(self) -> None:
        self.add("POP_TOP")

    def load_function(self, code: Any, free: Sequence[str]) -> None:
        """Push a new function of the frame's globals, its closure the frame's cells ``free``."""
        if free:
            for name in free:
                self.load_cell(name)
            self.add("BUILD_TUPLE", len(free))
        self.load_constant(code)
        self.make_function(bool(free))


def _is_singleton(value: Any) -> bool:
    return value is None or value is True or value is False or value is Ellipsis


def _base(source: Source) -> Source | None:
    return getattr(source, "base", None)


def _count_uses(source: Source, uses: dict[Source, int]) -> None:
    uses[source] = uses.get(source, 0) + 1
    base = _base(source)
    if base is not None and uses[source] == 1:
        _count_uses(base, uses)


class _SourceReader:
    """Emits the walks of sources; a path that several walks begin with is kept in a temporary."""

    def __init__(
        self, emitter: FrameEmitter, names: dict[Source, str], uses: dict[Source, int]
    ) -> None:
        self.known: dict[Source, str] = {}
        self._emitter = emitter
        self._names = names
        self._uses = uses

    def push(self, source: Source) -> None:
        emitter = self._emitter
        if source in self.known:
            emitter.load_local(self.known[source])
            return
        match source:
            case ArgumentSource():
                emitter.load_named(source.argument)
            case ClosureSource():
                emitter.load_named(source.variable)
            case GlobalSource():
                emitter.load_global(source.variable)
            case ConstantSource():
                emitter.load_known(source.held)
            case AttributeSource():
                self._base(source.base)
                emitter.load_attribute(source.attribute)
            case CellContentsSource():
                self._base(source.base)
                emitter.load_attribute("cell_contents")
            case InstanceDictSource():
                emitter.load_callable(object.__getattribute__)
                self._base(source.base)
                emitter.load_constant("__dict__")
                emitter.call(2)
                if source.key is not None:
                    self._subscript(source.key)
            case ItemSource():
                self._base(source.base)
                self._subscript(source.key)
            case SelectedSource():
                self._selected(source)
            case DictKeySource():
                self._converted(list, source.base)
                self._subscript(source.index)
            case TypeSource():
                self._converted(type, source.base)
            case ConvertedSource():
                self._converted(source.convert, source.base)
            case CalledSource():
                emitter.load_callable(source.call)
                for base in source.bases:
                    self._base(base)
                emitter.call(len(source.bases))
            case DrawnSource():
                emitter.load_callable(source.call)
                for base in source.draws.bases:
                    self._base(base)
                emitter.call(len(source.draws.bases))
            case ComputedSource():
                self._computed(source)
            case _:
                raise Unsupported("source that code cannot read", source.name())

    def _base(self, source: Source) -> None:
        """Push a source that another one starts from."""
        self.push(source)
        named = source in self._names
        walked = _base(source) is not None or isinstance(source, GlobalSource)
        if source not in self.known and (named or (walked and self._uses.get(source, 0) > 1)):
            name = self._names[source] if named else self._emitter.new_temporary()
            self._emitter.duplicate()
            self._emitter.store_local(name)
            self.known[source] = name

    def _converted(self, function: Any, source: Source) -> None:
        self._emitter.load_callable(function)
        self._base(source)
        self._emitter.call(1)

    def _subscript(self, key: Any) -> None:
        self._emitter.load_known(key)
        self._emitter.load_subscript()

    def _computed(self, source: ComputedSource) -> None:
        emitter = self._emitter
        emitter.load_callable(source.compute)
        for number in source.numbers:
            self._base(number.source)
            if number.quantity is not Quantity.VALUE:
                emitter.load_attribute(number.quantity.value)  # tensor.size or tensor.stride
                emitter.prepare_call()
                emitter.load_constant(number.dimension)
                emitter.call(1)
        emitter.call(len(source.numbers))

    def _selected(self, source: SelectedSource) -> None:
        emitter = self._emitter
        self._base(source.base)
        if source.by_name:
            emitter.load_callable(str)
        if source.offset:
            emitter.load_callable(operator.add)
            emitter.load_constant(source.offset)
        self._base(source.index)
        if source.offset:
            emitter.call(2)
        if source.by_name:
            emitter.call(1)
        emitter.load_subscript()
