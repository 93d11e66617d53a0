"""Puts the compiled graphs of a function of gradients together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .differentiable_backward import CompiledGradients, CompileGradients
from .gradient_function import ReducedGradients
from .joint_graph import PartitionedGraph
from .runtime import TrainingProgram
from .segments import Program
from .training_plan import CompileLater


def gradient_program(
    gradients: ReducedGradients,
    partitioned: PartitionedGraph,
    forward: Program,
    backward: Program,
    compile_later: CompileLater,
    compile_gradients: CompileGradients | None,
) -> CompiledGradients:
    """``forward`` and ``backward`` are the programs of ``partitioned``, as of :class:`TrainingProgram`."""
    program = TrainingProgram(
        gradients.functional(partitioned.forward),
        partitioned,
        forward,
        backward,
        compile_later,
        compile_gradients,
        gradients.derivation,
    )
    return _compiled(gradients, program)


def constant_gradient_program(gradients: ReducedGradients, forward: Program) -> CompiledGradients:
    """The program of gradients that depend on nothing that has gradients."""

    def run(*inputs: Any) -> Sequence[Any]:
        with torch.no_grad():
            return forward(*inputs)

    return _compiled(gradients, run)


def _compiled(
    gradients: ReducedGradients, program: Callable[..., Sequence[Any]]
) -> CompiledGradients:
    return CompiledGradients(program, gradients.wanted, gradients.read, gradients.positions)
