"""A backend of weft's stages up to code generation, for tests of what lies before it: quick to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import weft_aot_autograd as aot
import weft_functionalize


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
    program = aot.TrainingProgram(functional, parts, forward, without_gradients(parts.backward))
    return weft_functionalize.wrap(functional, program)


def without_gradients(run: Callable[..., Any]) -> Callable[..., Any]:
    return torch.no_grad()(lambda *inputs: run(*inputs))
