"""Prepares functional graphs for a compiler: decompositions, clean-ups, and the types for training.

:func:`trace_inference` takes the :class:`~weft_functionalize.FunctionalGraph` of a program and gives a
:class:`ForwardGraph` of the operators that a compiler lowers or calls from a library.
"""

from __future__ import annotations

from .decomposition_table import DecompositionTable, default_decompositions
from .joint_graph import (
    BackwardInputKind,
    ForwardGraph,
    GradientDescriptor,
    JointGraph,
    PartitionedGraph,
    SavedDescriptor,
    TangentDescriptor,
    needs_gradient,
)
from .tracing import trace_inference, trace_joint
from .unsupported import Unsupported

__all__ = [
    "BackwardInputKind",
    "DecompositionTable",
    "ForwardGraph",
    "GradientDescriptor",
    "JointGraph",
    "PartitionedGraph",
    "SavedDescriptor",
    "TangentDescriptor",
    "Unsupported",
    "default_decompositions",
    "needs_gradient",
    "trace_inference",
    "trace_joint",
]
