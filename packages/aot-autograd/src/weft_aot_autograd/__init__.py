"""Prepares functional graphs for a compiler: decompositions, clean-ups, and the types for training.

:func:`trace_inference` takes the :class:`~weft_functionalize.FunctionalGraph` of a program and gives a
:class:`ForwardGraph` of the operators that a compiler lowers or calls from a library.
"""

from __future__ import annotations

from .decomposition_table import DecompositionTable, default_decompositions, exact_decompositions
from .joint_graph import (
    ForwardGraph,
    GradientDescriptor,
    JointGraph,
    PartitionedGraph,
    SavedDescriptor,
    TangentDescriptor,
)
from .joint_tracing import trace_joint
from .partition import BackwardSegment, PartitionOptions, partition, segment_backward
from .runtime import TrainingProgram
from .tracing import trace_inference
from .unsupported import Unsupported

__all__ = [
    "BackwardSegment",
    "DecompositionTable",
    "ForwardGraph",
    "GradientDescriptor",
    "JointGraph",
    "PartitionOptions",
    "PartitionedGraph",
    "SavedDescriptor",
    "TangentDescriptor",
    "TrainingProgram",
    "Unsupported",
    "default_decompositions",
    "exact_decompositions",
    "partition",
    "segment_backward",
    "trace_inference",
    "trace_joint",
]
