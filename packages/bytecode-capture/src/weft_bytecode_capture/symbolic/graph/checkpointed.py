"""What checkpointed calls read: eager reads it again in backward, with what has been written to it by then.

A graph computes the call once.  So the call is eager's where the program writes to such a tensor behind it,
or may do so by ``.data`` behind the graph.  It is, too, where the program writes to what autograd has saved
in the call: eager has saved nothing, a graph has, and backward would raise.  Other writes behind the graph
are not seen here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ...gradient_rule import gradients_past_hooks
from ...unsupported import BreakEarlier, Unsupported
from ..protocol import Evaluator
from .histories import computed_from
from .purity import possibly_written, writes
from .storages import leaves, node_values, storages

KIND = "checkpoint with effects"


@dataclass(frozen=True)
class _Checkpoint:
    """A call: the root frame's instruction, the nodes that it made, the storages that backward reads.

    These are of what the call reads besides, and of what autograd has saved in it.  ``last`` is the graph's
    last node behind it.
    """

    position: int
    made: frozenset[torch.fx.Node]
    read: frozenset[int]
    last: torch.fx.Node


class Checkpoints:
    """The checkpointed calls of one graph."""

    def __init__(self) -> None:
        self._calls: list[_Checkpoint] = []

    def note(self, evaluator: Evaluator, nodes: Iterable[torch.fx.Node]) -> None:
        """``nodes`` are those of a call that has been evaluated."""
        made = frozenset(node for node in nodes if node.op.startswith("call_"))
        given = {node for call in made for node in call.all_input_nodes} - made
        root = evaluator.state.root
        if made and root is not None:
            last = next(iter(reversed(evaluator.graph.outermost.nodes)))
            read = _memory(given) | storages(_saved(made, given))
            self._calls.append(_Checkpoint(root.index, made, frozenset(read), last))

    def check(self, evaluator: Evaluator, may_be_written: Callable[[], bool]) -> None:
        """
        :raises BreakEarlier: the graph writes to what a call before has read or saved, and backward has not
            been there; or what runs behind it may, as ``may_be_written`` says.  That is not asked where the
            graph must be whole.
        """
        for call in self._calls:
            node = call.last.next
            while node.op != "root" and not _lets_go(evaluator, node, call):
                if writes(node) and _memory(possibly_written(node)) & call.read:
                    raise _refused(call, f"{node} writes to what the call's backward reads")
                node = node.next
            is_held = node.op == "root" and not evaluator.state.options.fullgraph
            if is_held and may_be_written():
                raise _refused(call, "x.data may be written to behind the graph")


def _refused(call: _Checkpoint, context: str) -> BreakEarlier:
    return BreakEarlier(call.position, Unsupported(KIND, context))


def _lets_go(evaluator: Evaluator, node: torch.fx.Node, call: _Checkpoint) -> bool:
    """Whether a node is a backward behind a call, which can be done once."""
    if node.target not in (torch.autograd.grad, gradients_past_hooks):
        return False
    if node.kwargs.get("retain_graph") or node.kwargs.get("create_graph"):
        return False
    return not call.made.isdisjoint(computed_from(evaluator, node.all_input_nodes))


def _memory(nodes: Iterable[torch.fx.Node]) -> set[int]:
    return storages(leaves(node_values(nodes)))


def _saved(made: Iterable[torch.fx.Node], given: Iterable[torch.fx.Node]) -> Iterator[torch.Tensor]:
    """What autograd has saved to go from the values of ``made`` back to those of ``given``."""
    seen = set(_functions(given))
    waiting = [function for function in _functions(made) if function not in seen]
    while waiting:
        function = waiting.pop()
        if function in seen:
            continue
        seen.add(function)
        waiting += [before for before, _ in function.next_functions if before is not None]
        for name in dir(function):
            if name.startswith("_saved_") or name == "saved_tensors":
                yield from leaves(getattr(function, name))


def _functions(nodes: Iterable[torch.fx.Node]) -> Iterator[Any]:
    """The functions of autograd's graph that made the values of ``nodes``."""
    for value in leaves(node_values(nodes)):
        if isinstance(value, torch.Tensor):
            try:
                function = value.grad_fn
            except (IndexError, RuntimeError, ValueError):  # a view that autograd does not tell of
                continue
            if function is not None:
                yield function
