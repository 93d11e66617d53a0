"""Compiles a guard set's tree into the steps that the native check runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import CellType
from typing import Any

from .constants import constants_equal
from .guard import Guard
from .merged_tree import MergedNode, MergedTree
from .native import NATIVE, GuardCheck, GuardSelection
from .operations import NativeStep, Operation, Registers
from .predicates.base import Predicate
from .predicates.containers import keys_equal
from .real_program import Opcode as RealOpcode
from .relation_program import Opcode
from .sections import Section, Sections
from .sources import Scope, Source
from .tree import Access, Tree, predicate_key
from .weak_keys import is_weak

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


class _Compiler:
    """Compiles trees into steps, each of which some trees need: ``trees_of``, bits by the trees' numbers."""

    def __init__(
        self, trees: Sequence[Tree], arguments: Sequence[str], free_variables: Sequence[str]
    ) -> None:
        self.trees = trees
        self.merged = MergedTree(trees)
        self.arguments = arguments
        self.free_variables = free_variables
        self.steps: list[NativeStep] = []
        self.trees_of: list[int] = []  # by the steps' numbers
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
        # no check of a single value tells trees apart
        step = _step(guard.predicate, _GuardRegisters(self, 0, self.registers[place]))
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
                own = self.registers[self.merged.place(tree.node(guard.source))]
                registers = _GuardRegisters(self, number, own)
                step = _step(guard.predicate, registers)
                read = (own, *map(registers.of, guard.predicate.sources()))
                key = (read, predicate_key(guard), step[0])
                if key not in emitted:
                    emitted[key] = len(self.steps)
                    self._emit(step, 0)
                self.trees_of[emitted[key]] |= 1 << number

    def _emit(self, step: NativeStep, trees: int) -> None:
        self.steps.append(step)
        self.trees_of.append(trees)

    def needed(self, number: int) -> bytes:
        """The steps that a tree needs, a bit each, in whole words."""
        bits = 0
        for step, trees in enumerate(self.trees_of):
            bits |= (trees >> number & 1) << step
        return bits.to_bytes(-(-len(self.steps) // 64) * 8, "little")

    def _load(self, place: MergedNode) -> NativeStep:
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
                return _LOADS[node.access], base, int(is_weak(operand)), operand


@dataclass(frozen=True)
class _GuardRegisters:
    """Where the values of one tree's guard are, whose own is in ``own``."""

    compiler: _Compiler
    number: int
    own: int

    def of(self, source: Source) -> int:
        return self.compiler.registers[self._place(source)]

    def is_plain_tensor(self, source: Source) -> bool:
        trees = self.compiler.plain_tensors.get(self._place(source), 0)
        return bool(trees >> self.number & 1)

    def _place(self, source: Source) -> MergedNode:
        return self.compiler.merged.place(self.compiler.trees[self.number].node(source))


def _step(predicate: Predicate, registers: Registers) -> NativeStep:
    step = predicate.native_step(registers)
    return (Operation.CHECK_PYTHON, registers.own, 0, predicate.holds) if step is None else step


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
    selection: GuardSelection = NATIVE.GuardSelection(
        compiler.steps,
        tuple(map(compiler.needed, range(len(trees)))),
        arguments,
        scope_maker(free_variables),
        constants_equal,
        keys_equal,
        trees,
    )
    return selection
