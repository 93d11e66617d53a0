"""Prepares functional graphs for a compiler: decompositions, clean-ups, and the types for training.

:func:`trace_inference` takes the :class:`~weft_functionalize.FunctionalGraph` of a program and gives a
:class:`ForwardGraph` of the operators that a compiler lowers or calls from a library.
"""

from __future__ import annotations

from .decomposition_table import DecompositionTable as DecompositionTable
from .decomposition_table import default_decompositions as default_decompositions
from .decomposition_table import exact_decompositions as exact_decompositions
from .differentiable_backward import CompiledGradients as CompiledGradients
from .differentiable_backward import CompileGradients as CompileGradients
from .expected_backward import ExpectedBackward as ExpectedBackward
from .expected_backward import expected_backward as expected_backward
from .gradient_function import GradientFunction as GradientFunction
from .gradient_function import ReducedGradients as ReducedGradients
from .gradient_program import constant_gradient_program as constant_gradient_program
from .gradient_program import gradient_program as gradient_program
from .inference import trace_inference as trace_inference
from .joint_graph import ForwardGraph as ForwardGraph
from .joint_graph import GradientDescriptor as GradientDescriptor
from .joint_graph import JointGraph as JointGraph
from .joint_graph import PartitionedGraph as PartitionedGraph
from .joint_graph import SavedDescriptor as SavedDescriptor
from .joint_graph import TangentDescriptor as TangentDescriptor
from .joint_tracing import trace_joint as trace_joint
from .partition import BackwardSegment as BackwardSegment
from .partition import PartitionOptions as PartitionOptions
from .partition import partition as partition
from .partition import segment_backward as segment_backward
from .row_blocks import RowBlockOptions as RowBlockOptions
from .row_blocks import forward_in_blocks as forward_in_blocks
from .row_blocks import joint_in_blocks as joint_in_blocks
from .runtime import TrainingProgram as TrainingProgram
from .unsupported import Unsupported as Unsupported
