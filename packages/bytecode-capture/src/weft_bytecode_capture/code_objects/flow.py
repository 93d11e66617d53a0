"""Control flow of a list of instructions: successors, stack contents and liveness of locals."""

from __future__ import annotations

import dis
import enum
import types
from collections.abc import Callable, Container, Iterator, Sequence

from .dialects import DIALECT
from .instructions import DecodedCode, ExceptionEntry, Instruction, decode


class StackItem(enum.Enum):
    """What is at one index of the value stack."""

    VALUE = "value"
    OFFSET = "offset of the instruction that raised"
    PREVIOUS = "exception handled outside an except clause, restored on leaving it"
    EXCEPTION = "exception handled by the except clause whose PREVIOUS is below"


Stack = tuple[StackItem, ...]

_WITH_ARGUMENT: frozenset[int] = frozenset(
    getattr(dis, "hasarg", range(dis.HAVE_ARGUMENT, 512))  # 3.12
)


def stack_effect(instruction: Instruction, jump: bool) -> int:
    """By how much the stack grows; on the way to the jump's target if ``jump``."""
    if instruction.name == "RETURN_GENERATOR":
        return 1  # what is sent first when the generator starts
    known = DIALECT.stack_effects.get(instruction.name)
    if known is not None:
        return known
    operation = dis.opmap[instruction.name]
    argument = instruction.argument if operation in _WITH_ARGUMENT else None
    return dis.stack_effect(operation, argument, jump=jump)


def successors(
    instructions: Sequence[Instruction], index_of: Callable[[Instruction], int], index: int
) -> Iterator[tuple[int, bool]]:
    """Where control goes after an instruction that does not raise: (index, by a jump)."""
    instruction = instructions[index]
    if instruction.falls_through():
        yield index + 1, False
    if instruction.target is not None:
        yield index_of(instruction.target), True


def index_table(instructions: Sequence[Instruction]) -> Callable[[Instruction], int]:
    table = {id(instruction): i for i, instruction in enumerate(instructions)}
    return lambda instruction: table[id(instruction)]


def stacks(instructions: Sequence[Instruction]) -> list[Stack | None]:
    """The stack before each instruction; None where control never comes."""
    index_of = index_table(instructions)
    found: list[Stack | None] = [None] * len(instructions)
    pending: list[tuple[int, Stack]] = [(0, ())]
    while pending:
        index, stack = pending.pop()
        if found[index] is not None:
            continue
        found[index] = stack
        instruction = instructions[index]
        if instruction.handler is not None:
            handler = instruction.handler
            pending.append((index_of(handler.target), _at_handler(stack, handler)))
        for following, jump in successors(instructions, index_of, index):
            pending.append((following, _after(stack, instruction, jump)))
    return found


def _at_handler(stack: Stack, handler: ExceptionEntry) -> Stack:
    pushed = (StackItem.OFFSET, StackItem.VALUE) if handler.push_offset else (StackItem.VALUE,)
    return stack[: handler.depth] + pushed


def _after(stack: Stack, instruction: Instruction, jump: bool) -> Stack:
    name = instruction.name
    if name == "PUSH_EXC_INFO":
        return (*stack[:-1], StackItem.PREVIOUS, StackItem.EXCEPTION)
    if name == "SWAP":
        other = -instruction.argument
        swapped = list(stack)
        swapped[-1], swapped[other] = swapped[other], swapped[-1]
        return tuple(swapped)
    effect = stack_effect(instruction, jump)
    if effect < 0:
        return stack[:effect]
    return stack + (StackItem.VALUE,) * effect


def depth_by_index(code: types.CodeType) -> list[int | None]:
    """How deep the stack is before each instruction, by ``dis``'s index; None where control never comes."""
    decoded = decode(code)
    found = stacks(decoded.instructions)
    before = [found[decoded.index_of(instruction)] for instruction in decoded.by_index]
    return [None if stack is None else len(stack) for stack in before]


def max_depth(instructions: Sequence[Instruction]) -> int:
    """The deepest stack, for ``co_stacksize``."""
    deepest = 1
    for instruction, stack in zip(instructions, stacks(instructions), strict=True):
        if stack is None:
            continue
        growth = max(0, stack_effect(instruction, False), stack_effect(instruction, True))
        deepest = max(deepest, len(stack) + growth)
        if instruction.handler is not None:
            deepest = max(deepest, instruction.handler.depth + 2)
    return deepest


