"""From a joint graph to forward and backward: what to save, then the two graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
import torch.fx
from weft_functionalize import NumberNodes, OutputKind, symbols_given_by, symbols_of

from ..held_plan import held_inputs
from ..joint_graph import JointGraph, PartitionedGraph
from ..passes.collectives import starts
from ..passes.dead_code import is_impure
from ..passes.storage_origins import is_view
from ..recording import COMPUTED_IN_BACKWARD
from ..unsupported import Unsupported
from .compressed_masks import compress_masks
from .depth import ends_of_long_chains
from .made_inside import made_inside
from .memory_budget import values_to_keep
from .min_cut import CutProblem, NoCut, minimum_cut
from .operator_classes import classify
from .options import PartitionOptions
from .recompute_policy import (
    COMPUTED_IN_FORWARD,
    REPEATABLE,
    computed_as_eager,
    is_materialized,
    may_recompute,
)
from .row_statistics import write_out_log_softmax
from .sides import Sides
from .split import ancestors, split
from .unprotected import unprotected


def partition(
    joint: JointGraph, *, options: PartitionOptions | None = None, is_region: bool = False
) -> PartitionedGraph:
    """Cut ``joint``, whose graph is left as it is but for masks, kept as booleans, and rows' statistics.

    What crosses is the cheapest in bytes that :data:`~.recompute_policy.POLICY` and the options allow;
    equal joint graphs are cut equally.  A node with :data:`COMPUTED_IN_BACKWARD` in its ``meta`` is not kept.
    Of a region nothing is kept whose size data decides inside: nobody outside knows it, and backward makes
    that again.
    Raises :class:`Unsupported` where a value that backward needs can neither be kept nor computed again.
    """
    options = options or PartitionOptions()
    compress_masks(joint.graph_module.graph)
    if not (joint.read_as_eager or options.keep_operators):
        write_out_log_softmax(joint.graph_module.graph)
    sizes = NumberNodes(joint.graph_module.graph).known()
    sides = Sides(joint, inputs_stay=options.activation_memory_budget < 1)
    may = computed_as_eager if joint.read_as_eager else may_recompute
    recomputable = {n for n in sides.forward if may(n, sides)}
    if options.activation_memory_budget == 1:
        sides.exposed |= unprotected(joint, sides, recomputable)
    recomputable -= ends_of_long_chains(
        sides.depth,
        recomputable,
        lambda node: node in sides.needed_by_outputs and _capacity(node, sides) is not None,
    )
    recomputable -= _held_outputs(joint, sides)
    inside = made_inside(sides) if is_region else frozenset[torch.fx.Node]()
    recomputable |= {node for node in inside if not is_impure(node)}
    saved = _cut(sides, recomputable, inside)
    if options.activation_memory_budget < 1:
        repeatable = {
            n
            for n in sides.forward
            if n.op == "call_function"
            and classify(n) in REPEATABLE
            and not n.meta.get(COMPUTED_IN_FORWARD)
        }
        least = _cut(sides, repeatable)
        kept = values_to_keep(sides, saved, least, options.activation_memory_budget)
        saved = _cut(sides, repeatable - kept)
    sizes = {symbol: node for symbol, node in sizes.items() if node not in inside}
    return split(joint, sides, [*saved, *_sizes_to_save(sides, saved, sizes)])


def _held_outputs(joint: JointGraph, sides: Sides) -> set[torch.fx.Node]:
    """Results that eager's autograd holds, and so reads in backward as ``y.data.mul_(2)`` has left them.

    An argument's new value is one.
    """
    inputs = held_inputs(joint.outputs)
    held = {
        sides.outputs[descriptor.graph_index]
        for descriptor in joint.outputs
        if descriptor.graph_index is not None
        and (descriptor.kind is not OutputKind.MUTATED_INPUT or descriptor.input_index in inputs)
    }
    return {node for node in held - sides.exposed if _capacity(node, sides) is not None}


def _sizes_to_save(
    sides: Sides, saved: Sequence[torch.fx.Node], sizes: Mapping[Any, torch.fx.Node]
) -> list[torch.fx.Node]:
    """The sizes that backward computes with and cannot read from the tensors that it is given."""
    given = [*saved, *sides.tangents]
    readable = set(symbols_given_by([node.meta["val"] for node in given]))
    needed: set[Any] = set()
    for node in ancestors(sides.gradients, stop=set(saved)):
        needed |= symbols_of(node.meta.get("val"))
    missing = {symbol for symbol in needed - readable if symbol.is_integer}
    # A number without a node is the size of what backward takes out by a mask: it comes up there.
    found = [sizes[symbol] for symbol in sorted(missing, key=str) if symbol in sizes]
    return [node for node in found if COMPUTED_IN_BACKWARD not in node.meta]


# Cost a byte of saving a value that forward has in memory anyway, and of one that it has to write for this.
_REALISED, _UNREALISED = 4, 5


def _cut(
    sides: Sides,
    recomputable: Set[torch.fx.Node],
    inside: Set[torch.fx.Node] = frozenset(),
) -> list[torch.fx.Node]:
    """The values to save, none of them ``inside``."""
    nodes = sides.forward
    number = {node: index for index, node in enumerate(nodes)}
    problem = CutProblem(
        capacity=[None if node in inside else _capacity(node, sides) for node in nodes],
        users=[[number[user] for user in node.users if user in number] for node in nodes],
        given={number[node] for node in nodes if node not in recomputable},
        needed={number[node] for node in sides.crossing},
    )
    try:
        return [nodes[index] for index in minimum_cut(problem)]
    except NoCut:
        raise Unsupported("value that backward needs and nothing can hold") from None


def _capacity(node: torch.fx.Node, sides: Sides) -> int | None:
    """Bytes that saving ``node`` costs; a view is saved as its base."""
    value = node.meta["val"]
    if node.meta.get(COMPUTED_IN_BACKWARD):
        return None
    if node.op == "placeholder":
        return 1 if sides.is_free(node) else 1 + _UNREALISED * sides.nbytes(node)
    if isinstance(value, torch.SymInt):
        return 1
    if not isinstance(value, torch.Tensor) or is_view(node) or starts(node):
        return None
    copied = node in sides.exposed or not is_materialized(node, sides)
    factor = _UNREALISED if copied else _REALISED
    return 1 + factor * sides.nbytes(node)
