"""The test of a ``while`` loop, which CPython compiles twice: before the body, and at the end of it.

``continue`` goes to the one before the body.  Where it goes to the other one, which does the same, all
iterations end at one instruction, and branches of which one ends its iteration meet there.
"""

from __future__ import annotations

from ...decode import DecodedCode, DecodedInstruction
from .join_points import EXIT, resolved, successors


def join_copied_tests(decoded: DecodedCode) -> None:
    """Let jumps back to the first copy of a loop's test go to the last one."""
    for jump in decoded.instructions:
        if not jump.name.startswith("JUMP_BACKWARD"):
            continue
        first = decoded.instructions[resolved(decoded, jump.target)]
        if first.name == "FOR_ITER":
            continue
        for other in decoded.instructions[jump.index + 1 :]:
            if _alike(decoded, first, other) and _do_the_same(decoded, first.index, other.index):
                jump.target = other.index
                break


def _alike(decoded: DecodedCode, left: DecodedInstruction, right: DecodedInstruction) -> bool:
    """Whether two instructions do the same, but for where they go on."""
    both_test = _jumps_if(left) is not None and _jumps_if(right) is not None
    if not both_test and left.name != right.name:
        return False
    is_one_operand = type(left.operand) is type(right.operand) and left.operand == right.operand
    if not is_one_operand and left.target < 0:
        return False
    handlers = [decoded.exception_entry(i.offset) for i in (left, right)]
    entries = [None if h is None else h[2:] for h in handlers]
    return entries[0] == entries[1] and decoded.line(left.index) == decoded.line(right.index)


def _jumps_if(instruction: DecodedInstruction) -> bool | None:
    """With which outcome a conditional jump goes to its target: the copies may jump either way."""
    name = instruction.name
    if not name.startswith("POP_JUMP_"):
        return None
    return name.endswith("TRUE") if "NONE" not in name else None


def _do_the_same(decoded: DecodedCode, left: int, right: int) -> bool:
    """Whether all that follows from one instruction on is what follows from the other."""
    if decoded.depth_at(left) != decoded.depth_at(right):
        return False
    pending, met = [(left, right)], set[tuple[int, int]]()
    while pending:
        pair = pending.pop()
        pair = resolved(decoded, pair[0]), resolved(decoded, pair[1])
        if pair[0] == pair[1] or pair in met:
            continue
        met.add(pair)
        first, second = (decoded.instructions[k] for k in pair)
        if not _alike(decoded, first, second):
            return False
        pending += zip(_ways(decoded, first), _ways(decoded, second), strict=True)
    return True


def _ways(decoded: DecodedCode, instruction: DecodedInstruction) -> list[int]:
    """Where control goes on, of a conditional jump the way for a true condition first."""
    ways = [way for way in successors(decoded.instructions, instruction.index) if way != EXIT]
    return ways[::-1] if _jumps_if(instruction) else ways
