"""The segments of backward as programs, and the values that they hand on."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

import torch

from ._torch import keeps_graph
from .partition import BackwardSegment
from .saved_layout import gather
from .sent_gradients import SentGradients
from .separate_edges import SeparateEdges

Program = Callable[..., Sequence[Any]]


class Values:
    """What the segments of one backward pass hand on: inputs of the backward graph, then what they kept."""

    def __init__(self) -> None:
        self.known: list[Any] | None = None
        # Arguments that eager gives no gradient this time.
        self.absent: frozenset[int] = frozenset()
        # Whether nobody reads the known values after this backward.
        self.are_last_read = True
        # Results of forward that are inputs, written in place, by position.
        self.written: dict[int, torch.Tensor] = {}
        # What forward takes: among what autograd sees, other tensors stand for some arguments.
        self.arguments: tuple[Any, ...] | None = None
        # What stands for arguments that forward writes to, by position, as they are before.
        self.overwritten: dict[int, torch.Tensor] = {}
        self.separate_edges: SeparateEdges | None = None
        self.sent = SentGradients()
        # Who sees the gradients of outputs that others lead through, by output.
        self.watches: dict[int, Any] = {}
        # And autocast as it was in forward: by kind of device, whether it is on, and its dtype.
        self.autocast: list[tuple[str, bool, torch.dtype]] | None = None
        # Whether backward may run again though the graph is not retained.
        self.is_kept = False


class Segment:
    """A segment with its program; ``arguments`` are the positions of what it computes the gradients of.

    Without a program, ``make`` gives it when it runs first.  Of what it reads, the values at the positions
    ``read_later`` are read by later segments too.
    """

    def __init__(
        self,
        segment: BackwardSegment,
        program: Program | None,
        gradients: Sequence[int],
        make: Callable[[], Program] | None = None,
        read_later: Set[int] = frozenset(),
    ) -> None:
        self.inputs = segment.inputs
        self._read_later = tuple(k for k, at in enumerate(self.inputs) if at in read_later)
        self._read_last = tuple(at for at in self.inputs if at not in read_later)
        self._take_inputs = gather(self.inputs)
        self._program, self._make = program, make
        self.arguments = tuple(gradients[k] for k in segment.gradients)

    def select(self, arguments: Sequence[Any]) -> list[Any]:
        return [arguments[k] for k in self.arguments]

    def run(self, values: Values, is_last: bool) -> Sequence[Any]:
        """The gradients of ``arguments``, in order; it lets go of what no later segment reads."""
        assert values.known is not None
        if self._program is None:
            assert self._make is not None
            self._program = self._make()
        inputs = [*self._take_inputs(values.known)]
        are_last_read = values.are_last_read and not (values.is_kept or keeps_graph())
        if is_last:
            values.known = None
        elif are_last_read:
            for position in self._read_last:
                values.known[position] = None
        call = getattr(self._program, "call_donated", None)
        if call is None or not are_last_read:
            results = self._program(*inputs)
        else:
            # Memory that two tensors hold is not written to.
            for k in self._read_later:
                inputs[k] = inputs[k].detach()
            results = call(inputs)
        count = len(self.arguments)
        if values.known is not None:
            values.known.extend(results[count:])
        if values.absent.isdisjoint(self.arguments):
            return results[:count]
        return [
            None if k in values.absent else gradient
            for k, gradient in zip(self.arguments, results, strict=False)
        ]


def segments_of(
    backward: Sequence[tuple[BackwardSegment, Program]], gradients: Sequence[int]
) -> tuple[Segment, ...]:
    """The segments of ``backward``, in order, each of which knows what those after it read."""
    read_later: set[int] = set()
    found: list[Segment] = []
    for segment, program in reversed(backward):
        found.append(Segment(segment, program, gradients, read_later=frozenset(read_later)))
        read_later.update(segment.inputs)
    return tuple(reversed(found))
