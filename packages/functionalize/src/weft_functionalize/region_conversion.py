"""The conversion of one region's block, and what the block around it has to know about the result."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ._torch import quiet_meta_failures
from .aten_recorder import AtenRecorder
from .counted_loops import CountedTest
from .tensor_ssa.alias_graph import AliasGraph, build_alias_graph
from .tensor_ssa.dead_code import eliminate_dead_code
from .tensor_ssa.emitter import Emitter
from .tensor_ssa.layout import with_layout_of
from .tensor_ssa.region_aliases import check_region_aliases
from .tensor_ssa.renaming import rename
from .tensor_ssa.rewrite_mutation import rewrite_mutation
from .tensor_ssa.written_origins import written_origins
from .unsupported import Unsupported


@dataclass(frozen=True)
class ConvertedBlock:
    """A functional region: ``module``, and what its results may share storage with before conversion.

    ``input_aliases`` pairs results with inputs, ``result_aliases`` results with earlier results.
    """

    module: torch.fx.GraphModule
    input_aliases: tuple[tuple[int, int], ...]
    result_aliases: tuple[tuple[int, int], ...]


def written_inputs(recorder: AtenRecorder) -> frozenset[int]:
    """The positions in ``recorder.inputs`` of tensors that the recorded program writes."""
    written = written_origins(recorder.graph, build_alias_graph(recorder.graph))
    return frozenset(i for i, r in enumerate(recorder.inputs) if r.node in written)


def convert_block(
    recorder: AtenRecorder, outputs: Sequence[tuple[Any, Any]], written: Sequence[int]
) -> ConvertedBlock:
    """Make the recorded region functional.

    ``outputs`` are its results, each with a tensor whose layout it must have (None for other values); the
    last versions of the inputs at the positions ``written`` follow them, in the layouts of the inputs.
    """
    graph = recorder.graph
    wanted = [(_result_node(recorder, value), layout) for value, layout in outputs]
    count = len(wanted)
    wanted += [(recorder.inputs[i].node, recorder.inputs[i].value) for i in written]
    with torch.no_grad(), recorder.fake_mode, quiet_meta_failures():
        aliases = build_alias_graph(graph)
        kept = tuple(node for node, _ in wanted if isinstance(node, torch.fx.Node))
        check_region_aliases(graph, aliases, recorder.region_aliases, kept)
        input_aliases, result_aliases = _shared(recorder, aliases, [n for n, _ in wanted[:count]])
        output = graph.output(kept)
        rewrite_mutation(graph, aliases, kept)
        versions = rename(graph)
        emit = Emitter(graph).before(output)
        results = []
        for node, layout in wanted:
            if isinstance(node, torch.fx.Node):
                node = versions.get(node, node)
                if isinstance(layout, torch.Tensor):
                    node = with_layout_of(emit, node, layout)
            results.append(node)
        output.args = (tuple(results),)
        output.meta["val"] = torch.fx.map_arg(tuple(results), lambda n: n.meta["val"])
        eliminate_dead_code(graph)
    graph.lint()
    module = torch.fx.GraphModule(dict(recorder.regions), graph, "Region")
    return ConvertedBlock(module, input_aliases, result_aliases)


def _result_node(recorder: AtenRecorder, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return recorder.node_of(value)
    if isinstance(value, (torch.SymInt, torch.SymBool)):
        return recorder.numbers.node_of(value)
    if isinstance(value, CountedTest):
        operands = (_result_node(recorder, value.comparison), _result_node(recorder, value.goes_on))
        node = recorder.graph.call_function(operator.and_, operands)
        node.meta["val"] = value.goes_on
        return node
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise Unsupported("result of a region", type(value).__name__)


def _shared(
    recorder: AtenRecorder, aliases: AliasGraph, results: Sequence[Any]
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    inputs = {recorded.node: i for i, recorded in enumerate(recorder.inputs)}
    first: dict[torch.fx.Node, int] = {}
    with_inputs, with_results = [], []
    for k, node in enumerate(results):
        if not isinstance(node, torch.fx.Node) or not isinstance(node.meta["val"], torch.Tensor):
            continue
        origin = aliases.origin(node)
        if origin in inputs:
            with_inputs.append((k, inputs[origin]))
        earlier = first.setdefault(origin, k)
        if earlier != k:
            with_results.append((k, earlier))
    return tuple(with_inputs), tuple(with_results)
