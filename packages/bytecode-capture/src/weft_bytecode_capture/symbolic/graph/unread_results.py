"""Keeps the calls that raise for some data, although nothing reads what they give.

Eager runs ``x[i]`` and tells of an ``i`` out of range whether or not the result is used.  Fake tensors know
shapes, so what is refused by its shapes was refused when the call was captured, unless the shapes themselves
depend on data: ``x + x[mask]``.  What is refused by its data, or by such shapes, stays in the graph, with a
node that reads the result: all stages keep a node for its readers.
"""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
import torch.fx

from ..._torch import OpOverload, OpOverloadPacket, assert_tensor_metadata
from ..._torch.symbols import has_unbacked_symbols
from .purity import is_effectful
from .storages import node_values

_RAISING = re.compile(
    r"bincount|binary_cross_entropy|cholesky|corrcoef|cross_entropy|ctc_loss|embedding|gather|histc|histogram"
    r"|index_|inv|kthvalue|ldl|linalg_(?!cross|diagonal|norm|vector_norm|matrix_norm|vecdot)|logdet|lstsq|lu_"
    r"|margin_loss|masked_scatter|max_unpool|nll_loss|one_hot|ormqr|put|qr$|quantile|repeat_interleave"
    r"|scatter|searchsorted|segment_reduce|slogdet|solve|svd|symeig|take|tensor_split|triangular"
)
"""Parts of the names of operators that look at their operands' elements and may refuse them."""

_FORMED_IN_PYTHON = re.compile(r"^(interpolate|upsample|_?upsample_.*|hardshrink|softshrink)")
"""Names of operators that torch computes by others where sizes are symbolic, before the fake mode sees them.

What eager's kernel refuses of their operands, by dtype, only later stages find.
"""

_REFUSES_EMPTY = frozenset("max min amax amin aminmax argmax argmin mode median nanmedian".split())
"""Reductions of nothing that eager refuses."""

_TAKES_PLACES = frozenset({"getitem", "setitem", "index"})
_DIVIDES = frozenset(
    "div divide floor_divide floordiv fmod mod remainder rfloordiv rmod ifloordiv imod".split()
)
"""Divisions, which refuse a zero among integers."""

_FILLS = frozenset({"full", "fill", "full_like", "new_full"})
"""Writers of a number last among their arguments: one of data may be one that their dtype cannot hold."""

_IN_PLACE_NAMES = frozenset({"setitem", "ifloordiv", "imod"})

_READS_ONLY_METADATA = re.compile(r"^(empty|full|ones|rand|randint|randn|zeros)_like$|^new_")


def read_what_may_raise(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Append a reader to each call that may raise and whose result has none; which nodes are alive then."""
    alive: set[torch.fx.Node] = set()
    read: set[torch.fx.Node] = set()
    for node in reversed(list(graph.nodes)):
        raises = may_raise(node)
        if not (node in alive or raises or is_effectful(node)):
            continue
        if raises and (node not in read or _changes_operand(node)):
            alive.update(_read(graph, node))
        alive.add(node)
        alive.update(node.all_input_nodes)
        if not _READS_ONLY_METADATA.search(_name(node)):
            read.update(node.all_input_nodes)
    return alive


def may_raise(node: torch.fx.Node) -> bool:
    """Whether a call may refuse its operands for their elements, or for sizes that depend on data."""
    if not node.op.startswith("call_"):
        return False
    if node.meta.get("checks"):
        return True
    name = _name(node)
    if isinstance(node.target, OpOverload) and node.target.namespace != "aten":
        return not node.target.namespace.startswith("_")
    if name in _TAKES_PLACES:
        return len(node.args) > 1 and _has_places(node.args[1])
    if name in _DIVIDES:
        return _has_integers(node) and _has_integers(*node.args)
    if name in _FILLS:
        return _is_of_data(node.kwargs.get("fill_value", node.args[-1] if node.args else None))
    if name in _REFUSES_EMPTY:
        return any(has_unbacked_symbols(value) for value in node_values(node.all_input_nodes))
    return _RAISING.search(name) is not None or _FORMED_IN_PYTHON.search(name) is not None


def _changes_operand(node: torch.fx.Node) -> bool:
    """Whether a call writes to its first operand, whose readers are not the node's."""
    target: Any = node.target
    if isinstance(target, OpOverload):
        return bool(target._schema.is_mutable)
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name.strip("_") in _IN_PLACE_NAMES


def _name(node: torch.fx.Node) -> str:
    """The operator's name, without what tells its in-place variant: ``index_add`` of ``index_add_``."""
    target: Any = node.target
    if isinstance(target, OpOverload):
        target = target.overloadpacket
    if isinstance(target, OpOverloadPacket):
        return str(target).rpartition(".")[2].strip("_")
    return (target if isinstance(target, str) else getattr(target, "__name__", "")).strip("_")


def _has_places(index: Any) -> bool:
    """Whether an index has tensors of places, which may be out of range."""
    found: list[torch.fx.Node] = []
    torch.fx.map_arg(index, found.append)
    values = node_values(found)
    return any(isinstance(v, torch.Tensor) and v.dtype is not torch.bool for v in values)


def _is_of_data(number: Any) -> bool:
    if not isinstance(number, torch.fx.Node):
        return False
    return any(
        isinstance(value, torch.Tensor) or has_unbacked_symbols(value)
        for value in node_values([number])
    )


def _has_integers(*operands: Any) -> bool:
    """Whether all operands are whole numbers or tensors of those."""
    for operand in operands:
        value = operand.meta.get("example_value") if isinstance(operand, torch.fx.Node) else operand
        if isinstance(value, torch.Tensor):
            if value.dtype.is_floating_point or value.dtype.is_complex:
                return False
        elif not isinstance(value, (int, torch.SymInt)):
            return False
    return True


def _read(graph: torch.fx.Graph, node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes, behind ``node``, that read what it gives or writes to.

    Of several results one, but for sizes that depend on data: which result they are refused for is not known.
    """
    written = node.args[0] if _name(node) == "setitem" else node
    value = written.meta.get("example_value") if isinstance(written, torch.fx.Node) else None
    if isinstance(value, torch.Tensor):
        with graph.inserting_after(node):
            return [graph.call_function(assert_tensor_metadata, (written,))]
    if not isinstance(value, (tuple, list)):
        return []
    places = [i for i, v in enumerate(value) if isinstance(v, torch.Tensor)]
    if not places:
        return []
    readers = []
    for place in places if node.meta.get("checks") else places[:1]:
        with graph.inserting_after(node):
            item = graph.call_function(operator.getitem, (node, place))
        item.meta["example_value"] = value[place]
        readers += [item, *_read(graph, item)]
    return readers
