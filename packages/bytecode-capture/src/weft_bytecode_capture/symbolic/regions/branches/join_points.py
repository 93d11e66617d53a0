"""Where the branches of a conditional meet: postdominators of a code object's instructions."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from ...decode import DecodedCode, DecodedInstruction

EXIT = -1
"""The place of every return, in the graph of instructions."""

_ENDS = frozenset(("RETURN_VALUE", "RETURN_CONST"))
_RAISES = frozenset(("RAISE_VARARGS", "RERAISE"))
_STOPS = frozenset(("YIELD_VALUE", "SEND"))
_JUMPS = frozenset(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"))


def successors(instructions: list[DecodedInstruction], index: int) -> Iterator[int]:
    """Where control goes after an instruction that does not raise; a raise goes nowhere."""
    instruction = instructions[index]
    if instruction.name in _ENDS:
        yield EXIT
    elif instruction.name not in _RAISES:
        if instruction.name not in _JUMPS:
            yield index + 1
        if instruction.target >= 0:
            yield instruction.target


def bound_names(
    decoded: DecodedCode, head: int, iteration: set[int], live: Container[str]
) -> tuple[list[str], list[str]]:
    """The locals that a loop's body binds, also where it handles exceptions: the ``live`` ones, the others.

    :param head: the loop's first instruction; what handles the exceptions of this one is around the loop.
    """
    inside = _with_handlers(decoded, head, iteration)
    bound = sorted(
        {
            i.operand
            for i in decoded.instructions
            if i.index in inside and i.name in ("STORE_FAST", "DELETE_FAST")
        }
    )
    return [n for n in bound if n in live], [n for n in bound if n not in live]


def _with_handlers(decoded: DecodedCode, head: int, iteration: set[int]) -> set[int]:
    """The instructions of a loop's body, and of what handles their exceptions inside the loop."""
    instructions = decoded.instructions
    around = decoded.exception_entry(instructions[head].offset)
    found, pending = set(iteration), set(iteration)
    while pending:
        entries = {decoded.exception_entry(instructions[index].offset) for index in pending}
        pending = set()
        for entry in entries:
            if entry is not None and (around is None or entry.target != around.target):
                begin = decoded.index_of_offset[entry.target]
                pending |= reachable(decoded, begin, found | pending | {head})
        found |= pending
    return found


def join_point(decoded: DecodedCode, index: int) -> int:
    """The first instruction that every way from ``index`` to a return comes to; :data:`EXIT` if none.

    Jumps are followed: what meets at one back to an outer loop's head meets there, where that loop stops.
    """
    return meeting_point(decoded, set(successors(decoded.instructions, index)))


def meeting_point(decoded: DecodedCode, starts: Iterable[int]) -> int:
    """The first instruction that every way from each of ``starts`` to a return comes to."""
    common: set[int] | None = None
    for start in starts:
        certain = _always_reached(decoded.instructions, start)
        common = certain if common is None else common & certain
    found = {i for i in common or () if i != EXIT}
    if not found:
        return EXIT
    # Of those that are always reached, the first is the one from which all others still are.
    first = next(
        i for i in sorted(found) if found <= _always_reached(decoded.instructions, i) | {i}
    )
    return resolved(decoded, first)


def _always_reached(instructions: list[DecodedInstruction], start: int) -> set[int]:
    """The postdominators of ``start``, itself included: a fixpoint over what is reachable.

    Sets are the bits of integers; :data:`EXIT` is bit 0.
    """
    following: dict[int, list[int]] = {}
    pending = [start]
    while pending:
        index = pending.pop()
        if index not in following:
            following[index] = [] if index == EXIT else list(successors(instructions, index))
            pending += following[index]
    every = sum(1 << (index + 1) for index in following)
    certain = dict.fromkeys(following, every)
    certain[EXIT] = 1
    order = sorted((index for index in following if index != EXIT), reverse=True)
    changed = True
    while changed:
        changed = False
        for index in order:
            new = every
            for after in following[index]:
                new &= certain[after]
            new |= 1 << (index + 1)
            if new != certain[index]:
                certain[index] = new
                changed = True
    return {index for index in following if certain[start] >> (index + 1) & 1}


@dataclass(frozen=True)
class NaturalLoop:
    """A loop of instructions: ``head``, and all that come back to it without leaving."""

    head: int
    body: frozenset[int]


def loops(decoded: DecodedCode) -> list[NaturalLoop]:
    """The loops of a code object, inner ones first.  What an exception goes to is not in them."""
    if "loops" not in decoded.analyses:
        decoded.analyses["loops"] = _natural_loops(decoded)
    found: list[NaturalLoop] = decoded.analyses["loops"]
    return found


def _natural_loops(decoded: DecodedCode) -> list[NaturalLoop]:
    before: dict[int, set[int]] = {}
    for index in range(len(decoded.instructions)):
        for after in successors(decoded.instructions, index):
            before.setdefault(after, set()).add(index)
    found: dict[int, set[int]] = {}
    for instruction in decoded.instructions:
        if 0 <= instruction.target <= instruction.index:
            body = found.setdefault(instruction.target, {instruction.target})
            pending = [instruction.index]
            while pending:
                index = pending.pop()
                if index not in body:
                    body.add(index)
                    pending += before.get(index, ())
    every = [NaturalLoop(head, frozenset(body)) for head, body in found.items()]
    return sorted(every, key=lambda loop: len(loop.body))


def reachable(decoded: DecodedCode, start: int, stops: Container[int]) -> set[int]:
    """The instructions that control may come to from ``start`` on, up to ``stops``."""
    found: set[int] = set()
    pending = [start]
    while pending:
        index = pending.pop()
        if index != EXIT and index not in found and index not in stops:
            found.add(index)
            pending += successors(decoded.instructions, index)
    return found


def always_raises(decoded: DecodedCode, start: int) -> bool:
    """Whether whatever is reached from ``start`` ends in an exception, and nothing stops in between."""
    instructions = decoded.instructions
    return not any(
        instructions[index].name in _STOPS or EXIT in successors(instructions, index)
        for index in reachable(decoded, start, ())
    )


def with_raises(decoded: DecodedCode, body: frozenset[int]) -> frozenset[int]:
    """The instructions of a loop's body, and those where control leaves it only to raise."""
    known: dict[frozenset[int], frozenset[int]]
    known = decoded.analyses.setdefault("with raises", {})
    if body not in known:
        left = {i for index in body for i in successors(decoded.instructions, index)} - body
        ends = (i for i in left if i != EXIT and always_raises(decoded, i))
        known[body] = body.union(*(reachable(decoded, i, ()) for i in ends))
    return known[body]


def leaves_loop(decoded: DecodedCode, index: int, meeting: int) -> bool:
    """Whether the branches of the conditional at ``index`` meet only after a loop that it is in."""
    return any(index in loop.body and meeting not in loop.body for loop in loops(decoded))


def resolved(decoded: DecodedCode, index: int) -> int:
    """The first instruction from ``index`` on that is no unconditional jump and does something."""
    seen: set[int] = set()
    while index not in seen:
        seen.add(index)
        instruction = decoded.instructions[index]
        if instruction.name in _JUMPS:
            index = instruction.target
        elif instruction.name in ("NOP", "EXTENDED_ARG"):
            index += 1
    return index
