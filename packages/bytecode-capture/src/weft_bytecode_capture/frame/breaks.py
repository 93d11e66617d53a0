"""The part of transformed code that runs a breaking instruction and goes on behind it."""

from __future__ import annotations

import sys
import types
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from weft_guards import ArgumentSource

from .._frame_hook import bound
from ..code_objects.dialects import DIALECT
from ..code_objects.flow import Stack, StackItem, passed_over, reachable
from ..code_objects.instructions import Instruction, Position, clone
from ..symbolic.frame_result import Break
from ..symbolic.liveness import is_kept, is_lasting
from ..symbolic.models.numbers.representations import NumberVariable
from ..symbolic.variables.base import Variable
from ..unsupported import Unsupported
from .frame_emitter import OBJECTS, FrameEmitter
from .instructions_after_breaks import Tail, find_tail, tail_of_loop
from .resume import AnalysedCode, ResumeFunctions, ResumePoint, push_handled

_GIVE_ANEW = frozenset({"next()", "call of a builtin function"})
"""Kinds of breaks at instructions that may give something else in each call."""


@dataclass(frozen=True)
class _Exit:
    """Where the frame is left: behind the instruction at ``position``, and at the target of its jump.

    ``stored`` are the plain locals that the tail has stored by then, ``stored_at_jump`` where it jumps,
    ``varying`` what a loop gives then, something else in each turn, as arguments of a resume function.
    """

    position: int
    by_jump_only: bool
    stored: tuple[str, ...] = ()
    stored_at_jump: tuple[str, ...] = ()
    varying: tuple[tuple[str, int | str], ...] = ()


