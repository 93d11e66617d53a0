"""A backend that is not weft's own: what fails in it is told under its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx
from weft_bytecode_capture import (
    DropControlFlow,
    DropDataDependence,
    SpecialiseSizes,
    refused_by_torch,
)

from .errors import stage
from .locations import user_location
from .registry import BackendFunction

_REQUESTS = (DropControlFlow, DropDataDependence, SpecialiseSizes)  # to capture, no faults


def foreign_backend(backend: BackendFunction) -> BackendFunction:
    """``backend``, whose errors become a :class:`StageError` that names it and the user's line.

    What it gives has to be callable.  It may run graphs as they are, so it gets none that torch refuses.
    """
    name = getattr(backend, "__qualname__", type(backend).__qualname__)

    def compile_graph(
        graph_module: torch.fx.GraphModule, example_inputs: list[Any]
    ) -> Callable[..., Any]:
        if refused := refused_by_torch(graph_module):
            raise DropControlFlow(refused)
        with stage(f"backend {name}", user_location(graph_module), but=_REQUESTS):
            function = backend(graph_module, example_inputs)
            if not callable(function):
                raise TypeError(f"it gave no callable but {type(function).__name__}")
            return function

    return compile_graph
