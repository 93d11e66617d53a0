"""Loops of few iterations that are unrolled, and that data may end: a layer's result is good enough already.

What comes after such a jump is one branch, all other iterations are the other one, with the jumps in them.
"""

from __future__ import annotations

from ...decode import DecodedInstruction
from ...models.iterators.builtin_iterators import IteratorVariable
from ...protocol import Frame
from ..branches.join_points import join_point, loops, resolved
from ..evaluation import may_attempt

_MAX_ITERATIONS = 24  # branches inside one another


def leaves_finite_loop(evaluator: Frame, instruction: DecodedInstruction) -> bool:
    """Whether a conditional jump may leave the loop that it is in, a ``for`` loop of few elements.

    Or the first iteration of one that is kept from the second on.
    """
    decoded, index = evaluator.decoded, instruction.index
    meeting = join_point(decoded, index)
    left = [loop for loop in loops(decoded) if index in loop.body and meeting not in loop.body]
    if len(left) != 1 or not evaluator.stack or evaluator.graph.is_repeated:
        return False
    head = resolved(decoded, left[0].head)
    if decoded.instructions[head].name != "FOR_ITER":
        return False
    place = (evaluator.code, head)
    if evaluator.state.cache.regions.first_iteration(place) == 1 and may_attempt(evaluator, place):
        return True  # the other iterations are kept as a loop
    iterator = evaluator.stack[-1]
    count = iterator.remaining(evaluator) if isinstance(iterator, IteratorVariable) else None
    return count is not None and count <= _MAX_ITERATIONS
