"""Tags: numbers that regions give beside their results, which say what tensor of the caller's a result is.

A tag is 0 for a tensor that the graph has made, ``i + 1`` for the ``i``-th of the ``operands``, the caller's
tensors that results may be.  Where it depends on data it is an int64 tensor without dimensions: one more
result of the branch or the loop.  Tags are made once it is known that such a result leaves the frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.fx

from ..variables.constant import ConstantVariable
from ..variables.tensor import TensorVariable
from ..variables.tensor_number import number_in_tensor
from .aliases import RegionAliases, storage_of
from .positions import ElementVariable
from .subgraph import Carried, Subgraph, parameter, regional

if TYPE_CHECKING:
    from ..evaluator import Evaluator

Tag = int | TensorVariable
Pair = tuple[TensorVariable, TensorVariable]

_DIFFERS = -1  # by side of a branch, which gives a tensor for it


class _State:
    """A tensor that a loop being evaluated carries, and its tag in the body where that was asked for."""

    def __init__(self, carried: Carried, body: torch.fx.Graph) -> None:
        self.carried = carried
        self.body = body
        self.tag: TensorVariable | None = None

    def carried_tag(
        self, evaluator: Evaluator, start: Tag, after: Tag | None, body: Subgraph
    ) -> Carried:
        """The tag as the loop carries it."""
        assert self.tag is not None
        left = None if after is None else _tensor(evaluator, after, body)
        return Carried(_tensor(evaluator, start, None), self.tag, left)


class ResultTags:
    """The tags of what the regions of a frame give; none unless they are ``wanted``.

    Tensors are known by their variables: a view of a result, or of an operand, has no tag (None below).
    """

    def __init__(self, aliases: RegionAliases, wanted: bool) -> None:
        self.operands: list[TensorVariable] = []
        self._aliases = aliases
        self._wanted = wanted
        self._results: dict[int, tuple[TensorVariable, Tag | None]] = {}
        self._states: dict[int, _State] = {}  # by the parameter, of the loops being evaluated
        self._made: dict[int, torch.Tensor] = {}  # with the tag 0, by their storages
        self._tensors: dict[int, TensorVariable] = {}  # tags that regions give
        self._failed = False  # a body has used a tag that its loop can't give

    def decided(self, result: TensorVariable, visible: set[int]) -> TensorVariable | None:
        """The tag of a region's result, if that depends on data.

        ``visible`` are the storages of the caller's tensors.  None also where one that was taken for a new
        tensor may be one of these, or a part of a region's result.
        """
        wrong = self._made.keys() & visible or any(map(self._aliases.is_result, self._made))
        if self._failed or wrong:
            return None
        _, tag = self._results.get(id(result), (result, None))
        return tag if isinstance(tag, TensorVariable) else None

    def is_tag(self, variable: object) -> bool:
        """Whether a graph's output is a tag, which nobody but the code after the graph sees."""
        return id(variable) in self._tensors

    # Branches.

    def join(
        self, evaluator: Evaluator, pairs: Sequence[Pair], sides: Sequence[Subgraph]
    ) -> tuple[list[int | TensorVariable | None], list[Pair]]:
        """The tags of what a branch gives, whose sides have ``pairs``; the pairs that it gives for them."""
        tags: list[Tag | None] = []
        added: list[Pair] = []
        for pair in pairs if self._wanted else ():
            left, right = (self._of(evaluator, variable) for variable in pair)
            if left is None or right is None or left == right:
                tags.append(None if right is None else left)
                continue
            tags.append(_DIFFERS)
            added.append((_tensor(evaluator, left, sides[0]), _tensor(evaluator, right, sides[1])))
        return tags, added

    def bind(
        self,
        results: Sequence[TensorVariable],
        tags: Sequence[Tag | None],
        given: Sequence[TensorVariable],
    ) -> None:
        """Note the tags that :meth:`join` found, now that the branch has its results."""
        following = iter(given)
        self._tensors.update((id(tag), tag) for tag in given)
        for result, tag in zip(results, tags, strict=False):
            found = next(following) if tag == _DIFFERS else tag
            self._results[id(result)] = (result, found)

    # Loops.

    def begin(self, carried: Carried, body: torch.fx.Graph) -> None:
        """A loop carries a tensor."""
        if self._wanted:
            self._states[id(carried.parameter)] = _State(carried, body)

    def finish(
        self, evaluator: Evaluator, every: Sequence[Carried], body: Subgraph, may_be_empty: bool
    ) -> list[Carried]:
        """What a loop has to carry beside ``every``; the graph at hand is the one around it."""
        if not self._wanted:
            return []
        left = [None if c.result is None else self._of(evaluator, c.result) for c in every]
        found = []
        for carried, after in zip(every, left, strict=True):
            state = self._states[id(carried.parameter)]
            start = self._of(evaluator, carried.start)
            if carried.result is not None:
                tag = self._after_loop(evaluator, state, start, after, may_be_empty)
                self._results[id(carried.parameter)] = (carried.parameter, tag)
            if state.tag is not None and start is not None:
                found.append(state.carried_tag(evaluator, start, after, body))
        for carried in every:
            del self._states[id(carried.parameter)]
        return found

    def _after_loop(
        self,
        evaluator: Evaluator,
        state: _State,
        start: Tag | None,
        after: Tag | None,
        may_be_empty: bool,
    ) -> Tag | None:
        """The tag of a loop's result, from those with which an iteration begins and ends."""
        if isinstance(after, int) and (not may_be_empty or start == after):
            return after
        if after is None or start is None:
            self._failed |= state.tag is not None
            return None
        return self._of_state(evaluator, state)

    # Any tensor.

    def _of(self, evaluator: Evaluator, variable: TensorVariable) -> Tag | None:
        """The tag of a tensor, at the place that is evaluated."""
        if isinstance(variable, ElementVariable):
            return None
        if id(variable) in self._states:
            return self._of_state(evaluator, self._states[id(variable)])
        if id(variable) in self._results:
            return self._results[id(variable)][1]
        if variable.source is not None:
            return self._of_operand(variable)
        storage = storage_of(variable.fake)
        states = {storage_of(s.carried.parameter.fake) for s in self._states.values()}
        if self._aliases.is_result(storage) or storage in states:
            return None
        self._made[storage] = variable.fake
        return 0

    def _of_operand(self, variable: TensorVariable) -> int:
        for index, operand in enumerate(self.operands):
            if operand is variable:
                return index + 1
        self.operands.append(variable)
        return len(self.operands)

    def _of_state(self, evaluator: Evaluator, state: _State) -> Tag | None:
        if state.tag is None and self._of(evaluator, state.carried.start) is not None:
            with evaluator.graph.fake_mode:
                fake = torch.empty((), dtype=torch.int64)
            state.tag = regional(parameter(state.body, "tag", fake), fake)
            self._tensors[id(state.tag)] = state.tag
        return state.tag


def _tensor(evaluator: Evaluator, tag: Tag, region: Subgraph | None) -> TensorVariable:
    """A tag as a tensor, in the graph of ``region`` or the one at hand."""
    if isinstance(tag, TensorVariable):
        return tag
    if region is not None:
        with region.active(may_add_outside=True):
            return _tensor(evaluator, tag, None)
    number = number_in_tensor(evaluator, ConstantVariable(tag))
    assert number is not None
    return number.tensor
