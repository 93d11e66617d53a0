"""weft's stages behind torch's own capture: ``torch.compile(model, backend="weft")``.

Found by torch through the entry point group ``torch_dynamo_backends``; nothing of torch's compiler is
imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx
from weft_bytecode_capture import DropControlFlow, DropDataDependence, SpecialiseSizes, warn

from .errors import WeftWarning
from .logs import requested_logs
from .options import resolve_options
from .pipeline import Pipeline
from .report import Watch
from .standing_observers import standing_observers


def weft_backend(
    graph_module: torch.fx.GraphModule, example_inputs: list[Any], **options: object
) -> Callable[..., Any]:
    """Compile a graph that torch captured; ``options`` are fields of :class:`weft.CompileOptions`.

    An error of a stage falls back to the captured graph with one warning, or is raised under
    WEFT_STRICT=1.
    """
    resolved = resolve_options(None, options.get("options") or None)  # type: ignore[arg-type]
    watch = Watch(standing_observers(requested_logs()))
    pipeline = Pipeline(resolved, raise_errors=resolved.strict, observers=watch.observers)
    try:
        return pipeline(graph_module, example_inputs)
    except (DropControlFlow, DropDataDependence, SpecialiseSizes) as request:
        # Torch does not capture again.
        if resolved.strict and request.__cause__ is not None:
            raise request.__cause__ from None
        hint = ""
        if isinstance(request, SpecialiseSizes):
            hint = " It has symbolic sizes: compile with dynamic=False."
        warn(f"{request}. The graph runs eagerly.{hint}", WeftWarning)
        return graph_module.forward
