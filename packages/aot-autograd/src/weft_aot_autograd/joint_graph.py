"""The results of tracing: forward only, forward and backward together, and the two apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch.fx
from weft_functionalize import InputDescriptor, OutputDescriptor


@dataclass(frozen=True)
class ForwardGraph:
    """A pure ATen graph for inference; inputs and outputs are those of the functional graph."""

    graph_module: torch.fx.GraphModule
    inputs: tuple[InputDescriptor, ...]
    outputs: tuple[OutputDescriptor, ...]


@dataclass(frozen=True)
class TangentDescriptor:
    """The gradient with respect to output ``output_index`` of the forward graph."""

    output_index: int


@dataclass(frozen=True)
class GradientDescriptor:
    """The gradient with respect to input ``input_index`` of the forward graph."""

    input_index: int


@dataclass(frozen=True)
class SavedDescriptor:
    """A value that forward leaves for backward: its input at ``input_index`` or output at ``output_index``.

    Exactly one of the two is set.  ``nbytes`` is the size of the value in bytes.
    """

    input_index: int | None
    output_index: int | None
    nbytes: int


@dataclass(frozen=True)
class GradientFlags:
    """What data decides of which gradients eager gives: a bool vector, output ``output_index`` of forward.

    ``positions``: by index of an output and of an input, where in it is said whether the input has a gradient
    when the output has one.  Of other pairs ``OutputDescriptor.reached`` says so.
    """

    output_index: int
    positions: Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class MissingDerivative:
    """Output ``output_index`` leads to inputs by an operator that autograd has no derivative of.

    Eager raises ``error`` with ``message`` when a gradient of the output is on its way to ``input_indices``.
    """

    output_index: int
    input_indices: frozenset[int]
    error: type[RuntimeError]
    message: str


@dataclass(frozen=True)
class JointGraph:
    """Forward and backward in one graph: inputs then tangents, outputs then gradients.

    ``output_count`` is how many of the graph's outputs are forward's, with those that ``flags`` are.
    ``read_as_eager``: backward keeps what eager's autograd holds, and computes what its formulas do.
    """

    graph_module: torch.fx.GraphModule
    inputs: tuple[InputDescriptor, ...]
    tangents: tuple[TangentDescriptor, ...]
    outputs: tuple[OutputDescriptor, ...]
    gradients: tuple[GradientDescriptor, ...]
    output_count: int
    flags: GradientFlags | None = None
    missing: tuple[MissingDerivative, ...] = ()
    read_as_eager: bool = False


@dataclass(frozen=True)
class PartitionedGraph:
    """Forward and backward apart.

    ``forward`` takes ``inputs`` and returns its ``output_count`` outputs, then the saved values that are
    neither inputs nor outputs.  ``backward`` takes the values of ``saved``, then those of ``tangents``, and
    returns those of ``gradients``.  ``recomputed`` names the forward nodes that backward computes again.
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule
    inputs: tuple[InputDescriptor, ...]
    outputs: tuple[OutputDescriptor, ...]
    output_count: int
    saved: tuple[SavedDescriptor, ...]
    tangents: tuple[TangentDescriptor, ...]
    gradients: tuple[GradientDescriptor, ...]
    recomputed: tuple[str, ...]
    flags: GradientFlags | None = None
    missing: tuple[MissingDerivative, ...] = ()

    @property
    def activation_bytes(self) -> int:
        """Bytes that live from forward to backward because of this graph: saved values but inputs."""
        return sum(saved.nbytes for saved in self.saved if saved.input_index is None)
