"""Resume functions: the rest of a function from one of its instructions on.

A resume function's arguments are what the value stack holds at that instruction, the exceptions that are
being handled, and the bound locals that are still needed.  Cells come in through its closure: all cell and
free variables of the original are its free variables.  Its body is the part of the original that can still
run, with the original's names, lines and exception table, so that tracebacks show the user's code.

One difference remains: reading an unbound cell variable in a resume function raises NameError, not its
subclass UnboundLocalError, as CPython takes the variable for one of an enclosing function.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..code_objects.code_builder import CodeBuilder
from ..code_objects.flow import Stack, StackItem, live_locals, reachable, stacks, successors
from ..code_objects.instructions import DecodedCode, Instruction, Position, clone, decode


class AnalysedCode:
    """A code object's instructions with their stacks and live locals."""

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.decoded: DecodedCode = decode(code)
        self.instructions = self.decoded.instructions
        self.stacks = stacks(self.instructions)
        self.live = live_locals(self.decoded)
        self.cells = code.co_cellvars + code.co_freevars
        cell_names = frozenset(self.cells)
        self.plain_locals = tuple(name for name in code.co_varnames if name not in cell_names)
        self.start = self._first_after_prologue()

    def _first_after_prologue(self) -> int:
        for index, instruction in enumerate(self.instructions):
            if instruction.name == "RESUME":
                return index + 1
        raise ValueError("a code object without RESUME")

    def index_of(self, instruction: Instruction) -> int:
        return self.decoded.index_of(instruction)

    def rebound_in_loop(self, position: int) -> frozenset[str]:
        """The locals that the loops around an instruction bind anew; none where it is in no loop."""
        before: dict[int, list[int]] = {}
        for index in reachable(self.instructions, position):
            for following, _ in successors(self.instructions, self.index_of, index):
                before.setdefault(following, []).append(index)
        iteration: set[int] = set()
        pending = [position]
        while pending:
            for index in before.get(pending.pop(), ()):
                if index not in iteration:
                    iteration.add(index)
                    pending.append(index)
        instructions = [self.instructions[index] for index in iteration]
        return frozenset(str(i.local) for i in instructions if i.name == "STORE_FAST")


@dataclass(frozen=True)
class ResumePoint:
    """Where and with what to go on.

    ``position`` counts the original's instructions without EXTENDED_ARG; ``nulls`` are the places of the
    stack that hold a NULL; ``bound_locals`` the plain locals handed over, in order.
    """

    position: int
    nulls: frozenset[int]
    bound_locals: tuple[str, ...]


@dataclass(frozen=True)
class ResumeFunction:
    """A resume function's code.  ``arguments`` say what each argument is, in order: ("stack", place),
    ("handled", number of the except clause, outermost first), ("local", name) or ("cell", name) for the
    contents of a cell.  ``positions`` maps its instructions to the original's, None for its own."""

    code: types.CodeType
    arguments: tuple[tuple[str, int | str], ...]
    original: AnalysedCode
    positions: tuple[int | None, ...]


class ResumeFunctions:
    """Makes resume functions and keeps them, so that one point always gives one code object."""

    def __init__(self) -> None:
        self._analysed: dict[int, AnalysedCode] = {}
        self._made: dict[tuple[int, ResumePoint], ResumeFunction] = {}
        self._by_code: dict[int, ResumeFunction] = {}
        self._varying: dict[int, set[str]] = {}

    def analysed(self, code: types.CodeType) -> AnalysedCode:
        known = self._analysed.get(id(code))
        if known is None:
            known = self._analysed[id(code)] = AnalysedCode(code)
        return known

    def of_code(self, code: types.CodeType) -> ResumeFunction | None:
        """The resume function that a code object belongs to, None for a user's."""
        return self._by_code.get(id(code))

    def original(self, code: types.CodeType) -> types.CodeType:
        """The user's code object that a resume function continues; any other code object itself."""
        resume = self.of_code(code)
        return code if resume is None else resume.original.code

    def varying(self, code: types.CodeType) -> frozenset[str]:
        """The arguments of a resume function that a loop gives, something else in each turn."""
        return frozenset(self._varying.get(id(code), ()))

    def note_varying(
        self, resume: ResumeFunction, arguments: Iterable[tuple[str, int | str]]
    ) -> None:
        """Say that a loop gives some of a resume function's arguments."""
        numbers = map(resume.arguments.index, set(arguments).intersection(resume.arguments))
        names = self._varying.setdefault(id(resume.code), set())
        names.update(resume.code.co_varnames[number] for number in numbers)

    def get(self, original: AnalysedCode, point: ResumePoint) -> ResumeFunction:
        key = (id(original.code), point)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = make_resume_function(original, point)
            self._by_code[id(made.code)] = made
        return made

    def clear(self) -> None:
        self._analysed.clear()
        self._made.clear()
        self._by_code.clear()
        self._varying.clear()


