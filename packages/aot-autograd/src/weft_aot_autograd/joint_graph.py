"""The results of tracing: forward only, forward and backward together, and the two apart."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from weft_functionalize import InputDescriptor, OutputDescriptor


@dataclass(frozen=True)
class ForwardGraph:
    """A pure ATen graph for inference; inputs and outputs are those of the functional graph."""

    graph_module: torch.fx.GraphModule
    inputs: tuple[InputDescriptor, ...]
    outputs: tuple[OutputDescriptor, ...]


class BackwardInputKind(enum.Enum):
    """What an input of a backward graph is."""

    SAVED_TENSOR = "saved tensor"
    SAVED_INTEGER = "saved integer"
    TANGENT = "tangent"


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
    """A value that forward leaves for backward: an input, or its output at ``output_index``."""

    input_index: int | None
    output_index: int | None
    nbytes: int


@dataclass(frozen=True)
class JointGraph:
    """Forward and backward in one graph: inputs then tangents, outputs then gradients."""

    graph_module: torch.fx.GraphModule
    inputs: tuple[InputDescriptor, ...]
    tangents: tuple[TangentDescriptor, ...]
    outputs: tuple[OutputDescriptor, ...]
    gradients: tuple[GradientDescriptor, ...]


@dataclass(frozen=True)
class PartitionedGraph:
    """Forward and backward apart; forward returns its outputs, then the saved values.

    ``backward_inputs`` are the kinds of backward's placeholders, in order.
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule
    inputs: tuple[InputDescriptor, ...]
    outputs: tuple[OutputDescriptor, ...]
    saved: tuple[SavedDescriptor, ...]
    tangents: tuple[TangentDescriptor, ...]
    gradients: tuple[GradientDescriptor, ...]
    backward_inputs: tuple[BackwardInputKind, ...]


def needs_gradient(inputs: Sequence[Any], descriptors: Sequence[InputDescriptor]) -> bool:
    """Whether running on ``inputs`` (the user inputs) has to record gradients, as eager would now."""
    if not torch.is_grad_enabled():
        return False
    if any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs):
        return True
    lifted = (descriptor for descriptor in descriptors if descriptor.position is None)
    return any(descriptor.requires_grad for descriptor in lifted)
