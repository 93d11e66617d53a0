"""Runs a captured graph and its functional form, and compares results and effects."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from weft_functionalize import (
    FunctionalGraph,
    bind,
    functionalize,
    interpret,
    verify_functional,
    wrap,
)


def check(module: torch.fx.GraphModule, *inputs: Any) -> FunctionalGraph:
    """The functional form has eager's results and effects."""
    functional = functionalize(module, inputs)
    verify_functional(functional.graph_module.graph)
    run = wrap(functional, bind(functional, functional.graph_module))
    mine = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    theirs = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    every = {**functional.lifted, **dict(zip(functional.user_input_indices, inputs, strict=True))}
    with torch.no_grad():
        by_definition = interpret(functional.graph_module, [every[i] for i in sorted(every)])
        plain = functional.graph_module(*(every[i] for i in sorted(every)))
        got, wanted = run(*mine), module(*theirs)
    pairs = zip([*got, *mine, *by_definition], [*wanted, *theirs, *plain], strict=True)
    for left, right in pairs:
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
    return functional
