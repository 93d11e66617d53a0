"""Compiles a guard set's tree into the steps that the native check runs."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import CellType
from typing import Any

import torch

from . import _torch
from .computations import IsComputable, IsFinite, NumbersCompare
from .constants import constants_equal
from .guard import Guard
from .merged_tree import MergedNode, MergedTree
from .native import NATIVE, NATIVE_TORCH, GuardCheck, GuardSelection
from .overlap import StoragesApart, StorageShared
from .predicates import (
    DictContains,
    DictKeysAre,
    EqualsConstant,
    GlobalStateIs,
    HasAttribute,
    IsNotObject,
    IsObject,
    LengthIs,
    NotAliased,
    Predicate,
    SameObject,
    TensorMatches,
    TypeIs,
    keys_equal,
)
from .real_program import Opcode as RealOpcode
from .real_program import real_program
from .relation_program import Opcode, relation_program
from .relations import Place, Quantity, ShapeRelation
from .sections import Section, Sections
from .sources import Scope, Source
from .tree import Access, Tree, compared, predicate_key

# (operation, register read or -1, number, object); what number and object mean is in csrc/program.h.
Step = tuple[int, int, int, Any]


class Operation(enum.IntEnum):
    """The operations of csrc/program.h, in its order."""

    LOAD_ARGUMENT = 0
    LOAD_CLOSURE = enum.auto()
    LOAD_GLOBAL = enum.auto()
    LOAD_CONSTANT = enum.auto()
    LOAD_ATTRIBUTE = enum.auto()
    LOAD_INSTANCE_DICT = enum.auto()
    LOAD_ITEM = enum.auto()
    LOAD_DICT_KEY = enum.auto()
    LOAD_TYPE = enum.auto()
    LOAD_CELL = enum.auto()
    LOAD_PYTHON = enum.auto()
    CHECK_TYPE = enum.auto()
    CHECK_IDENTITY = enum.auto()
    CHECK_WEAK = enum.auto()
    CHECK_NOT_IDENTITY = enum.auto()
    CHECK_CONSTANT = enum.auto()
    CHECK_LENGTH = enum.auto()
    CHECK_KEYS = enum.auto()
    CHECK_CONTAINS = enum.auto()
    CHECK_ATTRIBUTE = enum.auto()
    CHECK_TENSOR = enum.auto()
    CHECK_GLOBAL_STATE = enum.auto()
    CHECK_SAME = enum.auto()
    CHECK_DISTINCT = enum.auto()
    CHECK_RELATION = enum.auto()
    CHECK_REAL = enum.auto()
    CHECK_FINITE = enum.auto()
    CHECK_OVERLAP = enum.auto()
    CHECK_SHARED = enum.auto()
    CHECK_SECTION = enum.auto()
    CHECK_PYTHON = enum.auto()


if NATIVE is not None and (len(Operation), len(Opcode), len(RealOpcode)) != (
    NATIVE.OPERATION_COUNT,
    NATIVE.OPCODE_COUNT,
    getattr(NATIVE, "REAL_OPCODE_COUNT", 0),
):
    raise ImportError("the extension of weft_guards is of another version: build it again")


def _slot(kind: str, names: Sequence[str], name: str) -> int:
    try:
        return names.index(name)
    except ValueError:
        raise ValueError(f"the frame has no {kind} {name!r}; it has {list(names)}") from None


def scope_maker(
    free_variables: Sequence[str],
) -> Callable[[Mapping[str, Any], Any, Any, tuple[CellType, ...] | None], Scope]:
    """A function from arguments by name, globals, builtins and the closure's tuple to a scope."""
    names = tuple(free_variables)

    def make_scope(
        arguments: Mapping[str, Any],
        global_variables: Mapping[str, Any],
        builtins: Mapping[str, Any],
        closure: tuple[CellType, ...] | None,
    ) -> Scope:
        cells = dict(zip(names, closure or (), strict=False))
        return Scope(arguments, global_variables, builtins, cells)

    return make_scope


