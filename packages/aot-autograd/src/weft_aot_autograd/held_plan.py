"""Of what eager's autograd holds for backward, what a call of one compiled graph has to watch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft_functionalize import FunctionalGraph, HeldValues, OutputDescriptor, OutputKind

from .saved_layout import gather

Key = tuple[bool, int]
"""Whether a tensor is an argument, not a result, and its position among them."""


def held_inputs(outputs: Iterable[OutputDescriptor]) -> frozenset[int]:
    """The inputs that are held for the gradients of any of the ``outputs``."""
    return frozenset(index for d in outputs for held in d.held for index in held.inputs)


@dataclass(frozen=True)
class HeldTensors:
    """What is held on the way from an output to ``arguments``; ``error`` is raised in any case, if there."""

    tensors: frozenset[Key]
    arguments: tuple[int, ...]
    error: str


class HeldPlan:
    """What is held, by output, in terms of a function's arguments and results.

    ``argument_indices`` has the inputs of the graph that the arguments are, ``kept`` the positions of those
    that each call keeps, among what it keeps.  Those that are not written to are watched there, at the
    positions ``kept``; ``watched`` are the others, and ``writes_to_come`` says how often each argument among
    these is written to when the program has run.
    """

    def __init__(
        self, functional: FunctionalGraph, argument_indices: Sequence[int], kept: Mapping[int, int]
    ) -> None:
        order = {index: k for k, index in enumerate(argument_indices)}
        outputs = {
            d.graph_index: d.held
            for d in functional.outputs
            if d.graph_index is not None and d.held
        }
        distinct = {held for found in outputs.values() for held in found}
        described = {held: _in_arguments(held, order) for held in distinct}
        self.by_output = {
            index: [described[held] for held in found] for index, found in outputs.items()
        }
        every = described.values()
        self.has_errors = any(held.error for held in every)
        self.writes_to_come = {
            order[d.input_index]: d.writes
            for d in functional.outputs
            if d.kind is OutputKind.MUTATED_INPUT and d.input_index in order
        }
        keys = frozenset[Key]().union(*(held.tensors for held in every))
        as_they_are = {(True, k) for k in kept if k not in self.writes_to_come}
        self.kept = tuple(kept[k] for _, k in sorted(keys & as_they_are))
        self.take_kept = gather(self.kept)
        self.watched = tuple(sorted(keys - as_they_are))

    def always_raises(self, outputs: Iterable[int], arguments: Iterable[int]) -> bool:
        """Whether backward from any of ``outputs`` is an error, whichever of ``arguments`` it leads to.

        So it is where the program has called ``loss.backward()`` itself and returns the loss.
        """
        wanted = frozenset(arguments)

        def raises(output: int) -> bool:
            found = (h.arguments for h in self.by_output.get(output, ()) if h.error)
            return wanted <= frozenset[int]().union(*found)

        return all(map(raises, outputs))


def _in_arguments(held: HeldValues, order: Mapping[int, int]) -> HeldTensors:
    tensors = {(True, order[index]) for index in held.inputs if index in order}
    tensors |= {(False, index) for index in held.outputs}
    arguments = tuple(order[index] for index in sorted(held.reached) if index in order)
    return HeldTensors(frozenset(tensors), arguments, held.error)