class BreakEmission:
    """Emits a :class:`Break`: :meth:`load_state`, then :meth:`store_state_and_go_on`."""

    def __init__(
        self,
        code: types.CodeType,
        ending: Break,
        emitter: FrameEmitter,
        resume_functions: ResumeFunctions,
        resumption: Any,
    ) -> None:
        self.code = code
        self.ending = ending
        self.emitter = emitter
        self.resume_functions = resume_functions
        self.resumption = resumption
        self.original, position = self._original_position()
        # The instructions that make up the breaking one: a call with what prepares it.
        self.first, self.last = call_unit(self.original.instructions, position)
        self.position: Position = self.original.instructions[self.last].position
        self.original_locals = self.original.plain_locals
        stack = self.original.stacks[self.first]
        if stack is None or len(stack) != len(ending.stack):
            raise ValueError(
                f"a stack of {len(ending.stack)} at instruction {ending.instruction} of "
                f"{code.co_qualname}, expected {stack}"
            )
        self.stack: Stack = stack
        self.restored = self._restored_locals()
        self.tail = self._find_tail()
        self.stack_temporaries: dict[int, str] = {}
        for name, variable in ending.cell_variables.items():
            emitter.bind_own_cell(variable, name)

    def _original_position(self) -> tuple[AnalysedCode, int]:
        """The user's code and the breaking instruction in it, also when the frame is a resume function's."""
        frame = self.resume_functions.analysed(self.code)
        position = frame.index_of(frame.decoded.by_index[self.ending.instruction])
        resume = self.resume_functions.of_code(self.code)
        if resume is None:
            if position < frame.start:
                raise Unsupported("break before the function's first instruction")
            return frame, position
        original_position = resume.positions[position]
        if original_position is None:
            raise Unsupported(
                "break while restoring a frame", "", "a value handed over cannot be represented"
            )
        return resume.original, original_position

    def _restored_locals(self) -> dict[str, Variable]:
        """Locals to have at the breaking instruction.

        Those still needed, and those that are kept although no instruction reads them again.
        """
        live = self.original.live[self.first]
        first = self._first_argument()
        return {
            name: self.ending.locals[name]
            for name in self.original.plain_locals
            if name in self.ending.locals
            and (
                name in live
                or name == first
                or is_kept(self.ending.locals[name], self.ending.stack)
            )
        }

    def _find_tail(self) -> Tail | None:
        """What runs as it is behind the breaking instruction, up to a loop's next turn."""
        original, last = self.original, self.last
        if original.instructions[last].name == "FOR_ITER":
            return tail_of_loop(original, last)
        if not original.instructions[last].falls_through() or original.instructions[last].target:
            return None
        tail = find_tail(original, last + 1, self._on_stack_behind)
        if tail is None or not tail.stored_before(original):
            return tail
        # Where a handler goes on with the next turn, what the tail would have stored may be unbound.
        run = {*range(self.first, last + 1), *tail.before}
        return None if tail.loop in self._handling(run, tail.ends) else tail

    def _on_stack_behind(self, place: int) -> Variable | None:
        """What is at a place of the stack since before the breaking instruction."""
        return self.ending.stack[place] if place < self._untouched(self.last + 1) else None

    def _first_argument(self) -> str | None:
        code = self.original.code
        if "__class__" in code.co_freevars and code.co_argcount:
            return code.co_varnames[0]
        return None

    # State.

    def load_state(self) -> None:
        """Push new locals, cells' contents and the stack's values; nothing is overwritten yet."""
        self._new_locals = [
            name for name, variable in self.restored.items() if not _is_argument(variable, name)
        ]
        self._new_cells = [
            name
            for name, contents in self.ending.cells.items()
            if contents is not None and not _is_argument(contents, name)
        ]
        for name in self._new_locals:
            self.emitter.load_variable(self.restored[name])
        for name in self._new_cells:
            contents = self.ending.cells[name]
            assert contents is not None
            self.emitter.load_variable(contents)
        for place, item in enumerate(self.stack):
            variable = self.ending.stack[place]
            if item is StackItem.PREVIOUS:
                variable = self._handled_exception(place)
            elif item is not StackItem.VALUE or variable is None:
                continue
            self.emitter.load_variable(variable)
            self.stack_temporaries[place] = ""
        for place in reversed(self.stack_temporaries):
            self.stack_temporaries[place] = self.emitter.store_temporary()

    def _handled_exception(self, place: int) -> Variable:
        """The exception whose except clause's PREVIOUS item is at ``place``."""
        for later in range(place + 1, len(self.stack)):
            if self.stack[later] in (StackItem.EXCEPTION, StackItem.PREVIOUS):
                variable = self.ending.stack[later]
                break
        else:
            variable = self.ending.handled
        if variable is None:
            raise Unsupported("break in an except clause", "", "the exception is not known")
        return variable

    def store_state_and_go_on(self) -> None:
        for name in reversed(self._new_cells):
            self.emitter.add("STORE_DEREF", local=name)
        for name in reversed(self._new_locals):
            self.emitter.store_local(name)
        self._drop_the_rest()
        for place, item in enumerate(self.stack):
            if place in self.stack_temporaries:
                self.emitter.load_local(self.stack_temporaries[place])
                self.emitter.delete_local(self.stack_temporaries[place])
                if item is StackItem.PREVIOUS:
                    push_handled(self.emitter, self.stack, place)
            elif item is StackItem.VALUE:
                self.emitter.add("PUSH_NULL")
            elif item is StackItem.OFFSET:
                self.emitter.load_constant(0)  # for the line of a frame being left only
        self._copy_original()

    def _drop_the_rest(self) -> None:
        """Unbind arguments and temporaries that the function holds no more."""
        cells = frozenset(self.code.co_cellvars)
        resume = self.resume_functions.of_code(self.code)
        arguments = _argument_names(self.code)
        if resume is not None and resume.arguments[:1] and resume.arguments[0][0] == "cell":
            arguments = arguments[1:]  # what super() takes
        for name in arguments:
            if name not in cells and name not in self.restored:
                self.emitter.delete_local(name)
            elif name in cells and self.ending.cells.get(name, ...) is None:
                self.emitter.add("DELETE_DEREF", local=name)
        kept = frozenset(self.stack_temporaries.values())
        for name in (OBJECTS, *self.emitter.temporaries):
            if name not in kept:
                self.emitter.delete_local(name)

    # The breaking instruction, its handlers, and what comes behind.

    def _copy_original(self) -> None:
        """Copy the breaking instruction, its tail and the handlers of both; go on from where they end."""
        instructions = self.original.instructions
        exits = self._exits()
        if self._handlers_decide_locals(exits):
            exits = {}  # the rest of the frame runs as it is
        kept = self._kept(exits) if exits else reachable(instructions, self.first)
        copies, copy_of = clone(instructions)
        entry = copy_of[id(instructions[self.first])]
        if min(kept) != self.first:
            self.emitter.add("JUMP_FORWARD", target=entry)
        behind: list[tuple[Instruction, _Exit]] = []
        for i in sorted(kept):
            self.emitter.instructions.append(copies[i])
            if i == self.last or self._has_null(self._null_place(i)):
                self._plain_attribute_load(copies[i])
            if i == self.last or self._has_null(len(self.original.stacks[i] or ())):
                self._bind_exit(copies[i])  # what a handler enters again is as it was at the break
            if i in exits and not exits[i].by_jump_only:
                behind.append((self.emitter.add("JUMP_FORWARD"), exits[i]))
        for jump, leaving in behind:
            jump.target = self._emit_resumption(
                leaving.position + 1, leaving.stored, leaving.varying
            )
        for i, leaving in exits.items():
            target = instructions[i].target
            if target is not None:
                skipped = [self.emitter.add(name) for name in passed_over(instructions[i])]
                position = self.original.index_of(target) + len(skipped)
                start = self._emit_resumption(position, leaving.stored_at_jump)
                copies[i].target = skipped[0] if skipped else start

    def _exits(self) -> dict[int, _Exit]:
        """The instructions behind which the frame is left, by position."""
        last, tail = self.last, self.tail
        if tail is None:
            by_jump_only = not self.original.instructions[last].falls_through()
            return {last: _Exit(last, by_jump_only, varying=self._given_anew())}
        stored, variables = tail.stored_before(self.original), tail.loop_variables(self.original)
        if not tail.after:
            element = ("stack", len(self.original.stacks[tail.loop] or ()))
            return {tail.loop: _Exit(tail.loop, False, stored, stored, (element,))}
        final, given = tail.after[-1], tuple(("local", name) for name in variables)
        return {
            tail.loop: _Exit(tail.loop, True, stored, stored),
            final: _Exit(final, False, (*stored, *variables), (), given),
        }

    def _given_anew(self) -> tuple[tuple[str, int | str], ...]:
        """What is something else whenever it is asked for: an iterator's next element, the time."""
        gives = self.ending.reason.kind in _GIVE_ANEW
        stack = self.original.stacks[self.last + 1] if gives else None
        return (("stack", len(stack) - 1),) if stack else ()

    def _kept(self, stops: Container[int]) -> set[int]:
        """The instructions that run here: the break's, its tail's, and all that handles their errors."""
        kept = set(range(self.first, self.last + 1))
        if self.tail is not None:
            kept.update(self.tail.before, (self.tail.loop,), self.tail.after)
        return kept | self._handling(kept, stops)

    def _handling(self, positions: Iterable[int], stops: Container[int]) -> set[int]:
        """The instructions that may run after one at ``positions`` has raised."""
        instructions, handling = self.original.instructions, set[int]()
        for i in positions:
            handler = instructions[i].handler
            if (
                handler is not None
                and (start := self.original.index_of(handler.target)) not in handling
            ):
                handling |= reachable(instructions, start, stops)
        return handling

    def _handlers_decide_locals(self, exits: Mapping[int, _Exit]) -> bool:
        """Whether a local that is read behind one of ``exits`` is bound there only if a handler has run.

        ``v`` in ``for x in xs: try: f(x) except ValueError: v = x``, which is read behind the loop.
        """
        run = {*range(self.first, self.last + 1), *(self.tail.before if self.tail else ())}
        handling = self._handling(run, exits)
        if not any(position in handling for position in exits):
            return False
        instructions = self.original.instructions
        changed = [instructions[i] for i in handling - run]
        bound = {i.local for i in changed if i.name == "STORE_FAST"} - self.restored.keys()
        unbound = {i.local for i in changed if i.name == "DELETE_FAST"} & self.restored.keys()
        live: set[str] = set()
        for position, leaving in exits.items():
            target = instructions[position].target
            behind = [] if leaving.by_jump_only else [position + 1]
            for place in (*behind, *([] if target is None else [self.original.index_of(target)])):
                live |= self.original.live[place] - set(leaving.stored)
        return not live.isdisjoint(bound | unbound)

    def _plain_attribute_load(self, instruction: Instruction) -> None:
        """Turn a method load, which may push NULL or not, into one that always does."""
        name = instruction.name
        if name == "LOAD_METHOD":
            instruction.name = "LOAD_ATTR"
        elif loads_method(instruction):
            instruction.argument &= ~1
        else:
            return
        self.emitter.prepare_call()

    def _null_place(self, position: int) -> int:
        """Where a method load at ``position`` leaves its NULL, if it loads no method and receiver."""
        taken = 3 if self.original.instructions[position].name == "LOAD_SUPER_ATTR" else 1
        return len(self.original.stacks[position] or ()) - taken + DIALECT.null_above_callee

    def _has_null(self, place: int) -> bool:
        """Whether a place of the stack holds a NULL at the breaking instruction."""
        return 0 <= place < len(self.stack) and (
            self.stack[place] is StackItem.VALUE and self.ending.stack[place] is None
        )

    def _bind_exit(self, instruction: Instruction) -> None:
        """Put a bound ``__exit__`` and NULL where BEFORE_WITH has left a function and its receiver."""
        if instruction.name != "BEFORE_WITH" or not DIALECT.null_above_exit:
            return
        emitter = self.emitter
        emitter.add("LOAD_CONST", emitter.constant(bound))
        emitter.add("SWAP", 4)  # helper, receiver or NULL, what __enter__ gave, __exit__
        emitter.add("SWAP", 2)
        entered = emitter.store_temporary()
        emitter.add("CALL", 1)
        emitter.add("PUSH_NULL")
        emitter.load_local(entered)

    def _emit_resumption(
        self,
        position: int,
        stored: tuple[str, ...],
        varying: Iterable[tuple[str, int | str]] = (),
    ) -> Instruction:
        """Code that leaves the frame by a Resumption at ``position``; gives its first instruction."""
        stack = self.original.stacks[position]
        assert stack is not None
        nulls = self._nulls_behind(position, stack)
        point = ResumePoint(position, nulls, self._locals_behind(position, stored))
        resume = self.resume_functions.get(self.original, point)
        rebound = (("local", name) for name in self.original.rebound_in_loop(position))
        self.resume_functions.note_varying(resume, (*varying, *rebound, *self._varying_numbers()))
        start = len(self.emitter.instructions)
        values, handled = self._pop_stack(stack, point.nulls)
        self._load_held(self.resumption)
        self.emitter.load_function(resume.code, self.original.cells)
        for kind, which in resume.arguments:
            if kind == "stack":
                self.emitter.load_local(values[int(which)])
            elif kind == "handled":
                self.emitter.load_local(handled[int(which)])
            elif kind == "local":
                self.emitter.load_local(str(which))
            else:
                self.emitter.add("LOAD_DEREF", local=str(which))
        self.emitter.call(len(resume.arguments) + 1)
        self.emitter.add("RETURN_VALUE")
        return self.emitter.instructions[start]

    def _varying_numbers(self) -> Iterator[tuple[str, int | str]]:
        """The numbers handed over that vary, or that data gives, in this frame too."""
        for name, variable in self.restored.items():
            if isinstance(variable, NumberVariable):
                yield "local", name
        for place, item in enumerate(self.ending.stack):
            if isinstance(item, NumberVariable):
                yield "stack", place

    def _load_held(self, value: Any) -> None:
        """Push a callee that lives as long as the program: a constant, as the objects are gone by now."""
        with self.emitter.callee():
            self.emitter.add("LOAD_CONST", self.emitter.constant(value))

    def _pop_stack(self, stack: Stack, nulls: frozenset[int]) -> tuple[dict[int, str], list[str]]:
        """Empty the stack into temporaries and leave the except clauses that are on it.

        Gives the names of the values by place, and of the handled exceptions, outermost first.
        """
        values: dict[int, str] = {}
        exceptions: list[str] = []
        if StackItem.PREVIOUS in stack:
            self._load_held(sys.exception)
            self.emitter.call(0)
            exceptions.append(self.emitter.store_temporary())
        for place in range(len(stack) - 1, -1, -1):
            item = stack[place]
            if item is StackItem.VALUE:
                # Storing a NULL leaves the local unbound.
                name = self.emitter.store_temporary()
                if place not in nulls:
                    values[place] = name
            elif item is StackItem.PREVIOUS:
                self.emitter.add("COPY", 1)
                exceptions.append(self.emitter.store_temporary())
                self.emitter.add("POP_EXCEPT")
            else:
                self.emitter.add("POP_TOP")
        # The exception saved by an except clause is the one that the next outer clause handles.
        return values, exceptions[:-1][::-1]

    def _untouched(self, position: int) -> int:
        """How many places of the stack at ``position`` the breaking instruction has left as they were."""
        stack = self.original.stacks[position]
        assert stack is not None
        name = self.original.instructions[self.last].name
        ends_loop = name == "FOR_ITER" and position != self.last + 1
        pushes = not ends_loop and not name.startswith(("STORE_", "DELETE_", "POP_"))
        return len(stack) - pushes

    def _nulls_behind(self, position: int, stack: Stack) -> frozenset[int]:
        """Which places hold a NULL at ``position``, after the breaking instruction and its tail."""
        last = self.original.instructions[self.last]
        name, argument = last.name, last.argument
        if self.tail is not None and name != "FOR_ITER":
            untouched = len(self.original.stacks[self.tail.loop] or ())
        else:
            untouched = self._untouched(position)
        nulls = {
            place
            for place, item in enumerate(self.stack)
            if item is StackItem.VALUE and self.ending.stack[place] is None and place < untouched
        }
        if loads_method(last) or (name == "LOAD_GLOBAL" and argument & 1):
            nulls.add(len(stack) - (1 if DIALECT.null_above_callee else 2))
        elif name == "BEFORE_WITH" and DIALECT.null_above_exit:
            nulls.add(len(stack) - 2)
        elif name in ("PUSH_NULL", "LOAD_FAST_AND_CLEAR"):
            raise Unsupported("break at an instruction that cannot fail", name)
        return frozenset(nulls)

    def _locals_behind(self, position: int, stored: tuple[str, ...]) -> tuple[str, ...]:
        """The plain locals to hand over, in the order of the original's locals."""
        last = self.original.instructions[self.last]
        bound = {*self.restored, *stored}
        stack = self.ending.stack
        lasting = {name for name, value in self.restored.items() if is_lasting(value, stack)}
        lasting.update(stored)
        if last.name == "STORE_FAST" and last.local is not None:
            if stack[-1] is None:
                # An inlined comprehension ends, whose variable was unbound before.
                bound.discard(last.local)
            else:
                bound.add(last.local)
                lasting.add(last.local)
        elif last.name == "DELETE_FAST":
            bound.discard(str(last.local))
        live = self.original.live[position]
        first = self._first_argument()
        return tuple(
            name
            for name in self.original.plain_locals
            if name in bound and (name in live or name in lasting or name == first)
        )


def call_unit(instructions: list[Instruction], position: int) -> tuple[int, int]:
    """First and last of the instructions that make one call together with the one at ``position``."""
    first = last = position
    while instructions[last].name in ("KW_NAMES", "PRECALL"):
        last += 1
    while first > 0 and instructions[first - 1].name in ("KW_NAMES", "PRECALL"):
        first -= 1
    return first, last


def loads_method(instruction: Instruction) -> bool:
    """Whether it pushes a function and its receiver, or a callee and NULL."""
    if instruction.name == "LOAD_METHOD":
        return True
    is_load = instruction.name in ("LOAD_ATTR", "LOAD_SUPER_ATTR")
    return is_load and DIALECT.attribute_loads_methods and bool(instruction.argument & 1)


def _is_argument(variable: Variable, name: str) -> bool:
    """Whether the variable is what the argument slot ``name`` held on entry."""
    source = variable.source
    return isinstance(source, ArgumentSource) and source.argument == name


def _argument_names(code: types.CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return code.co_varnames[:count]