_LOADS: dict[Access, Operation] = {
    Access.GLOBAL: Operation.LOAD_GLOBAL,
    Access.CONSTANT: Operation.LOAD_CONSTANT,
    Access.ATTRIBUTE: Operation.LOAD_ATTRIBUTE,
    Access.INSTANCE_DICT: Operation.LOAD_INSTANCE_DICT,
    Access.ITEM: Operation.LOAD_ITEM,
    Access.TYPE: Operation.LOAD_TYPE,
    Access.CELL: Operation.LOAD_CELL,
}


def _in_python(predicate: Predicate, register: int) -> Step:
    return Operation.CHECK_PYTHON, register, 0, predicate.holds


def _identity(predicate: IsObject, register: int) -> Step:
    if predicate.weak:
        return Operation.CHECK_WEAK, register, 0, predicate.reference
    return Operation.CHECK_IDENTITY, register, 0, predicate.expected


def _extents(extents: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(-1 if extent is None else extent for extent in extents)


def _tensor(predicate: TensorMatches, register: int) -> Step:
    """A native step for a plain strided tensor whose dtype and device have known numbers."""
    expected = predicate.expected
    tables = NATIVE_TORCH
    if (
        tables is None
        or expected.python_type not in (torch.Tensor, torch.nn.Parameter)
        or expected.layout not in tables.layouts
        or expected.dtype not in tables.dtypes
        or expected.device.type not in tables.device_types
    ):
        return _in_python(predicate, register)
    description = (
        expected.python_type,
        tables.dtypes[expected.dtype],
        tables.device_types[expected.device.type],
        _torch.device_index(expected.device),
        tables.layouts[expected.layout],
        _torch.KEY_MASK,
        _torch.plain_keys(expected.is_conjugate, expected.is_negative, expected.is_inference),
        expected.requires_grad,
        _extents(expected.size),
        None if expected.stride is None else _extents(expected.stride),
    )
    return Operation.CHECK_TENSOR, register, 0, description


def _global_state(predicate: GlobalStateIs, register: int) -> Step:
    numbers = None
    if NATIVE_TORCH is not None:
        numbers = _torch.global_state_numbers(predicate.expected, NATIVE_TORCH)
    if numbers is None:
        return _in_python(predicate, register)
    return Operation.CHECK_GLOBAL_STATE, register, 0, numbers


_CHECKS: dict[type[Predicate], Callable[[Any, int], Step]] = {
    TypeIs: lambda p, register: (Operation.CHECK_TYPE, register, 0, p.expected),
    IsObject: _identity,
    IsNotObject: lambda p, register: (Operation.CHECK_NOT_IDENTITY, register, 0, p.excluded),
    EqualsConstant: lambda p, register: (Operation.CHECK_CONSTANT, register, 0, p.expected),
    LengthIs: lambda p, register: (Operation.CHECK_LENGTH, register, p.expected, None),
    DictKeysAre: lambda p, register: (Operation.CHECK_KEYS, register, 0, p.expected),
    DictContains: lambda p, register: (Operation.CHECK_CONTAINS, register, int(p.present), p.key),
    HasAttribute: lambda p, register: (
        Operation.CHECK_ATTRIBUTE,
        register,
        int(p.present),
        p.attribute,
    ),
    TensorMatches: _tensor,
    IsFinite: lambda p, register: (Operation.CHECK_FINITE, register, 0, None),
    GlobalStateIs: _global_state,
}


class _Compiler:
    """Compiles trees into steps, of which each tree needs some: ``needs``, bits by the steps' numbers."""

    def __init__(
        self, trees: Sequence[Tree], arguments: Sequence[str], free_variables: Sequence[str]
    ) -> None:
        self.trees = trees
        self.merged = MergedTree(trees)
        self.arguments = arguments
        self.free_variables = free_variables
        self.steps: list[Step] = []
        self.needs = [0] * len(trees)
        self.registers: dict[MergedNode, int] = {}
        # Places checked natively to hold a plain tensor before any relation, and by which trees.
        self.plain_tensors: dict[MergedNode, int] = {}

    def compile(self) -> None:
        sections = Sections(self.merged, self.trees)
        for place in self.merged.nodes():
            if place in self.registers:
                continue  # in the section of the dict that it is an item of
            section = sections.of(place)
            self._emit_load(place)
            for guard, trees in place.guards:
                if section is None or guard not in section.own:
                    self._emit_check(place, guard, trees)
            if section is not None:
                self._emit_section(place, section)
        self._compile_relations()

    def _emit_load(self, place: MergedNode) -> None:
        self._emit(self._load(place), place.trees)
        self.registers[place] = len(self.registers)

    def _emit_check(self, place: MergedNode, guard: Guard, trees: int) -> None:
        step = self._check(guard.predicate, self.registers[place])
        self._emit(step, trees)
        if step[0] == Operation.CHECK_TENSOR:
            self.plain_tensors[place] = self.plain_tensors.get(place, 0) | trees

    def _emit_section(self, place: MergedNode, section: Section) -> None:
        step = (Operation.CHECK_SECTION, self.registers[place], section.steps, len(section.lengths))
        self._emit(step, place.trees)
        for guard in section.own:
            self._emit_check(place, guard, place.trees)
        for item in (*section.constant, *section.lengths):
            self._emit_load(item)
            for guard, trees in item.guards:
                self._emit_check(item, guard, trees)

    def _compile_relations(self) -> None:
        emitted: dict[Hashable, int] = {}
        for number, tree in enumerate(self.trees):
            for guard in tree.relations:
                relations = _Relations(self, number, tree)
                step = relations.check(guard)
                key = (relations.registers(guard), predicate_key(guard), step[0])
                if key not in emitted:
                    emitted[key] = len(self.steps)
                    self._emit(step, 0)
                self.needs[number] |= 1 << emitted[key]

    def _emit(self, step: Step, trees: int) -> None:
        for number in range(len(self.trees)):
            if trees >> number & 1:
                self.needs[number] |= 1 << len(self.steps)
        self.steps.append(step)

    def _load(self, place: MergedNode) -> Step:
        node = place.node
        base = -1 if place.parent is None else self.registers[place.parent]
        operand = node.operand
        match node.access:
            case Access.ARGUMENT:
                slot = _slot("argument", self.arguments, operand)
                return Operation.LOAD_ARGUMENT, -1, slot, None
            case Access.CLOSURE:
                slot = _slot("free variable", self.free_variables, operand)
                return Operation.LOAD_CLOSURE, -1, slot, None
            case Access.DICT_KEY:
                return Operation.LOAD_DICT_KEY, base, operand, None
            case Access.GLOBAL_STATE:  # no value; its guards get None
                return Operation.LOAD_CONSTANT, -1, 0, None
            case Access.PYTHON:
                return Operation.LOAD_PYTHON, -1, 0, operand.evaluate
            case _:
                return _LOADS[node.access], base, 0, operand

    def _check(self, predicate: Predicate, register: int) -> Step:
        make = _CHECKS.get(type(predicate))
        return _in_python(predicate, register) if make is None else make(predicate, register)


class _Relations:
    """Steps of one tree's guards on several values."""

    def __init__(self, compiler: _Compiler, number: int, tree: Tree) -> None:
        self._compiler = compiler
        self._number = number
        self._tree = tree

    def check(self, guard: Guard) -> Step:
        predicate = guard.predicate
        register = self._register(guard.source)
        if isinstance(predicate, SameObject | NotAliased):
            same = isinstance(predicate, SameObject)
            operation = Operation.CHECK_SAME if same else Operation.CHECK_DISTINCT
            return operation, register, self._register(predicate.other), None
        step: Step | None = None
        if isinstance(predicate, ShapeRelation):
            step = self._relation(predicate)
        elif isinstance(predicate, NumbersCompare | IsComputable):
            step = self._real(predicate)
        elif isinstance(predicate, StoragesApart):
            step = self._overlap(predicate)
        elif isinstance(predicate, StorageShared):
            step = self._shared(predicate)
        return _in_python(predicate, register) if step is None else step

    def registers(self, guard: Guard) -> tuple[int, ...]:
        """Where the values are that a guard reads."""
        return tuple(map(self._register, (guard.source, *compared(guard.predicate))))

    def _place(self, source: Source) -> MergedNode:
        return self._compiler.merged.place(self._tree.node(source))

    def _register(self, source: Source) -> int:
        return self._compiler.registers[self._place(source)]

    def _is_plain_tensor(self, source: Source) -> bool:
        trees = self._compiler.plain_tensors.get(self._place(source), 0)
        return bool(trees >> self._number & 1)

    def _overlap(self, predicate: StoragesApart) -> Step | None:
        sources = (*predicate.written, *predicate.read)
        if not all(map(self._is_plain_tensor, sources)):
            return None
        registers = tuple(map(self._register, sources))
        return Operation.CHECK_OVERLAP, -1, 0, (len(predicate.written), registers)

    def _shared(self, predicate: StorageShared) -> Step | None:
        if not all(map(self._is_plain_tensor, predicate.tensors)):
            return None
        registers = tuple(map(self._register, predicate.tensors))
        return Operation.CHECK_SHARED, -1, 0, (registers, predicate.offsets)

    def _real(self, predicate: NumbersCompare | IsComputable) -> Step | None:
        program = real_program(predicate, self._register)
        if program is None:
            return None
        outcome = int(predicate.outcome) if isinstance(predicate, NumbersCompare) else -1
        return Operation.CHECK_REAL, -1, outcome, tuple(program)

    def _relation(self, predicate: ShapeRelation) -> Step | None:
        """A program where every tensor in it has been found to be a plain one."""
        places = [(s, place) for s, place in predicate.places if isinstance(place, Place)]
        if len(places) != len(predicate.places) or not all(
            place.quantity is Quantity.VALUE or self._is_plain_tensor(place.source)
            for _, place in places
        ):
            return None
        registers = {s: (place, self._register(place.source)) for s, place in places}
        program = relation_program(predicate.condition, registers)
        return None if program is None else (Operation.CHECK_RELATION, -1, 0, tuple(program))


# A native check's tree, and the names of the frame's arguments and free variables: what merging takes.
Origin = tuple[Tree, tuple[str, ...], tuple[str, ...]]


def compile_native(
    tree: Tree, arguments: tuple[str, ...], free_variables: tuple[str, ...]
) -> GuardCheck:
    """The tree as a native check.

    :raises ValueError: a source names an argument or free variable that the frame has not.
    """
    assert NATIVE is not None
    compiler = _Compiler([tree], arguments, free_variables)
    compiler.compile()
    origin: Origin = (tree, arguments, free_variables)
    check: GuardCheck = NATIVE.GuardCheck(
        compiler.steps, arguments, scope_maker(free_variables), constants_equal, keys_equal, origin
    )
    return check


def is_native(check: GuardCheck) -> bool:
    """Whether the check runs in the extension."""
    return NATIVE is not None and isinstance(check, NATIVE.GuardCheck)


def select_native(checks: tuple[Any, ...]) -> GuardSelection:
    """Native checks of one frame, at least one, as one that says which of them holds.

    :raises ValueError: they were compiled for frames with other arguments or free variables.
    """
    assert NATIVE is not None
    origins: list[Origin] = [check.origin for check in checks]
    frames = {(arguments, free_variables) for _, arguments, free_variables in origins}
    if len(frames) != 1:
        raise ValueError(f"the checks are not of one frame: {sorted(frames)}")
    arguments, free_variables = frames.pop()
    trees = [tree for tree, _, _ in origins]
    compiler = _Compiler(trees, arguments, free_variables)
    compiler.compile()
    size = -(-len(compiler.steps) // 64) * 8  # whole words
    selection: GuardSelection = NATIVE.GuardSelection(
        compiler.steps,
        tuple(needed.to_bytes(size, "little") for needed in compiler.needs),
        arguments,
        scope_maker(free_variables),
        constants_equal,
        keys_equal,
        trees,
    )
    return selection
