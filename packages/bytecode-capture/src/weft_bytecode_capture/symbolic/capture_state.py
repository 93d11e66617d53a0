"""What all evaluators of one frame's capture share."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from weft_guards import (
    AttributeSource,
    ConstantSource,
    DictContains,
    GlobalSource,
    Guard,
    IsObject,
    ItemSource,
    NotAliased,
    Predicate,
    Reason,
    Source,
    TypeIs,
)

from ..frame.emitter import Emitter
from ..source_lines import source_line
from ..sources import DrawnSource
from ..unsupported import Unsupported
from .frame_result import CaptureOptions, FrameInput
from .graph.checkpointed import Checkpoints
from .graph.fake_mode import OperandCheck
from .graph.graph_builder import GraphBuilder
from .kernel_writes import KernelWrites
from .models.iterators.generators import GeneratorVariable
from .overrides import Overrides
from .policy import is_library_module
from .protocol import Evaluator, Frame, Reading
from .regions.decisions import DecodeCache, ProgramPoint
from .regions.identity.aliases import AliasLedger
from .regions.identity.choices import Choice
from .regions.identity.tags import ResultTags
from .shapes import ShapeSymbols
from .side_effects import SideEffects
from .variables.base import Variable
from .variables.builder import VariableBuilder, is_constant_value, root_object
from .variables.python_protocols import resolution_order


class ModuleGlobals:
    """A module's globals as functions defined there see them, with the writes still to be replayed."""

    def __init__(self, dictionary: dict[str, Any], builtins: Any, is_root: bool) -> None:
        self.dictionary = dictionary
        self.builtins = builtins
        self.is_root = is_root
        name = dictionary.get("__name__")
        self.label = f"{name}.__dict__"
        self.trusted = is_library_module(name)
        self.written: dict[str, Variable | None] = {}
        self._cached: dict[str, Variable] = {}
        self._dictionary_source = ConstantSource(self.label, dictionary)

    def source(self, name: str) -> Source:
        if self.is_root:
            return GlobalSource(name)
        return ItemSource(self._dictionary_source, name)

    def load(self, evaluator: Evaluator, name: str) -> Variable:
        """``LOAD_GLOBAL``; raises NameError in the captured program."""
        if name not in self.written:
            evaluator.state.kernel_writes.check_global(self.dictionary, name)
        if name in self.written:
            value = self.written[name]
            if value is not None:
                return value
        else:
            cached = self._cached.get(name)
            if cached is not None:
                return cached
            if name in self.dictionary:
                variable = self._wrap(evaluator, name, self.dictionary[name])
                self._cached[name] = variable
                return variable
        builtins = ConstantSource("builtins.__dict__", self.builtins)
        if name not in self.written and (not self.trusted or name not in self.builtins):
            evaluator.guard(self._dictionary_source, DictContains(name, False))
        if name not in self.builtins:
            evaluator.guard(builtins, DictContains(name, False))
            self._raise_undefined(evaluator, name)
        if not self.trusted:
            evaluator.guard(ItemSource(builtins, name), IsObject(self.builtins[name]))
        variable = evaluator.wrap_known(self.builtins[name], f"builtins.{name}")
        if name not in self.written:
            self._cached[name] = variable
        return variable

    def _raise_undefined(self, evaluator: Evaluator, name: str) -> NoReturn:
        evaluator.raise_error(NameError, f"name {name!r} is not defined", name=name)

    def _wrap(self, evaluator: Evaluator, name: str, value: Any) -> Variable:
        if self.trusted and not is_constant_value(value):
            return evaluator.builder.wrap(value, ConstantSource(f"{self.label}[{name!r}]", value))
        return evaluator.builder.wrap(value, self.source(name))

    def store(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        self.written[name] = value
        evaluator.side_effects.mutated(self)

    def delete(self, evaluator: Evaluator, name: str) -> None:
        present = name in self.dictionary
        evaluator.guard(self._dictionary_source, DictContains(name, present))
        if name in self.written:
            present = self.written[name] is not None
        if not present:
            self._raise_undefined(evaluator, name)
        self.written[name] = None
        evaluator.side_effects.mutated(self)

    def emit_mutation(self, emitter: Emitter) -> None:
        for name, value in self.written.items():
            if value is None:
                if name not in self.dictionary:
                    continue  # the program has made it too
                emitter.run_call(dict.__delitem__, self.dictionary, name)
            else:
                emitter.load_variable(value)
                emitter.load_object(self.dictionary)
                emitter.load_constant(name)
                emitter.store_subscript()


_INSTRUCTIONS_OF_AN_ELEMENT = 10


class NothingToCapture(Exception):
    """A frame computes for long without meeting a tensor: CPython does that faster."""


class _Thread:
    """What guards read of the running thread."""

    @property
    def handled_exception(self) -> BaseException | None:
        return sys.exception()


_THREAD = _Thread()


class CaptureState:
    """Guards, graph, side effects and wrapped objects of one evaluation of one root frame."""

    def __init__(
        self,
        frame: FrameInput,
        options: CaptureOptions,
        graph: Callable[[ShapeSymbols, OperandCheck | None], GraphBuilder],
        cache: DecodeCache,
    ) -> None:
        self.frame = frame
        self.options = options
        self.cache = cache
        self.root: Frame | None = None
        self.current: Frame | None = None
        self.handled_outside = sys.exception()
        self.refused: Frame | None = None  # where an Unsupported was raised first
        self.builder = VariableBuilder(self.current_evaluator)
        self.side_effects = SideEffects()
        self.shapes = ShapeSymbols(
            frame.history,
            options.dynamic,
            options.marks,
            lambda: self.current_evaluator().current_reason(),
        )
        self.graph = graph(self.shapes, options.check_operands)
        self.overrides = Overrides()
        self.guards: dict[tuple[Any, ...], Guard] = {}
        self._reasons: dict[tuple[str, int], Reason] = {}  # by file and line
        self.identified: set[Source] = set()  # sources with an identity guard
        self.key_methods = 0  # how many of keys are being evaluated, one within another
        self.most_digits: int | None = None  # of texts of integers, where the program has set it
        self.thread_number: Variable | None = None  # of the thread that calls
        self.addressed: list[weakref.ref[Variable]] = []  # the addresses that the program may hold
        self.hashed: dict[Variable, None] = {}  # tensors that are keys, in the order of first use
        self.instruction_count = 0
        self.element_count = 0
        self.candidate_count = 0  # branches of loops over places
        self.global_hooks_guarded = False  # that there are none
        self.generators: list[GeneratorVariable] = []
        self.warning_blocks: list[Variable] = []  # of ``catch_warnings``, entered here
        self.drawn: DrawnSource | None = None  # on entry
        self.first_draw: tuple[int, Unsupported] | None = None  # where, of the root frame
        self.context: Variable | None = None  # the copy of the call's that is entered
        self.readings: list[Reading] = []
        self._globals: dict[int, ModuleGlobals] = {}
        self._cells: dict[int, Variable] = {}
        self._type_lookups: dict[tuple[type, str], tuple[type, Any] | None] = {}
        self.checkpoints = Checkpoints()
        self.aliases = AliasLedger()
        decisions = cache.regions
        self.region_tags = ResultTags(
            self.aliases, decisions.tags_wanted, decisions.made_tags_wanted
        )
        # By the storage of a region's result: what decides whether it is an operand.
        self.region_choices: dict[int, Choice] = {}
        # What the graph checks: where one branch only raises; decisions on data that fall as in this call.
        self.assumed: list[ProgramPoint] = []
        self.class_writes: dict[tuple[type, str], Any] = {}  # WrittenAttribute; None: deleted
        self.kernel_writes = KernelWrites()
        # Classes and functions made for this capture, by id, with the root's instruction that made each.
        self.made: dict[int, tuple[Any, int]] = {}

    def current_evaluator(self) -> Frame:
        if self.current is None:
            raise RuntimeError("no evaluator is running")
        return self.current

    def module_globals(self, dictionary: dict[str, Any]) -> ModuleGlobals:
        known = self._globals.get(id(dictionary))
        if known is None:
            is_root = dictionary is self.frame.globals
            builtins = dictionary.get("__builtins__", self.frame.builtins)
            if isinstance(builtins, types.ModuleType):
                builtins = builtins.__dict__
            known = ModuleGlobals(dictionary, builtins, is_root)
            self._globals[id(dictionary)] = known
        return known

    def written_globals(self) -> list[ModuleGlobals]:
        """The modules in which the program has written globals."""
        return [module for module in self._globals.values() if module.written]

    def find_in_type(self, kind: type, name: str) -> tuple[type, Any] | None:
        """The class of ``kind``'s resolution order that defines ``name``, and the raw attribute there."""
        key = (kind, name)
        if key in self._type_lookups:
            return self._type_lookups[key]
        found = None
        for base in resolution_order(kind):
            dictionary = base.__dict__
            if (base, name) in self.class_writes:
                written = self.class_writes[base, name]
                if written is not None:
                    found = (base, written)
                    break
            elif name in dictionary:
                found = (base, dictionary[name])
                break
        self._type_lookups[key] = found
        return found

    def write_to_class(self, kind: type, name: str, written: Any) -> None:
        """Note what a class's own attribute is from now on (None: deleted)."""
        self.class_writes[kind, name] = written
        self._type_lookups.clear()

    def note_made(self, value: Any) -> None:
        """Note that a class or function is there for this capture alone."""
        assert self.root is not None
        self.made[id(value)] = value, self.root.index
        self._type_lookups.clear()

    def is_made(self, value: Any) -> bool:
        """Whether a class or function is there for this capture alone."""
        return id(value) in self.made

    def add_guard(self, source: Source, predicate: Predicate, reason: Callable[[], Reason]) -> None:
        """Add a guard once; identity and type of an object that the guard set holds need none."""
        if isinstance(source, ConstantSource) and isinstance(predicate, (IsObject, TypeIs)):
            return
        if self.made and self.is_made(root_object(source)):
            return
        key = _guard_key(source, predicate)
        if key not in self.guards:
            if isinstance(predicate, IsObject):
                self.identified.add(source)
            self.guards[key] = Guard(source, predicate, reason())

    def reason_at(self, file: str, line: int) -> Reason:
        """The line as what a guard is there for; the guards of a line share it."""
        known = self._reasons.get((file, line))
        if known is None:
            text = source_line(file, line)
            known = self._reasons[file, line] = Reason(file, line, text)
        return known

    def release(self) -> None:
        """Let go of the program's objects at once: variables and evaluators refer to one another."""
        self.builder.release()
        self.graph.release()
        self.__dict__.clear()

    def require_no_caller_handles(self) -> None:
        """Guard that no frame around the captured one handles an exception; Unsupported if one does."""
        if self.handled_outside is not None:
            raise Unsupported("exception that a caller handles", repr(self.handled_outside))
        source = AttributeSource(ConstantSource("thread", _THREAD), "handled_exception")
        self.current_evaluator().guard(source, IsObject(None))

    def note_repetition(self) -> None:
        """Called once in every turn of a loop, and in every call: ends an evaluation that leads nowhere."""
        limit = self.options.python_limit
        work = self.instruction_count + _INSTRUCTIONS_OF_AN_ELEMENT * self.element_count
        if work <= limit or self.options.fullgraph:
            return
        if not self.graph.has_tensors():
            raise NothingToCapture(f"{limit} instructions without a tensor")

    def note_elements(self, count: int) -> None:
        """Called where elements of a sequence are read or compared, each at the cost of a guard."""
        self.element_count += count
        self.note_repetition()

    def is_identified(self, source: Source) -> bool:
        """Whether the guards fix which object is found at a source."""
        return isinstance(source, ConstantSource) or source in self.identified


def _guard_key(source: Source, predicate: Predicate) -> tuple[Any, ...]:
    kind = type(predicate)
    if isinstance(predicate, IsObject):
        return (source, kind, id(predicate.expected))  # held weakly or not
    if isinstance(predicate, NotAliased):
        return (source, kind, predicate.other)
    return (source, kind, predicate.identity())
