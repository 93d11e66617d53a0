"""What a graph has written so far to tensors from outside, which a check behind that would have to undo.

A call in which a check fails runs as the program was written, from what there was before it.  A program that
holds back its writes until all checks have passed keeps that for as long, and costs as much memory; others
copy what they write.  Both are cheap for a little: running statistics, counters.  Behind writes of more the
graph ends, right after the last of them, so that in the next graph the check comes before any write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import torch
import torch.fx

from ...gradient_rule import gradients_past_hooks
from ...unsupported import BreakEarlier, Unsupported
from .purity import is_data_of, possibly_written, region_graphs, writes
from .recovery import is_little
from .storages import has_history, leaves, node_values, storages

if TYPE_CHECKING:
    from ..protocol import Evaluator, Graph
    from ..regions.decisions import ProgramPoint

_KIND = "check of data behind a write"


class WritesSoFar:
    """The storages that the outermost graph's nodes have written to, each with the last of these nodes."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._seen: dict[torch.fx.Node, int] = {}  # with their number
        self._checked: dict[tuple[ProgramPoint, int], int] = {}  # nodes before the last check
        self._writers: dict[int, torch.fx.Node] = {}
        self._operands: dict[int, set[int]] = {}  # of regions, which their results may be

    def require_little(self, evaluator: Evaluator, place: ProgramPoint) -> None:
        """Let the graph have a check at ``place``.

        :raises Unsupported: what has been written is more than a little, or not known to be.  Or a loop has
            come to a check again with a write between: iterations of training are graphs of their own.
        """
        last = self._last_to_undo(evaluator, place)
        if last is not None:
            self._refuse(evaluator, last)
        self._checked[self._key(evaluator, place)] = len(self._seen)

    def allow_check(self, evaluator: Evaluator, place: ProgramPoint) -> bool:
        """The same for a decision that differs by call; behind a step of training it may end the graph.

        :raises Unsupported: the next step has begun: a backward in it has to find its forward in one graph.
        """
        last = self._last_to_undo(evaluator, place)
        following = last
        while following is not None and following.op != "root":
            following = following.next
            if any(map(_is_computed, leaves(node_values([following])))):
                assert last is not None
                self._refuse(evaluator, last)
        self._checked[self._key(evaluator, place)] = len(self._seen)
        return last is None

    def _refuse(self, evaluator: Evaluator, last: torch.fx.Node) -> NoReturn:
        """End the graph behind the write ``last``."""
        error = Unsupported(_KIND, str(last))
        position = self._graph.made_at.get(last)
        root = evaluator.state.root
        if position is None or root is None or position == root.index:
            raise error
        raise BreakEarlier(position + 1, error)

    def _key(self, evaluator: Evaluator, place: ProgramPoint) -> tuple[ProgramPoint, int]:
        """What is the same in each iteration of a loop; functions may be called from several places."""
        root = evaluator.state.root
        return place, -1 if root is None else root.index

    def _last_to_undo(self, evaluator: Evaluator, place: ProgramPoint) -> torch.fx.Node | None:
        """The last write to a tensor from outside that a check at ``place`` is not to undo."""
        self._update()
        checked = self._checked.get(self._key(evaluator, place))
        given = node_values(self._graph.first_versions)
        large = [v for v in given if isinstance(v, torch.Tensor) and not is_little(v)]
        found = {self._writers[s] for s in storages(large) & self._writers.keys()}
        if checked is not None:
            found |= self._steps_since(checked)
        return max(found, key=self._seen.__getitem__, default=None)

    def _steps_since(self, number: int) -> set[torch.fx.Node]:
        """The writes, behind the node of a number, that end a step of training: its optimizer's.

        They come after a backward and before the next forward, which may write statistics.
        """
        found: set[torch.fx.Node] = set()
        written = set(self._writers.values())
        is_step = False
        for node in list(self._seen)[number:]:
            if node.target in (torch.autograd.grad, gradients_past_hooks):
                is_step = True
            elif any(_is_computed(value) for value in leaves(node_values([node]))):
                is_step = False
            elif is_step and node in written:
                found.add(node)
        return found

    def _update(self) -> None:
        for node in self._graph.outermost.nodes:
            if node not in self._seen:
                self._seen[node] = len(self._seen)
                self._note(node)

    def _note(self, node: torch.fx.Node) -> None:
        if region_graphs(node):
            operands = storages(leaves(node_values(node.all_input_nodes)))
            for result in storages(leaves(node_values([node]))):
                self._operands[result] = operands
        if writes(node) and not is_data_of(node):  # what is done with it is what writes
            for storage in self._all(storages(leaves(node_values(possibly_written(node))))):
                self._writers[storage] = node

    def _all(self, written: set[int]) -> Iterator[int]:
        """The storages ``written``, and those that regions may have given as their results."""
        seen, pending = set(written), list(written)
        while pending:
            storage = pending.pop()
            yield storage
            fresh = self._operands.get(storage, set()) - seen
            seen |= fresh
            pending += fresh


def _is_computed(value: object) -> bool:
    return isinstance(value, torch.Tensor) and has_history(value)
