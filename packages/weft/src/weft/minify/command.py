"""``weft minify``: reads a file that defines a graph, writes the smaller one."""

from __future__ import annotations

import contextlib
import io
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.fx

from ..dump import runnable_python, traces_in
from ..errors import WeftError
from .reduce import Reduced, reduce_graph
from .stages import StageFault, first_failure, first_inaccuracy


class NothingToMinify(WeftError):
    """The file defines no graph, or nothing is wrong with it."""


def minify_file(
    path: Path, output: Path, *, accuracy: bool = False, limit: int = 500
) -> tuple[StageFault, Reduced]:
    """Write to ``output`` the smallest part of the graph in ``path`` that fails in the same stage.

    The file defines a module class ``Graph`` and a list ``inputs``, as the files of a dump do that end in
    ``.py``; it is run.  ``accuracy``: looked for is not a failure, but a stage that is farther from float64
    than eager is.

    :raises NothingToMinify: there is no such graph, or every stage does well on it.
    """
    graph_module, inputs = _graph_of(path)
    find = first_inaccuracy if accuracy else first_failure
    fault = find(graph_module, inputs)
    if fault is None:
        what = "is as exact as eager" if accuracy else "compiles and runs"
        raise NothingToMinify(f"the graph of {path} {what} in every stage")
    whole = fault

    def holds(candidate: torch.fx.GraphModule, given: Sequence[Any]) -> bool:
        try:
            found = find(candidate, given)
        except Exception:  # no graph any more: eager refuses it too
            return False
        return found is not None and found.stage == whole.stage

    reduced = reduce_graph(graph_module, inputs, holds, limit)
    fault = find(reduced.graph_module, reduced.inputs) or fault
    placeholders = reduced.graph_module.graph.find_nodes(op="placeholder")
    for node, value in zip(placeholders, reduced.inputs, strict=True):
        node.meta["val"] = value
    comment = "".join(f"# {line}\n" for line in str(fault).splitlines())
    output.write_text(comment + runnable_python(reduced.graph_module))
    return fault, reduced


def _graph_of(path: Path) -> tuple[torch.fx.GraphModule, list[Any]]:
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()):
        names = runpy.run_path(str(path), run_name="__main__")
    graph, inputs = names.get("Graph"), names.get("inputs")
    if not isinstance(graph, type) or not isinstance(inputs, (list, tuple)):
        raise NothingToMinify(f"{path} defines no class Graph and no list of inputs")
    graph_module = torch.fx.symbolic_trace(graph())
    traces = traces_in(path.read_text())
    for node in graph_module.graph.nodes:
        if node.name in traces:
            node.meta["stack_trace"] = traces[node.name]
    return graph_module, list(inputs)
