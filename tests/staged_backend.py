"""A backend of weft's stages up to code generation, for tests of what lies before it: quick to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import weft_aot_autograd as aot
import weft_functionalize
from weft_bytecode_capture import disable


def by_operators(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    """The stages up to code generation, which nothing here is about; their graphs run as they are."""
    functional = weft_functionalize.functionalize(graph_module, inputs)
    joint = aot.trace_joint(functional)
    if joint is None:
        forward = aot.trace_inference(functional).graph_module
        bound = weft_functionalize.bind(functional, forward)
        return weft_functionalize.wrap(functional, without_gradients(bound))
    parts = aot.partition(joint)
    forward = without_gradients(weft_functionalize.bind(functional, parts.forward))
    backward = without_gradients(parts.backward)
    program = aot.TrainingProgram(
        functional, parts, forward, backward, compile_gradients=gradients_by_operators
    )
    return weft_functionalize.wrap(functional, program)


@disable  # a compiled function may call backward
def gradients_by_operators(function: aot.GradientFunction) -> aot.CompiledGradients | None:
    """The stages for backward with ``create_graph``."""
    try:
        gradients = function.trace().reuse_saved()
    except aot.Unsupported:
        return None
    if not gradients.joint.tangents:
        return aot.constant_gradient_program(gradients, gradients.joint.graph_module.forward)
    parts = aot.partition(gradients.joint)
    forward, backward = map(without_gradients, (parts.forward, parts.backward))
    return aot.gradient_program(
        gradients, parts, forward, backward, without_gradients, gradients_by_operators
    )


def without_gradients(run: Callable[..., Any]) -> Callable[..., Any]:
    return torch.no_grad()(lambda *inputs: run(*inputs))
