"""Backends that torch knows by name: ``weft.compile(model, backend="inductor")``.

A graph that weft has captured is given to ``torch.compile``, whose own capture has nothing left to do than to
hand it on.  torch's compiler is loaded for that, and only for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx


def torch_backend(
    name: str,
) -> Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]] | None:
    """What compiles graphs with the backend that torch knows as ``name``; None where it knows none."""
    if name not in torch.compiler.list_backends(exclude_tags=()):
        return None

    def compile_graph(
        graph_module: torch.fx.GraphModule, example_inputs: list[Any]
    ) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(graph_module, backend=name, fullgraph=True)
        return compiled

    compile_graph.__qualname__ = name
    return compile_graph
