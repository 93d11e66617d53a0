"""The emitter of transformed code: variables, sources and objects become instructions."""

from __future__ import annotations

import operator
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
    Source,
    TypeSource,
)

from ..code_objects.builder import CodeBuilder, is_code_constant
from ..sources import ConvertedSource, SelectedSource
from ..symbolic.variables.base import Variable
from ..unsupported import Unsupported
from .emitter import Emitter

OBJECTS = "__weft_objects"

_BUILD = {"tuple": "TUPLE", "list": "LIST", "set": "SET", "map": "MAP", "slice": "SLICE"}


class FrameEmitter(Emitter):
    """Emits into a :class:`CodeBuilder`.

    Sources are read when the frame starts, whenever :meth:`load_source` is called: the code that reads them
    into temporaries, :meth:`emit_entry_reads`, is emitted last and placed first.
    """

    def __init__(
        self,
        builder: CodeBuilder,
        cells: frozenset[str],
        graph_outputs: Sequence[Variable],
    ) -> None:
        self.builder = builder
        self.objects: list[Any] = []
        self.temporaries: list[str] = []
        self._cells = cells  # names of the frame's cell and free variables
        self._object_index: dict[int, int] = {}
        self._output_index = {id(variable): i for i, variable in enumerate(graph_outputs)}
        self._output_names: list[str] = []
        self._variable_names: dict[int, tuple[Variable, str]] = {}
        self._own_cells: dict[int, tuple[Variable, str]] = {}
        self._constants: dict[int, tuple[Variable, Any]] = {}
        self._being_built: set[int] = set()
        self._reads: dict[Source, str] = {}

    # Objects that existed before or are held by the entry.

    def load_object(self, value: Any) -> None:
        index = self._object_index.get(id(value))
        if index is None:
            index = self._object_index[id(value)] = len(self.objects)
            self.objects.append(value)
        self.builder.load_local(OBJECTS)
        self.builder.load_constant(index)
        self.builder.load_subscript()

    def load_constant(self, value: Any) -> None:
        if is_code_constant(value):
            self.builder.load_constant(value)
        else:
            self.load_object(value)

    def load_source(self, source: Source) -> None:
        if isinstance(source, ConstantSource):
            self.load_constant(source.value)
        elif isinstance(source, ArgumentSource) and source.argument not in self._cells:
            self.builder.load_local(source.argument)
        else:
            name = self._reads.get(source)
            if name is None:
                name = self._reads[source] = self.new_temporary()
            self.builder.load_local(name)

    def emit_entry_reads(self) -> None:
        """Read every source that was asked for into its temporary; paths that several share, once."""
        uses: dict[Source, int] = {}
        for source in self._reads:
            _count_uses(source, uses)
        reader = _SourceReader(self, self._reads, uses)
        for source, name in self._reads.items():
            if source not in reader.known:
                reader.push(source)
                self.builder.store_local(name)
                reader.known[source] = name

    def load_cell(self, name: str) -> None:
        self.builder.load_cell(name)

    # Variables.

    def bind_own_cell(self, variable: Variable, name: str) -> None:
        """Let ``variable`` stand for the frame's own cell ``name``."""
        self._own_cells[id(variable)] = (variable, name)

    def bind_graph_outputs(self, names: list[str]) -> None:
        """Say which temporaries hold the graph's outputs."""
        self._output_names = names

    def load_graph_output(self, index: int) -> None:
        self.builder.load_local(self._output_names[index])

    def load_variable(self, variable: Variable) -> None:
        variable = variable.loaded_instead or variable
        key = id(variable)
        if key in self._output_index:
            self.load_graph_output(self._output_index[key])
        elif key in self._own_cells:
            self.load_cell(self._own_cells[key][1])
        elif key in self._variable_names:
            self.builder.load_local(self._variable_names[key][1])
        elif variable.is_constant() and _is_singleton(variable.as_constant()):
            self.builder.load_constant(variable.as_constant())
        elif variable.source is not None:
            self.load_source(variable.source)
        elif variable.is_constant():
            self._load_constant_of(variable)
        else:
            self._build_variable(variable)

    def _load_constant_of(self, variable: Variable) -> None:
        """Push a constant made in capture: always the same object, which the code object cannot promise."""
        key = id(variable)
        if key not in self._constants:
            self._constants[key] = (variable, variable.as_constant())
        value = self._constants[key][1]
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
        self.builder.add("COPY", 1)
        self.builder.store_local(name)
        self._variable_names[key] = (variable, name)

    # Attributes, items, containers.

    def load_attribute(self, name: str) -> None:
        self.builder.load_attribute(name)

    def store_attribute(self, name: str) -> None:
        self.builder.add("STORE_ATTR", self.builder.name(name))

    def load_subscript(self) -> None:
        self.builder.load_subscript()

    def store_subscript(self) -> None:
        self.builder.add("STORE_SUBSCR")

    def delete_subscript(self) -> None:
        self.builder.add("DELETE_SUBSCR")

    def build(self, kind: str, count: int) -> None:
        operation = "STRING" if kind == "string" else _BUILD[kind]
        self.builder.add(f"BUILD_{operation}", count)

    # Calls.

    def load_callable(self, value: Any) -> None:
        with self.builder.callee():
            self.load_object(value)

    def prepare_call(self) -> None:
        self.builder.make_callee()

    def call(self, count: int, keywords: tuple[str, ...] = ()) -> None:
        self.builder.call(count, keywords)

    def call_unpacked(self, with_keywords: bool) -> None:
        self.builder.call_unpacked(with_keywords)

    # Temporaries and the rest.

    def new_temporary(self) -> str:
        name = f"__weft_{len(self.temporaries)}"
        self.temporaries.append(name)
        return name

    def store_temporary(self) -> str:
        name = self.new_temporary()
        self.builder.store_local(name)
        return name

    def load_temporary(self, name: str) -> None:
        self.builder.load_local(name)

    def store_global(self, name: str) -> None:
        self.builder.add("STORE_GLOBAL", self.builder.name(name))

    def duplicate(self) -> None:
        self.builder.add("COPY", 1)

    def pop(self) -> None:
        self.builder.add("POP_TOP")

    def load_function(self, code: Any, free: Sequence[str]) -> None:
        """Push a new function of the frame's globals, its closure the frame's cells ``free``."""
        if free:
            for name in free:
                self.load_cell(name)
            self.builder.add("BUILD_TUPLE", len(free))
        self.builder.load_constant(code)
        self.builder.make_function(bool(free))


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
        self._builder = emitter.builder
        self._names = names
        self._uses = uses

    def push(self, source: Source) -> None:
        if source in self.known:
            self._builder.load_local(self.known[source])
            return
        reader = _READERS.get(type(source))
        if reader is None:
            raise Unsupported("source that code cannot read", source.name())
        reader(self, source)

    def base(self, source: Source) -> None:
        """Push a source that another one starts from."""
        self.push(source)
        named = source in self._names
        walked = _base(source) is not None or isinstance(source, GlobalSource)
        if source not in self.known and (named or (walked and self._uses.get(source, 0) > 1)):
            name = self._names[source] if named else self._emitter.new_temporary()
            self._builder.add("COPY", 1)
            self._builder.store_local(name)
            self.known[source] = name

    def argument(self, source: Any) -> None:
        self.variable(source.argument)

    def closure(self, source: Any) -> None:
        self.variable(source.variable)

    def variable(self, name: str) -> None:
        if name in self._emitter._cells:
            self._builder.add("LOAD_DEREF", local=name)
        else:
            self._builder.load_local(name)

    def global_variable(self, source: Any) -> None:
        self._builder.load_global(source.variable)

    def constant(self, source: Any) -> None:
        self._emitter.load_constant(source.value)

    def attribute(self, source: Any) -> None:
        self.base(source.base)
        self._builder.load_attribute(source.attribute)

    def instance_dictionary(self, source: Any) -> None:
        self._emitter.load_callable(object.__getattribute__)
        self.base(source.base)
        self._emitter.load_constant("__dict__")
        self._builder.call(2)
        if source.key is not None:
            self._emitter.load_constant(source.key)
            self._builder.load_subscript()

    def item(self, source: Any) -> None:
        self.base(source.base)
        self._emitter.load_constant(source.key)
        self._builder.load_subscript()

    def selected(self, source: Any) -> None:
        self.base(source.base)
        if source.by_name:
            self._emitter.load_callable(str)
        if source.offset:
            self._emitter.load_callable(operator.add)
            self._emitter.load_constant(source.offset)
        self.base(source.index)
        if source.offset:
            self._builder.call(2)
        if source.by_name:
            self._builder.call(1)
        self._builder.load_subscript()

    def dictionary_key(self, source: Any) -> None:
        self._emitter.load_callable(list)
        self.base(source.base)
        self._builder.call(1)
        self._builder.load_constant(source.index)
        self._builder.load_subscript()

    def type_of(self, source: Any) -> None:
        self._emitter.load_callable(type)
        self.base(source.base)
        self._builder.call(1)

    def converted(self, source: Any) -> None:
        self._emitter.load_callable(source.convert)
        self.base(source.base)
        self._builder.call(1)

    def cell_contents(self, source: Any) -> None:
        self.base(source.base)
        self._builder.load_attribute("cell_contents")


_READERS: dict[type[Source], Callable[[_SourceReader, Any], None]] = {
    ArgumentSource: _SourceReader.argument,
    ClosureSource: _SourceReader.closure,
    GlobalSource: _SourceReader.global_variable,
    ConstantSource: _SourceReader.constant,
    AttributeSource: _SourceReader.attribute,
    InstanceDictSource: _SourceReader.instance_dictionary,
    ItemSource: _SourceReader.item,
    DictKeySource: _SourceReader.dictionary_key,
    TypeSource: _SourceReader.type_of,
    ConvertedSource: _SourceReader.converted,
    SelectedSource: _SourceReader.selected,
    CellContentsSource: _SourceReader.cell_contents,
}
