"""``break`` on a tensor's value in a rolled loop: the rest of the iteration becomes one side of a branch.

The other side only notes that the loop has ended; the loop's condition looks at that note.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ..decode import DecodedCode, Instruction, after_loop
from ..variables.base import Variable
from ..variables.constant import ConstantVariable
from ..variables.tensor import TensorVariable
from .join_points import resolved

if TYPE_CHECKING:
    from ..evaluator import Evaluator

DONE = ".done"
"""The local, of a name that no program has, that says whether an iteration has ended its loop."""


class RolledLoop:
    """The loop whose body a frame evaluates: its head, its instructions, and where ``break`` leaves it."""

    def __init__(self, decoded: DecodedCode, head: Instruction, inside: frozenset[int]) -> None:
        self.head = head.index
        self.inside = inside
        self.exit = after_loop(head)
        self.breaks = frozenset(
            i.index
            for i in decoded.instructions
            if i.name == "POP_TOP"  # of the loop's iterator
            and i.index not in inside
            and _is_same_code(decoded, i.index + 1, self.exit)
        )

    def live(self, evaluator: Evaluator) -> frozenset[str]:
        """The locals that matter after an iteration, whether it is the last or not."""
        decoded = evaluator.decoded
        return decoded.live_at(self.head) | decoded.live_at(self.exit) | {DONE}


def _is_same_code(decoded: DecodedCode, left: int, right: int) -> bool:
    """Whether two places are one, or begin copies of one block that returns (CPython copies small ones)."""
    left, right = resolved(decoded, left), resolved(decoded, right)
    instructions = decoded.instructions
    while left != right:
        if max(left, right) >= len(instructions):
            return False
        first, second = instructions[left], instructions[right]
        if (first.name, first.operand) != (second.name, second.operand) or first.target >= 0:
            return False
        if first.name in ("RETURN_VALUE", "RETURN_CONST"):
            return True
        left, right = left + 1, right + 1
    return True


@contextlib.contextmanager
def rolling(evaluator: Evaluator, head: Instruction, inside: frozenset[int]) -> Iterator[None]:
    """The frame evaluates the body of this loop meanwhile."""
    before = evaluator.rolled_loop
    evaluator.rolled_loop = RolledLoop(evaluator.decoded, head, inside)
    try:
        yield
    finally:
        evaluator.rolled_loop = before


def left_loop(evaluator: Evaluator, instruction: Instruction) -> RolledLoop | None:
    """The rolled loop that one side of a conditional jump leaves; None if none does."""
    loop = evaluator.rolled_loop
    if loop is None or instruction.index not in loop.inside:
        return None
    sides = [instruction.target in loop.inside, instruction.index + 1 in loop.inside]
    return loop if sides.count(True) == 1 else None


def set_done(evaluator: Evaluator, has_left: bool) -> None:
    """Note at the end of a side whether it leaves the loop, unless something inside it has noted that."""
    if isinstance(evaluator.locals.get(DONE), TensorVariable) and not has_left:
        return
    shape, value = evaluator.wrap_result(()), ConstantVariable(has_left)
    dtype: dict[str, Variable] = {"dtype": ConstantVariable(torch.bool)}
    evaluator.locals[DONE] = evaluator.graph.call_function(
        evaluator, torch.full, [shape, value], dtype
    )
