"""``break`` and ``return`` on a tensor's value in a rolled loop: the rest of the iteration is one branch.

The other branch only notes that the loop has ended, and what the frame returns; the loop's condition looks at
that note, and a branch after the loop at the other.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ...._torch.symbols import is_known_contiguous
from ....unsupported import Unsupported
from ...decode import DecodedCode, DecodedInstruction, after_loop
from ...models.containers.sequences import ListVariable
from ...models.torch.tensor import TensorVariable, on_device, tensor_of
from ...protocol import Frame
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..branches.join_points import (
    EXIT,
    join_point,
    loops,
    meeting_point,
    reachable,
    resolved,
    successors,
)
from ..evaluation import every_instruction, run_until
from ..state.containers import Opens, opens_none
from ..state.python_state import leaves, rebuilt
from ..subgraph import expanded_dims
from .carried import CarriedLocals, numbers_in_tensors
from .iteration_sizes import check_size

DONE = ".done"
"""The local, of a name that no program has, that says whether an iteration has ended its loop."""

RETURNED = ".returned"
"""The local that says whether it has done so by returning from the frame."""

RESULT = ".result"
"""The local that has what the frame then returns, and anything like it elsewhere."""

LEFT = ".left"
"""The local of a branch that leaves the loop whatever happens; no two branches are joined with it."""


SizesOfBranches = tuple[torch.fx.Graph, torch.fx.Graph, tuple[Mapping[Any, Any], Mapping[Any, Any]]]
"""The graphs of two branches, and what sizes are in each, by the symbols that they have after both."""


class RolledLoop(abc.ABC):
    """The loop whose body a frame evaluates; the branches of a conditional that leaves it meet at ``head``.

    ``around`` is the one whose body it is in; ``at`` the instruction by which it is known.  ``tests`` end an
    iteration, one or copies of one: ``head`` is the first inside.  ``note`` is the local that says whether it
    goes on.  ``stack`` is the frame's before an iteration; ``opens`` says which
    containers an iteration has made.  ``lists`` are those whose additions it notes.  ``joins`` are the
    conditionals in the body that gave sizes which differ by branch, the inner ones first.
    """

    at: int
    head: int
    tests: frozenset[int]
    ends: tuple[int, int]  # where an iteration goes on, and where the loop is left
    note: str
    around: RolledLoop | None = None
    opens: Opens = staticmethod(opens_none)
    lists: Sequence[Any] = ()

    def __init__(self, inside: frozenset[int], stack: list[Variable | None]) -> None:
        self.inside = inside
        self.stack = stack
        self.joins: list[SizesOfBranches] = []

    def live(self, evaluator: Frame) -> frozenset[str]:
        """The locals that matter after an iteration, whether it is the last or not."""
        following, left = map(evaluator.decoded.live_at, self.ends)
        return following | left | {self.note, RETURNED, RESULT}

    @abc.abstractmethod
    def finish_branch(self, evaluator: Frame) -> None:
        """Evaluate the rest of an iteration, or up to where one branch leaves the loop."""

    @abc.abstractmethod
    def note_end(self, evaluator: Frame, has_left: bool) -> None:
        """Note whether a branch has left the loop, unless something inside it has noted that."""


class RolledFor(RolledLoop):
    """A ``for`` loop, which ``breaks`` may leave; its body appends to ``lists``."""

    note = DONE

    def __init__(
        self,
        head: DecodedInstruction,
        inside: frozenset[int],
        breaks: Breaks,
        stack: list[Variable | None],
        opens: Opens,
        lists: Sequence[Any],
    ) -> None:
        super().__init__(inside, stack)
        self.opens = opens
        self.lists = lists
        self.at = self.head = head.index
        self.tests = frozenset({head.index})
        self.ends = head.index, after_loop(head)
        self.breaks = breaks

    def finish_branch(self, evaluator: Frame) -> None:
        breaks = self.breaks.every
        run_until(evaluator, breaks | {self.head}, every_instruction(evaluator))
        self.note_end(evaluator, evaluator.next_index in breaks)

    def note_end(self, evaluator: Frame, has_left: bool) -> None:
        has_left |= evaluator.finished
        if has_left:
            evaluator.locals[LEFT] = ConstantVariable(True)
        if has_left or not isinstance(evaluator.locals.get(DONE), TensorVariable):
            evaluator.locals[DONE] = flag(evaluator, has_left)
        note_return(evaluator, self.stack, self.opens)


@dataclass(frozen=True)
class Breaks:
    """The instructions at which ``break`` leaves a ``for`` loop.

    ``exits`` go on where the loop ends by itself, ``others`` elsewhere, past its ``else``: at ``landing``.
    """

    exits: frozenset[int]
    others: frozenset[int]
    landing: int

    @property
    def every(self) -> frozenset[int]:
        return self.exits | self.others


def breaks_of(decoded: DecodedCode, head: DecodedInstruction, inside: frozenset[int]) -> Breaks:
    """Where ``break`` leaves the loop with this head."""
    depth, after = decoded.depth_at(head.index), after_loop(head)
    assert depth is not None
    pops, swaps = set(), set()  # of the loop's iterator: by ``break``, under a value by ``return``
    for i in decoded.instructions:
        at = decoded.depth_at(i.index)
        if i.index in inside or at is None:
            continue
        if i.name == "POP_TOP" and at == depth:
            pops.add(i.index)
        elif i.name == "SWAP" and at - i.argument < depth:
            swaps.add(i.index)
    body = reachable(decoded, head.index + 1, pops | swaps | {head.index})
    ends = {k for i in body for k in successors(decoded.instructions, i)}
    exits = frozenset(k for k in ends & pops if is_same_code(decoded, k + 1, after))
    others = sorted((ends & pops) - exits)
    returns = EXIT in ends or bool(ends & swaps)
    if not others or exits or returns:
        return Breaks(exits, frozenset(), after)
    landing = others[0] + 1
    is_one = all(is_same_code(decoded, k + 1, landing) for k in others)
    is_inner = sum(head.index in loop.body for loop in loops(decoded)) > 1
    if not is_one or (not is_inner and meeting_point(decoded, (landing, after)) == EXIT):
        return Breaks(exits, frozenset(), after)  # they return, as the frame then does
    return Breaks(exits, frozenset(others), landing)


def is_same_code(decoded: DecodedCode, left: int, right: int) -> bool:
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
def rolling(evaluator: Frame, loop: RolledLoop) -> Iterator[None]:
    """The frame evaluates the body of this loop meanwhile."""
    loop.around = evaluator.rolled_loop
    evaluator.rolled_loop = loop
    try:
        yield
    finally:
        evaluator.rolled_loop = loop.around


def left_loop(evaluator: Frame, instruction: DecodedInstruction) -> RolledLoop | None:
    """The rolled loop whose iteration the branches of a conditional jump end apart; None if they meet in it.

    One of them leaves the loop, here or further on, or goes to another copy of the loop's test.
    """
    loop: RolledLoop | None = evaluator.rolled_loop
    index = instruction.index
    if loop is None or index not in loop.inside:
        return None
    branches = [instruction.target in loop.inside, index + 1 in loop.inside]
    if branches.count(True) == 1:
        return loop
    decoded = evaluator.decoded
    inner = (other.body for other in loops(decoded) if other.body < loop.inside)
    if any(index in body and loop.tests.isdisjoint(body) for body in inner):
        return None
    return None if join_point(decoded, index) in loop.inside else loop


def note_return(evaluator: Frame, stack: list[Variable | None], opens: Opens) -> None:
    """Note what the frame has returned at the end of a branch, if it has; go on with ``stack``."""
    if not evaluator.finished:
        return
    assert evaluator.result is not None
    evaluator.locals[RETURNED] = flag(evaluator, True)
    evaluator.locals[RESULT] = numbers_in_tensors(evaluator, evaluator.result, opens)
    evaluator.finished, evaluator.result = False, None
    evaluator.stack = list(stack)


def returned_value(
    evaluator: Frame, carried: CarriedLocals, around: torch.fx.Graph
) -> tuple[TensorVariable, Variable] | None:
    """Whether an iteration has returned from the frame, and what, as results of the loop.

    ``around`` is the graph that the loop is in.
    """
    returned = evaluator.locals.pop(RETURNED, None)
    if returned is None:
        return None
    assert isinstance(returned, TensorVariable)
    result = carried.result(RESULT, lambda like: unset_like(evaluator, around, like))
    del evaluator.locals[RESULT]
    start = unset_flag(evaluator, around)
    with carried.body.active():
        returned = on_device(evaluator, returned, start.fake.device)
    return carried.add("returned", start, returned).parameter, result


def call_in(
    evaluator: Frame,
    graph: torch.fx.Graph,
    function: Any,
    *arguments: Any,
    **keywords: Any,
) -> TensorVariable:
    """The result of a call in another graph than the one at hand: before a loop, around it."""
    builder = evaluator.graph
    inner, builder.graph = builder.graph, graph
    try:
        return tensor_of(evaluator, function, *arguments, **keywords)
    finally:
        builder.graph = inner


def unset_flag(evaluator: Frame, graph: torch.fx.Graph) -> TensorVariable:
    """False, in ``graph``."""
    return call_in(evaluator, graph, torch.zeros, (), dtype=torch.bool)


def unset_like(
    evaluator: Frame,
    graph: torch.fx.Graph,
    like: TensorVariable,
    count: Variable | None = None,
) -> TensorVariable:
    """An uninitialised tensor in ``graph``: ``count`` rows in the layout of ``like``, or one of them.

    :raises Unsupported: elements of a row would be one in memory.
    """
    fake = like.fake
    check_size(evaluator, fake)
    kind: dict[str, Any] = {"dtype": fake.dtype, "device": fake.device}
    leading = () if count is None else (count,)
    shape = ListVariable([*leading, *_numbers(evaluator, fake.shape)])
    if is_known_contiguous(fake):
        return call_in(evaluator, graph, torch.empty, shape, **kind)
    if count is not None and expanded_dims(fake):
        raise Unsupported("append of an expanded tensor", repr(like))
    extent = 1 + sum((n - 1) * s for n, s in zip(fake.shape, fake.stride(), strict=True))
    between = () if count is None else (extent,)
    strides = ListVariable(_numbers(evaluator, (*between, *fake.stride())))
    return call_in(evaluator, graph, torch.empty_strided, shape, strides, **kind)


def flag(evaluator: Frame, value: bool) -> TensorVariable:
    """A constant as a tensor of the graph at hand."""
    return tensor_of(evaluator, torch.full, (), value, dtype=torch.bool)


def like_result(evaluator: Frame, result: Variable, opens: Opens) -> Variable:
    """What a branch that does not return has in the place of ``result``: nothing looks at it."""
    items = leaves(result, opens)
    if items is None:
        raise Unsupported("return inside a loop", repr(result))
    made = [
        _zeros(evaluator, item.fake) if isinstance(item, TensorVariable) else item for item in items
    ]
    return rebuilt(result, iter(made), opens)


def _zeros(evaluator: Frame, like: torch.Tensor) -> Variable:
    """A tensor of the graph at hand: ``like`` may be of another."""
    options = {"dtype": like.dtype, "device": like.device}
    shape = ListVariable(_numbers(evaluator, like.shape))
    return tensor_of(evaluator, torch.zeros, shape, **options)


def _numbers(evaluator: Frame, values: Iterable[Any]) -> list[Variable]:
    """Sizes or strides of a tensor of another graph, computed from those of the inputs."""
    return [evaluator.graph.number(value, lambda graph: None, None) for value in values]
