"""``while`` loops that are kept from their own test on, which no data decides the first time.

Such are those with a ``break`` on data in an iteration of which data also decide whether there is another.
"""

from __future__ import annotations

from ...decode import DecodedInstruction
from ...protocol import Frame
from ..branches.branch import ReturnFromLoop
from ..evaluation import attempted, may_attempt
from .early_exit import flag
from .while_loop import find_whole, keep_while


def keep_whole(evaluator: Frame, instruction: DecodedInstruction, outcome: bool) -> bool:
    """At a conditional jump with a known ``outcome``: keep the loop of which it is the test, if that is due.

    False where it is not.  Raises :class:`RegionRefused`, as for a jump on a tensor.
    """
    place = (evaluator.code, instruction.index)
    if not may_attempt(evaluator, place) or evaluator.suspended:
        return False
    with attempted(evaluator, place, "the loop's body"):
        loop = find_whole(evaluator, instruction, outcome)
        if loop is None:
            return False
        returned = keep_while(evaluator, loop, None, flag(evaluator, outcome))
        if returned is not None:
            ReturnFromLoop(evaluator, instruction, *returned, evaluator.next_index).run()
    return True
