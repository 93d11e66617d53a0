"""Tags: numbers that regions give beside their results, which say what tensor a result is in eager.

A tag is 0 for a tensor that a region has made, ``i + 1`` for the ``i``-th *known* one: a tensor of the
caller's or a view of one.  Where it depends on data it is an int64 tensor without dimensions: one more
result of the branch or the loop.  Tags are made once it is known that such a result leaves the frame.

Two results may also be one tensor that is none of the caller's.  Where that was seen too, all tensors made
outside of regions are known, and those that branches make: these in the stead of what the branch gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.fx

from ...._torch import storage_identity
from ...models.numbers.tensor_number import number_in_tensor
from ...models.torch.tensor import TensorVariable
from ...protocol import Frame
from ...variables.constant import ConstantVariable
from ..subgraph import Carried, Subgraph, parameter, regional
from .aliases import AliasLedger
from .views import ViewOf, view_of

Tag = int | TensorVariable
Pair = tuple[TensorVariable, TensorVariable]


@dataclass(frozen=True)
class _ByBranch:
    """The tags in either branch of a conditional, which gives a tensor for them."""

    left: Tag
    right: Tag


@dataclass(frozen=True)
class Known:
    """A tensor that results may be.

    ``view`` is how to take it where the frame ends, if a region has taken it; one ``in_loop`` may be another
    object after each iteration.  ``is_made``: a branch has made it, and gives a copy.
    """

    variable: TensorVariable
    view: ViewOf | None = None
    in_loop: bool = False
    is_made: bool = False


class _State:
    """A tensor that a loop being evaluated carries, and its tag in the body where that was asked for."""

    def __init__(self, carried: Carried, body: torch.fx.Graph) -> None:
        self.carried = carried
        self.body = body
        self.tag: TensorVariable | None = None

    def carried_tag(
        self, evaluator: Frame, start: Tag, after: Tag | None, body: Subgraph
    ) -> Carried:
        """The tag as the loop carries it."""
        assert self.tag is not None
        left = None if after is None else _tensor(evaluator, after, body)
        return Carried(_tensor(evaluator, start, None), self.tag, left)


class ResultTags:
    """The tags of what the regions of a frame give; none unless they are ``wanted``.

    Tensors are known by their variables: a view of a region's result has no tag (None below).
    ``made_too``: tensors that the frame makes are known as well.
    """

    def __init__(self, aliases: AliasLedger, wanted: bool, made_too: bool) -> None:
        self.known: list[Known] = []
        self.made_too = made_too
        self._aliases = aliases
        self._wanted = wanted
        self._results: dict[int, tuple[TensorVariable, Tag | None]] = {}
        self._states: dict[int, _State] = {}  # by the parameter, of the loops being evaluated
        self._bodies: set[torch.fx.Graph] = set()  # of loops
        self._made: dict[int, torch.Tensor] = {}  # with the tag 0, by their storages
        self._tensors: dict[int, TensorVariable] = {}  # tags that regions give
        self._leads: dict[int, list[Tag]] = {}  # what each of these may be
        self._failed = False  # a body has used a tag that its loop can't give

    def decided(self, result: TensorVariable, visible: set[int]) -> Tag | None:
        """The tag of a region's result, if that is more than a tensor that a region has made.

        ``visible`` are the storages of the caller's tensors.  None also where one that was taken for a new
        tensor may be one of these, or a part of a region's result.
        """
        made = self._made.keys() | {
            storage_identity(k.variable.fake) for k in self.known if k.is_made
        }
        if self._failed or made & visible or any(map(self._aliases.is_result, made)):
            return None
        _, tag = self._results.get(id(result), (result, None))
        return None if tag == 0 else tag

    def result_of(self, node: torch.fx.Node) -> TensorVariable | None:
        """The region's result that ``node`` gives."""
        every = (v for v, _ in self._results.values() if v.element is None)
        return next((variable for variable in every if variable.node is node), None)

    def possible(self, tag: Tag) -> dict[int, Known]:
        """The known tensors that a result may be, by their numbers."""
        found: set[int] = set()
        seen: set[int] = set()
        pending: list[Tag] = [tag]
        while pending:
            at = pending.pop()
            if isinstance(at, int):
                found.add(at)
            elif id(at) not in seen:
                seen.add(id(at))
                pending += self._leads[id(at)]
        return {number: self.known[number - 1] for number in sorted(found - {0})}

    def exact(self, tag: Tag) -> frozenset[int]:
        """The storages of known tensors for which the number says which very tensor a result is."""
        made = [storage_identity(k.variable.fake) for k in self.known if k.is_made]
        unclear = {storage for storage in made if storage in self._made or made.count(storage) > 1}
        storages = {storage_identity(k.variable.fake) for k in self.possible(tag).values()}
        return frozenset(storages - unclear)

    def is_tag(self, variable: object) -> bool:
        """Whether a graph's output is a tag, which nobody but the code after the graph sees."""
        return id(variable) in self._tensors

    # Branches.

    def join(
        self, evaluator: Frame, pairs: Sequence[Pair], branches: Sequence[Subgraph]
    ) -> tuple[list[Tag | _ByBranch | None], list[Pair]]:
        """The tags of what branches with ``pairs`` give; the pairs that are given for them."""
        tags: list[Tag | _ByBranch | None] = []
        added: list[Pair] = []
        for pair in pairs if self._wanted else ():
            left, right = (self._of(evaluator, variable) for variable in pair)
            if left is None or right is None or left == right:
                tags.append(None if right is None else left)
                continue
            tags.append(_ByBranch(left, right))
            added.append(
                (_tensor(evaluator, left, branches[0]), _tensor(evaluator, right, branches[1]))
            )
        return tags, added

    def bind(
        self,
        results: Sequence[TensorVariable],
        tags: Sequence[Tag | _ByBranch | None],
        given: Sequence[TensorVariable],
    ) -> None:
        """Note the tags that :meth:`join` found, now that the branch has its results."""
        following = iter(given)
        self._tensors.update((id(tag), tag) for tag in given)
        for result, tag in zip(results, tags, strict=False):
            if isinstance(tag, _ByBranch):
                given_tag = next(following)
                self._leads[id(given_tag)] = [tag.left, tag.right]
                tag = given_tag
            self._results[id(result)] = (result, tag)

    # Loops.

    def begin(self, carried: Carried, body: torch.fx.Graph) -> None:
        """A loop carries a tensor."""
        if self._wanted:
            self._states[id(carried.parameter)] = _State(carried, body)
            self._bodies.add(body)

    def finish(
        self,
        evaluator: Frame,
        every: Sequence[Carried],
        body: Subgraph,
        may_be_empty: bool,
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
                self._leads[id(state.tag)] = [start] if after is None else [start, after]
        for carried in every:
            del self._states[id(carried.parameter)]
        return found

    def _after_loop(
        self,
        evaluator: Frame,
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

    def _of(self, evaluator: Frame, variable: TensorVariable) -> Tag | None:
        """The tag of a tensor, at the place that is evaluated."""
        if variable.element is not None:
            return None
        if id(variable) in self._states:
            return self._of_state(evaluator, self._states[id(variable)])
        if id(variable) in self._results:
            return self._results[id(variable)][1]
        if variable.source is not None:
            return self._number(Known(variable))
        storage = storage_identity(variable.fake)
        states = {storage_identity(s.carried.parameter.fake) for s in self._states.values()}
        if self._aliases.is_result(storage) or storage in states:
            return None
        return self._of_other(evaluator.graph.outermost, variable)

    def _of_other(self, outermost: torch.fx.Graph, variable: TensorVariable) -> Tag | None:
        """The tag of a tensor that the frame has made, or a view of one of the caller's."""
        view, graph = view_of(variable), variable.node.graph
        if view is None:
            return None
        in_loop = any(self._aliases.is_inside(graph, body) for body in self._bodies)
        is_given = view.base.op in ("placeholder", "get_attr")
        if view.base.graph is outermost and (is_given or self.made_too):
            if graph is outermost:
                return self._number(Known(variable))
            return self._number(Known(variable, view, in_loop))
        if self.made_too and not in_loop:
            return self._number(Known(variable, is_made=True))
        self._made[storage_identity(variable.fake)] = variable.fake
        return 0

    def _number(self, known: Known) -> int:
        for index, other in enumerate(self.known):
            if other.variable is known.variable:
                return index + 1
        self.known.append(known)
        return len(self.known)

    def _of_state(self, evaluator: Frame, state: _State) -> Tag | None:
        if state.tag is None and self._of(evaluator, state.carried.start) is not None:
            with evaluator.graph.fake_mode:
                fake = torch.empty((), dtype=torch.int64)
            state.tag = regional(parameter(state.body, "tag", fake), fake)
            self._tensors[id(state.tag)] = state.tag
        return state.tag


def _tensor(evaluator: Frame, tag: Tag, region: Subgraph | None) -> TensorVariable:
    """A tag as a tensor, in the graph of ``region`` or the one at hand."""
    if isinstance(tag, TensorVariable):
        return tag
    if region is not None:
        with region.active(may_add_outside=True):
            return _tensor(evaluator, tag, None)
    number = number_in_tensor(evaluator, ConstantVariable(tag))
    assert number is not None
    return number.tensor
