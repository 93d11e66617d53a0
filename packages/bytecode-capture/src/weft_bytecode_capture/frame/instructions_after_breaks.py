"""What CPython runs between a breaking instruction and the resume function behind it.

A loop that breaks in each turn would break twice in each: at the instruction in question, and where an
iterator that lives across the break is asked for its next element.  So if nothing but plain moves lie
between the two, they are part of what runs as it is, and so is storing the element in the loop's variables.
The resume function begins with the turn's element among its arguments; what it was taken from is not looked
at.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass

from ..symbolic.models.iterators.builtin_iterators import IteratorVariable
from ..symbolic.models.objects.opaque import OpaqueVariable
from ..symbolic.variables.base import Variable
from .resume import AnalysedCode

_JUMPS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})
_STORES = frozenset({"STORE_FAST", "STORE_DEREF"})
_MOVES = _STORES | {"POP_TOP", "NOP"}


@dataclass(frozen=True)
class Tail:
    """Positions of the instructions that run as they are, ``FOR_ITER``'s at ``loop`` among them.

    ``before`` are those up to it, in the order in which they run, ``after`` those that take the element.
    """

    loop: int
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def ends(self) -> frozenset[int]:
        """Where the frame is left: at the loop's end, and behind what takes the element."""
        return frozenset((self.loop, *self.after[-1:]))

    def stored_before(self, code: AnalysedCode) -> tuple[str, ...]:
        """The plain locals that hold something new at the end of the loop."""
        return _stored(code, self.before)

    def loop_variables(self, code: AnalysedCode) -> tuple[str, ...]:
        """The plain locals that the element is stored in."""
        return _stored(code, self.after)


def find_tail(
    code: AnalysedCode, start: int, on_stack: Callable[[int], Variable | None]
) -> Tail | None:
    """The tail from ``start`` on; ``on_stack`` gives what a place of the stack holds since before the break.

    None if there is none: a loop's next element is not the next thing asked for, or may need captured code.
    """
    position = start
    before: list[int] = []
    while code.instructions[position].name != "FOR_ITER":
        instruction = code.instructions[position]
        if position in before or instruction.name not in _MOVES | _JUMPS:
            return None
        before.append(position)
        if instruction.name in _JUMPS:
            assert instruction.target is not None
            position = code.index_of(instruction.target)
        else:
            position += 1
    stack = code.stacks[position]
    iterator = on_stack(len(stack) - 1) if stack is not None else None
    if iterator is None or not _is_plain(iterator):
        return None
    return Tail(position, tuple(before), _element_moves(code, position + 1))


def tail_of_loop(code: AnalysedCode, loop: int) -> Tail:
    """The tail where ``FOR_ITER`` itself, at ``loop``, is the breaking instruction."""
    return Tail(loop, (), _element_moves(code, loop + 1))


def _element_moves(code: AnalysedCode, position: int) -> tuple[int, ...]:
    """The instructions that put an element, or its parts, into the loop's variables."""
    moves: list[int] = []
    values = 1
    while values:
        instruction = code.instructions[position]
        if instruction.name == "UNPACK_SEQUENCE":
            values += instruction.argument - 1
        elif instruction.name in _STORES:
            values -= 1
        else:
            return ()
        moves.append(position)
        position += 1
    return tuple(moves)


def _is_plain(iterator: Variable) -> bool:
    """Whether code behind a break would have to ask CPython for the next element."""
    if isinstance(iterator, IteratorVariable):
        return True
    kind = type(iterator.value) if type(iterator) is OpaqueVariable else object
    return isinstance(getattr(kind, "__next__", None), types.WrapperDescriptorType)


def _stored(code: AnalysedCode, positions: tuple[int, ...]) -> tuple[str, ...]:
    stores = (code.instructions[position] for position in positions)
    return tuple(str(store.local) for store in stores if store.name == "STORE_FAST")
