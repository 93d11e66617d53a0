"""Which gradients eager gives in one call: by which outputs have one, and by what data has decided."""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch

from .joint_graph import PartitionedGraph


class GivenGradients:
    """``arguments`` are what the gradients are of, in the caller's numbering and the graph's order.

    Where some output's gradients depend on data, forward gives a vector of flags.
    """

    def __init__(self, partitioned: PartitionedGraph, arguments: Sequence[int]) -> None:
        flags = partitioned.flags
        self._arguments = arguments
        self._reached_by: dict[int, Sequence[int]] = {}
        self._absent: dict[frozenset[int], frozenset[int]] = {}  # where no data decides
        self.flags_index = None if flags is None else flags.output_index
        positions = {} if flags is None else flags.positions
        outputs = [tangent.output_index for tangent in partitioned.tangents]
        reached = {d.graph_index: d.reached for d in partitioned.outputs}
        # By gradient: the outputs by which eager gives it, with the flags that decide; None where not known.
        self._reaching: list[tuple[int, dict[int, int | None]]] | None = [
            (
                argument,
                {
                    output: positions.get((output, gradient.input_index))
                    for output in outputs
                    if gradient.input_index in (reached[output] or ())
                },
            )
            for argument, gradient in zip(arguments, partitioned.gradients, strict=True)
        ]
        if any(reached[output] is None for output in outputs):
            self._reaching = None
        # A view made without gradients requires some as what it is of does, and leads to nothing.
        self._all_reached = all(found for _, found in self._reaching or ())
        self._outputs = outputs
        # Outputs that have gradients in some calls only: by what flags.
        self._in_some: dict[int, set[int]] = {}
        for output in outputs:
            inputs = reached[output] or frozenset[int]()
            deciding = {positions.get((output, index)) for index in inputs}
            if inputs and None not in deciding:
                self._in_some[output] = {k for k in deciding if k is not None}

    @property
    def in_some_calls(self) -> Set[int]:
        """The outputs that have gradients in some calls only."""
        return self._in_some.keys()

    def without_gradients(self, flags: torch.Tensor) -> list[int]:
        """Those of :attr:`in_some_calls` that have none in the call with these flags."""
        values = flags.tolist()
        return [o for o, deciding in self._in_some.items() if not any(values[k] for k in deciding)]

    def partly_reached(self) -> dict[int, frozenset[int]]:
        """The arguments that not all outputs lead to, with those that do, in some calls at least."""
        return {
            argument: frozenset(outputs)
            for argument, outputs in self._reaching or ()
            if len(outputs) < len(self._outputs)
        }

    def reached_by(self, output: int) -> Sequence[int]:
        """The arguments that an output leads to, in some calls at least; all where that is not known."""
        if output not in self._reached_by:
            reached = [a for a, outputs in self._reaching or () if output in outputs]
            self._reached_by[output] = reached or self._arguments
        return self._reached_by[output]

    def leading_to(self, arguments: Set[int]) -> frozenset[int]:
        """The outputs that lead to any of the arguments, in some calls at least."""
        if self._reaching is None:
            return frozenset(self._outputs)
        return frozenset(o for a, outputs in self._reaching if a in arguments for o in outputs)

    def never(self, given: Set[int]) -> frozenset[int]:
        """The arguments that no data lets have a gradient where the outputs ``given`` have one."""
        if self._reaching is None:
            return frozenset()
        return frozenset(a for a, outputs in self._reaching if given.isdisjoint(outputs))

    def absent(self, given: frozenset[int], flags: torch.Tensor | None) -> frozenset[int]:
        """The arguments that eager gives no gradient where the outputs ``given`` have one."""
        all_given = len(given) == len(self._outputs) and self._all_reached
        if self._reaching is None or (flags is None and all_given):
            return frozenset()
        if flags is not None:
            return self._not_given(given, flags.tolist())
        if given not in self._absent:
            self._absent[given] = self._not_given(given, ())
        return self._absent[given]

    def _not_given(self, given: frozenset[int], flags: Sequence[bool]) -> frozenset[int]:
        return frozenset(
            argument
            for argument, outputs in self._reaching or ()
            if not any(
                output in given and (flag is None or flags[flag])
                for output, flag in outputs.items()
            )
        )