def reachable(
    instructions: Sequence[Instruction], start: int, stops: Container[int] = ()
) -> set[int]:
    """Indices of the instructions that may run from ``start`` on, handlers included.

    Not those that run only after one of ``stops``.
    """
    index_of = index_table(instructions)
    seen: set[int] = set()
    pending = [start]
    while pending:
        index = pending.pop()
        if index in seen:
            continue
        seen.add(index)
        instruction = instructions[index]
        if index not in stops:
            pending.extend(following for following, _ in successors(instructions, index_of, index))
        if instruction.handler is not None:
            pending.append(index_of(instruction.handler.target))
    return seen


# Functions through which a frame's locals can be seen from elsewhere.
_FRAME_READERS = frozenset(
    {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "breakpoint"}
)
_NAMESPACE_READERS = frozenset({"locals", "vars", "dir", "eval", "exec"})
_READS = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "DELETE_FAST"})
_WRITES = frozenset({"STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"})


def reads_frame(code: types.CodeType) -> bool:
    """Whether the code names a function that may read the frame's locals as a whole."""
    if not _FRAME_READERS.isdisjoint(code.co_names):
        return True
    if "stack" not in code.co_names:
        return False
    loaded = [i.argval for i in dis.get_instructions(code) if i.opname.startswith("LOAD_")]
    pairs = zip(["", *loaded], loaded, strict=False)
    return any(name == "stack" and before != "torch" for before, name in pairs)  # inspect.stack


def reads_namespace_again(code: types.CodeType) -> bool:
    """Whether the code may ask more than once for the dict of its frame's locals, or run text in that."""
    instructions = list(dis.get_instructions(code))
    places = [
        i.offset
        for i in instructions
        if i.opname in ("LOAD_GLOBAL", "LOAD_NAME") and i.argval in _NAMESPACE_READERS
    ]
    loops = [(i.argval, i.offset) for i in instructions if "JUMP_BACKWARD" in i.opname]
    return len(places) > 1 or any(first <= p <= last for p in places for first, last in loops)


def live_locals(decoded: DecodedCode) -> list[frozenset[str]]:
    """For each instruction the plain locals that may be read, or found unbound, from there on.

    All locals everywhere for code that reads its frame as a whole.  Cell and free variables are not among
    them: they live in cells.
    """
    instructions = decoded.instructions
    if reads_frame(decoded.code):
        every = frozenset(decoded.code.co_varnames) - frozenset(decoded.code.co_cellvars)
        return [every] * len(instructions)
    names = decoded.code.co_varnames
    bits = {name: 1 << i for i, name in enumerate(names)}
    masks = _live_masks(instructions, bits)
    cache: dict[int, frozenset[str]] = {}
    result = []
    for mask in masks:
        if mask not in cache:
            cache[mask] = frozenset(name for name in names if mask & bits[name])
        result.append(cache[mask])
    return result


def live_by_index(code: types.CodeType) -> list[frozenset[str]]:
    """:func:`live_locals` before each instruction, counted as ``dis`` does."""
    decoded = decode(code)
    live = live_locals(decoded)
    return [live[decoded.index_of(instruction)] for instruction in decoded.by_index]


def _live_masks(instructions: Sequence[Instruction], bits: dict[str, int]) -> list[int]:
    index_of = index_table(instructions)
    after: list[list[int]] = []
    for i, instruction in enumerate(instructions):
        targets = [following for following, _ in successors(instructions, index_of, i)]
        if instruction.handler is not None:
            targets.append(index_of(instruction.handler.target))
        after.append(targets)
    live = [0] * len(instructions)
    changed = True
    while changed:
        changed = False
        for i in range(len(instructions) - 1, -1, -1):
            instruction = instructions[i]
            mask = 0
            for following in after[i]:
                mask |= live[following]
            bit = bits.get(instruction.local, 0) if instruction.local is not None else 0
            if instruction.name in _WRITES:
                mask &= ~bit
                # The handler sees the value from before the write.
                if instruction.handler is not None:
                    mask |= live[index_of(instruction.handler.target)]
            if instruction.name in _READS:
                mask |= bit
            if mask != live[i]:
                live[i] = mask
                changed = True
    return live


def passed_over(instruction: Instruction) -> tuple[str, ...]:
    """The instructions from a jump's target on that the jump passes over: FOR_ITER those that end a loop."""
    return DIALECT.loop_end if instruction.name == "FOR_ITER" else ()