def make_resume_function(original: AnalysedCode, point: ResumePoint) -> ResumeFunction:
    stack = original.stacks[point.position]
    if stack is None:
        raise ValueError("no way leads to the instruction to resume at")
    keep = sorted(reachable(original.instructions, point.position))
    body = [original.instructions[i] for i in keep]
    copies, copy_of = clone(body)
    arguments = _arguments(original, point, stack)
    names = _parameter_names(arguments, {i.local for i in body if i.local is not None})
    locals_ = names + tuple(n for n in original.plain_locals if n not in names and _used(n, body))

    builder = CodeBuilder(original.code)
    landing = original.instructions[point.position]
    line = landing.position.line or original.code.co_firstlineno
    builder.position = Position(line, *landing.position[1:])
    builder.prologue((), len(original.cells))
    _restore_stack(builder, stack, point.nulls, dict(zip(arguments, names, strict=True)))
    if copies[0] is not copy_of[id(landing)]:
        builder.add("JUMP_FORWARD", target=copy_of[id(landing)])
    own = len(builder.instructions)
    builder.instructions.extend(copies)
    code = builder.finish(
        original.code,
        locals_,
        (),
        original.cells,
        co_argcount=len(names),
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=original.code.co_flags & ~(_VARIABLE_ARGUMENTS),
    )
    return ResumeFunction(code, arguments, original, (None,) * own + tuple(keep))


_VARIABLE_ARGUMENTS = 0x04 | 0x08  # CO_VARARGS, CO_VARKEYWORDS


def _used(name: str, body: Sequence[Instruction]) -> bool:
    return any(instruction.local == name for instruction in body)


def _arguments(
    original: AnalysedCode, point: ResumePoint, stack: Stack
) -> tuple[tuple[str, int | str], ...]:
    locals_: list[tuple[str, int | str]] = [("local", name) for name in point.bound_locals]
    first: list[tuple[str, int | str]] = []
    if "__class__" in original.code.co_freevars and original.code.co_argcount:
        # super() without arguments takes the frame's first slot.
        name = original.code.co_varnames[0]
        if ("local", name) in locals_:
            locals_.remove(("local", name))
            first.append(("local", name))
        elif name in original.cells:
            first.append(("cell", name))
    values: list[tuple[str, int | str]] = [
        ("stack", place)
        for place, item in enumerate(stack)
        if item is StackItem.VALUE and place not in point.nulls
    ]
    handled: list[tuple[str, int | str]] = [
        ("handled", number) for number in range(stack.count(StackItem.PREVIOUS))
    ]
    return (*first, *values, *handled, *locals_)


def _parameter_names(
    arguments: tuple[tuple[str, int | str], ...], taken: set[str]
) -> tuple[str, ...]:
    names = []
    for kind, which in arguments:
        if kind == "local":
            names.append(str(which))
            continue
        name = f"__{kind}{which}" if kind != "cell" else "__first"
        while name in taken:
            name += "_"
        names.append(name)
    return tuple(names)


def _restore_stack(
    builder: CodeBuilder,
    stack: Stack,
    nulls: frozenset[int],
    names: dict[tuple[str, int | str], str],
) -> None:
    """Push what the stack held; handled exceptions become the thread's handled exception again."""
    clause = 0
    for place, item in enumerate(stack):
        if item is StackItem.VALUE:
            if place in nulls:
                builder.add("PUSH_NULL")
            else:
                _move(builder, names[("stack", place)])
        elif item is StackItem.OFFSET:
            builder.load_constant(0)  # only for the line of a frame that is being left
        elif item is StackItem.PREVIOUS:
            _move(builder, names[("handled", clause)])
            push_handled(builder, stack, place)
            clause += 1


def push_handled(builder: CodeBuilder, stack: Stack, place: int) -> None:
    """With an exception on the stack: enter its except clause, leaving what ``stack`` has there."""
    builder.add("PUSH_EXC_INFO")
    if place + 1 >= len(stack) or stack[place + 1] is not StackItem.EXCEPTION:
        builder.add("POP_TOP")


def _move(builder: CodeBuilder, name: str) -> None:
    """Push an argument; the frame does not keep it alive."""
    builder.load_local(name)
    builder.delete_local(name)
