"""Edges of autograd's graph to arguments that only some of a graph's results lead to.

To autograd all results of a graph come from one function, which goes on to every argument.  Where only some
results are differentiated it would visit what eager does not, with no gradient: a node that has let go of
what it saved, or whose saved tensors were written to, raises; the user's own functions are called with zeros
and hooks with None.  So each argument that has been computed, and that not all results lead to, is behind a
node of its own.  Only the nodes of results that lead to it go there::

    ResultEdges of a      ResultEdges of b
       |         |           |         |
       |      CompiledFunction         |
       |             |                 |
       |      arguments of both        |
    ArgumentEdges                ArgumentEdges
       |                               |
    arguments of a alone         arguments of b alone

Of the nodes that are ready autograd runs the latest first: the compiled function has computed all gradients
when those behind it ask for theirs.  Where it has not, as ``torch.autograd.grad`` was asked for theirs only,
or nodes of several devices take turns, they have it compute what is known.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from ._torch import backward_number, behind_backward, hooks_of, will_visit
from .saved_layout import gather
from .spared_hooks import spare

Compute = Callable[[Mapping[int, Any]], None]
"""Has the compiled function compute with what gradients of results there are, by position."""


@dataclass
class _Backward:
    """Gradients of results and of arguments by position, the latter from those of the results ``source``."""

    given: dict[int, torch.Tensor] = field(default_factory=dict)
    computed: dict[int, Any] = field(default_factory=dict)
    source: frozenset[int] | None = None


class SeparateEdges:
    """The nodes of one call for arguments, and what is handed on in each backward that runs.

    ``reaching`` has the results that lead to each of the arguments with nodes of their own.
    """

    def __init__(self, reaching: Mapping[int, Set[int]], device: torch.device) -> None:
        self._reaching = reaching
        self._device = device
        self._nodes: dict[int, tuple[weakref.ref[Any], int]] = {}  # and the argument's number there
        self._running: dict[int, _Backward] = {}

    def cut(self, arguments: Sequence[Any]) -> list[Any]:
        """What the compiled function gets: a leaf in the place of each argument that is not its own."""
        leaf = torch.empty(0, requires_grad=True)
        return [leaf if k in self._reaching else value for k, value in enumerate(arguments)]

    def open(self, arguments: Sequence[Any]) -> dict[Set[int], torch.Tensor]:
        """Make the arguments' nodes, before the compiled function's; their tickets by the results."""
        groups: dict[Set[int], list[int]] = {}
        for k, results in self._reaching.items():
            groups.setdefault(results, []).append(k)
        tickets = {}
        for results, positions in groups.items():
            tensors = [arguments[k] for k in positions]
            ticket = ArgumentEdges.apply(self, positions, *tensors)  # type: ignore[no-untyped-call]
            node = weakref.ref(ticket.grad_fn)
            self._nodes.update({k: (node, number) for number, k in enumerate(positions)})
            tickets[results] = ticket
        return tickets

    def join(
        self, tickets: Mapping[Set[int], torch.Tensor], results: Sequence[Any], compute: Compute
    ) -> tuple[Any, ...]:
        """The ``results`` of the compiled function with edges to the arguments that were cut off."""
        alike: dict[tuple[Set[int], ...], list[int]] = {}
        for index, result in enumerate(results):
            leading = tuple(outputs for outputs in tickets if index in outputs)
            if leading and result.requires_grad:
                alike.setdefault(leading, []).append(index)
        for ticket in tickets.values():
            ticket.grad_fn.compute = compute  # type: ignore[union-attr]
        joined = list(results)
        for leading, positions in alike.items():
            tensors = [tickets[outputs] for outputs in leading] + [results[k] for k in positions]
            compiled = results[positions[0]].grad_fn
            made = ResultEdges.apply(self, compiled, positions, len(leading), *tensors)  # type: ignore[no-untyped-call]
            for k, result in zip(positions, made, strict=True):
                joined[k] = result
        return tuple(joined)

    def ticket(self) -> torch.Tensor:
        """What ties two nodes: without elements, on the device whose thread computes the gradients."""
        return torch.empty(0, dtype=torch.float32, device=self._device)

    def note(self, positions: Sequence[int], gradients: Sequence[Any]) -> None:
        """Results at ``positions`` have these gradients in the backward that is running."""
        number = backward_number()
        if number not in self._running:
            self._running[number] = _Backward()
            behind_backward(functools.partial(self._forget, number))
        pairs = zip(positions, gradients, strict=True)
        self._running[number].given.update({k: g for k, g in pairs if g is not None})

    def _forget(self, number: int) -> None:
        del self._running[number]

    def keep(self, computed: Sequence[Any]) -> list[Any]:
        """Keep the gradients of arguments that were cut off; None stands for them in what is returned."""
        running = self._running.get(backward_number())
        if running is not None:
            running.computed = {k: computed[k] for k in self._reaching}
            running.source = frozenset(running.given)
        return [None if k in self._reaching else g for k, g in enumerate(computed)]

    def gradients(self, positions: Sequence[int], compute: Compute) -> list[Any]:
        """The gradients of the arguments at ``positions`` in the backward that is running."""
        running = self._running[backward_number()]
        if running.source != running.given.keys():
            compute(running.given)
        return [running.computed.pop(k) for k in positions]

    def leads_to(self, position: int) -> bool | None:
        """Whether the backward that is running gets to an argument; None for one that was not cut off."""
        if position not in self._nodes:
            return None
        reference, number = self._nodes[position]
        node = reference()
        if node is None or not will_visit(node):
            return False
        return will_visit(node.next_functions[number][0])


_IS_LEAF = operator.attrgetter("is_leaf")


class PartlyReached:
    """The arguments that not all results lead to, ``reached`` by some each.

    ``device``: where the gradients are computed.  ``written``: the results that autograd records as written
    to arguments.  The nodes of these writes are not visited for the sake of a leaf that they don't lead to.
    """

    def __init__(
        self, reached: Mapping[int, Set[int]], device: torch.device, written: Set[int]
    ) -> None:
        self._reached, self._device, self._written = reached, device, written
        self._take = gather(tuple(reached))
        self._leaves_need_none = all(written <= outputs for outputs in reached.values())

    def separate_edges(self, arguments: Sequence[Any]) -> SeparateEdges | None:
        """For those of the arguments that were computed and require gradients, if any."""
        if self._leaves_need_none and all(map(_IS_LEAF, self._take(arguments))):
            return None  # parameters, mostly hundreds
        reaching = {
            k: outputs
            for k, outputs in self._reached.items()
            if arguments[k].requires_grad
            and (not arguments[k].is_leaf or not self._written <= outputs)
        }
        return SeparateEdges(reaching, self._device) if reaching else None


@functools.cache
def never_asked_for() -> torch.Tensor:
    """A leaf that a backward visits only if it goes to all leaves, since nobody can ask for it."""
    return torch.empty(0, requires_grad=True)


@functools.cache
def _node_behind_all() -> Any:
    """The node of that leaf."""
    return torch.autograd.graph.get_gradient_edge(never_asked_for()).node


def goes_to_all_leaves() -> bool:
    """Whether the backward that is running visits all that there is behind the results it began with."""
    return will_visit(_node_behind_all())


def led_to(ctx: Any, positions: Iterable[int]) -> list[int]:
    """Which of the arguments at ``positions`` the backward that is running goes on to from the function."""
    return [*_led_to(ctx, positions)]


def leads_to_any(ctx: Any, positions: Iterable[int]) -> bool:
    """Whether the backward that is running goes on to any of the arguments at ``positions``."""
    return any(True for _ in _led_to(ctx, positions))


def _led_to(ctx: Any, positions: Iterable[int]) -> Iterator[int]:
    separate: SeparateEdges | None = ctx.values.separate_edges
    functions = ctx.next_functions  # made anew each time it is read
    edges = ctx.plan.edges
    for position in positions:
        leads = None if separate is None else separate.leads_to(position)
        if leads is None:
            node = functions[edges[position]][0]
            leads = node is not None and will_visit(node)
        if leads:
            yield position


class ArgumentEdges(torch.autograd.Function):
    """Hands on the gradients of some arguments; gives a ticket for the results that lead to them."""

    @staticmethod
    def forward(
        ctx: Any, edges: SeparateEdges, positions: Sequence[int], *arguments: torch.Tensor
    ) -> torch.Tensor:
        ctx.edges, ctx.positions = edges, positions
        ctx.set_materialize_grads(False)
        ctx.hooks = [hooks_of(tensor) for tensor in arguments]
        return edges.ticket()

    @staticmethod
    def backward(ctx: Any, _: Any) -> tuple[Any, ...]:
        gradients = ctx.edges.gradients(ctx.positions, ctx.compute)
        absent = [hooks for hooks, g in zip(ctx.hooks, gradients, strict=True) if g is None]
        spare(absent)  # where data decides that there is none
        return None, None, *gradients


class ResultEdges(torch.autograd.Function):
    """Results as they are, whose gradients go to the compiled function, and by tickets to arguments."""

    @staticmethod
    def forward(
        ctx: Any,
        edges: SeparateEdges,
        compiled: Any,
        positions: Sequence[int],
        ticket_count: int,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.edges, ctx.positions, ctx.ticket_count = edges, positions, ticket_count
        ctx.compiled = compiled
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors[ticket_count:])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        ctx.edges.note(ctx.positions, gradients)
        tickets = [ctx.edges.ticket() for _ in range(ctx.ticket_count)]
        return None, None, None, None, *tickets, *gradients
