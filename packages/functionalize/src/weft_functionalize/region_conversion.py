"""The conversion of one region's block."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.fx

from ._torch import errors_unlogged
from .aten_recorder import AtenRecorder
from .counted_loops import Comparison, CountedTest
from .recorded_inputs import RecordedInput
from .tensor_ssa.alias_graph import build_alias_graph
from .tensor_ssa.dead_code import eliminate_dead_code
from .tensor_ssa.emitter import Emitter
from .tensor_ssa.layout import with_layout_of
from .tensor_ssa.region_aliases import SharedValues, check_region_aliases
from .tensor_ssa.renaming import rename
from .tensor_ssa.rewrite_mutation import rewrite_mutation
from .tensor_ssa.written_origins import check_written_layouts, seen_origins, written_origins
from .unsupported import Unsupported


def shared_values(recorder: AtenRecorder) -> SharedValues:
    """What the recorded values may share with one another."""
    aliases = build_alias_graph(recorder.graph)
    return SharedValues(recorder.graph, aliases, recorder.region_aliases)


def written_inputs(recorder: AtenRecorder) -> frozenset[int]:
    """The positions in ``recorder.inputs`` of tensors that the recorded program writes."""
    written = written_origins(recorder.graph, shared_values(recorder))
    return frozenset(i for i, r in enumerate(recorder.inputs) if r.node in written)


def inputs_told_written(recorder: AtenRecorder) -> frozenset[int]:
    """Those of the :func:`written_inputs` whose writes autograd counts, which it does not by ``.data``."""
    history = recorder.history
    return frozenset(
        i for i in written_inputs(recorder) if history.was_told_of_write(recorder.inputs[i].value)
    )


def inputs_seen_written(recorder: AtenRecorder) -> frozenset[int]:
    """Those of the :func:`written_inputs` that are written with autograd looking on."""
    seen = seen_origins(recorder.graph, shared_values(recorder))
    return frozenset(i for i, r in enumerate(recorder.inputs) if r.node in seen)


def convert_block(
    recorder: AtenRecorder,
    outputs: Sequence[tuple[Any, Any]],
    written: Sequence[int],
    given_away: Collection[int] = (),
) -> None:
    """Make the recorded region's graph functional.

    ``outputs`` are its results, each with a tensor whose layout it must have (None for other values); the
    last versions of the inputs at the positions ``written`` follow them, in the layouts of the inputs.
    Nobody outside sees the inputs at the positions ``given_away`` any more.
    """
    graph = recorder.graph
    wanted = [(_result_node(recorder, value), layout) for value, layout in outputs]
    wanted += [(recorder.inputs[i].node, recorder.inputs[i].value) for i in written]
    with torch.no_grad(), recorder.fake_mode, errors_unlogged():
        shared = shared_values(recorder)
        check_written_layouts(written_origins(graph, shared))
        kept = tuple(node for node, _ in wanted if isinstance(node, torch.fx.Node))
        away = [recorder.inputs[i].node for i in given_away]
        check_region_aliases(graph, shared, kept, away)
        output = graph.output(kept)
        gradients = recorder.with_gradients and any(map(_has_gradient, recorder.inputs))
        recorder.note_step("recorded")
        rewrite_mutation(graph, shared, kept, with_gradients=gradients)
        recorder.note_step("rewritten")
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
        recorder.note_step("renamed")
        eliminate_dead_code(graph)
        recorder.note_step("converted")


def _has_gradient(recorded: RecordedInput) -> bool:
    return isinstance(recorded.value, torch.Tensor) and recorded.value.requires_grad


def _result_node(recorder: AtenRecorder, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return recorder.node_of(value)
    if isinstance(value, (torch.SymInt, torch.SymBool)):
        return recorder.numbers.node_of(value)
    if isinstance(value, Comparison):
        operands = (_result_node(recorder, value.counter), _result_node(recorder, value.stop))
        node = recorder.graph.call_function(value.function, operands)
        node.meta["val"] = value.function(value.counter, value.stop)
        return node
    if isinstance(value, CountedTest):
        operands = (_result_node(recorder, value.comparison), _result_node(recorder, value.goes_on))
        node = recorder.graph.call_function(operator.and_, operands)
        node.meta["val"] = value.goes_on
        return node
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise Unsupported("result of a region", type(value).__name__)
