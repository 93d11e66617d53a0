"""Prepares functional graphs for a compiler: decompositions, clean-ups, and the types for training.

:func:`trace_inference` takes the :class:`~weft_functionalize.FunctionalGraph` of a program and gives a
:class:`ForwardGraph` of the operators that a compiler lowers or calls from a library.
"""

from __future__ import annotations

from .decomposition_table import DecompositionTable, default_decompositions, exact_decompositions
from .differentiable_backward import CompiledGradients, CompileGradients
from .expected_backward import ExpectedBackward, expected_backward
from .gradient_function import GradientFunction, ReducedGradients
from .gradient_program import constant_gradient_program, gradient_program
from .inference import trace_inference
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
from .row_blocks import RowBlockOptions, forward_in_blocks, joint_in_blocks
from .runtime import TrainingProgram
from .unsupported import Unsupported

__all__ = [
    "BackwardSegment",
    "CompileGradients",
    "CompiledGradients",
    "DecompositionTable",
    "ExpectedBackward",
    "ForwardGraph",
    "GradientDescriptor",
    "GradientFunction",
    "JointGraph",
    "PartitionOptions",
    "PartitionedGraph",
    "ReducedGradients",
    "RowBlockOptions",
    "SavedDescriptor",
    "TangentDescriptor",
    "TrainingProgram",
    "Unsupported",
    "constant_gradient_program",
    "default_decompositions",
    "exact_decompositions",
    "expected_backward",
    "forward_in_blocks",
    "gradient_program",
    "joint_in_blocks",
    "partition",
    "segment_backward",
    "trace_inference",
    "trace_joint",
]
