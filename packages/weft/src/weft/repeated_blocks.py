"""Finding blocks that repeat in a captured graph, as the layers of a stack do, and cutting the graph there.

What is found only says where cutting pays: whether two pieces have one program is asked of their descriptions
(:mod:`.graph_description`), as for a graph of another process.  So a piece that is like others but in one
number, or a run that is no stack of layers, costs time and never correctness.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.fx

from ._torch import SET_GRADIENTS, LazyGraphModule, OpOverload
from .graph_description import TRUSTED_OPERATORS

Node = torch.fx.Node

MIN_BLOCKS = 6
"""Fewer are not cut out: one program for all of them is made in little more time."""

MIN_NODES = 8
"""Shorter blocks are not cut out: a call of a program would do too little."""

MAX_PERIODS = 8
"""How many lengths of blocks are tried."""


@dataclass(frozen=True)
class Piece:
    """A part of a captured graph: it takes and gives values of nodes of that graph, in order."""

    graph_module: torch.fx.GraphModule
    takes: tuple[Node, ...]
    gives: tuple[Node, ...]


def cut_at_blocks(graph_module: torch.fx.GraphModule) -> list[Piece] | None:
    """``graph_module`` as pieces to be run one after another: a block each, and what is around them.

    None where no blocks repeat, and where running pieces might differ from running the whole: something is
    written to, switches torch's settings, or has sizes or numbers that vary.
    """
    nodes = list(graph_module.graph.nodes)
    calls = [node for node in nodes if node.op not in ("placeholder", "get_attr", "output")]
    if len(calls) < MIN_BLOCKS * MIN_NODES:
        return None
    if not all(_is_plain(node) or node.target is SET_GRADIENTS for node in nodes):
        return None
    bounds = find_bounds(calls)
    if bounds is None or any(map(_gradients_switched(calls).__contains__, bounds)):
        return None
    ends = sorted({0, *bounds, len(calls)})
    return [_piece(graph_module, calls[a:b]) for a, b in pairwise(ends)]


def _gradients_switched(calls: Sequence[Node]) -> set[int]:
    """The positions before which gradients are on where they are off around the graph, or off where on."""
    outside = inside = torch.is_grad_enabled()
    switched = set()
    for position, node in enumerate(calls, 1):
        if node.target is SET_GRADIENTS:
            inside = bool(node.args[0])
        if inside is not outside:
            switched.add(position)
    return switched


# -- what may be cut ---------------------------------------------------------------------------------------


def _is_plain(node: Node) -> bool:
    """Whether a node gives tensors by its arguments alone, and does nothing else."""
    if node.op == "output":
        return True
    if "example_value" not in node.meta or not all(map(_is_plain_tensor, _results(node))):
        return False
    if node.op in ("placeholder", "get_attr"):
        return True
    return node.meta.keys() <= _PLAIN_META and _only_computes(node)


def _results(node: Node) -> Sequence[Any]:
    """What a node gives, one by one; a call may leave a place in a tuple empty."""
    value = node.meta.get("example_value", ())
    return [v for v in value if v is not None] if type(value) in (tuple, list) else (value,)


def _is_plain_tensor(value: Any) -> bool:
    """Whether it is a tensor of known sizes that nothing has written to."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    numbers = *value.shape, *value.stride(), value.storage_offset()
    if any(type(number) is not int for number in numbers):
        return False
    return value.is_inference() or value._version == 0


def _only_computes(node: Node) -> bool:
    target = node.target
    if node.op == "call_method":
        name = str(target)
    elif node.op == "call_function":
        is_known = isinstance(target, _NATIVE) or (
            getattr(target, "__module__", None) in _FUNCTIONS
        )
        if isinstance(target, OpOverload):
            is_known = target.namespace in TRUSTED_OPERATORS and not target._schema.is_mutable
        name = getattr(target, "__name__", "_")
        if not is_known:
            return False
    else:
        return False
    is_special = name.startswith("__") and name.endswith("__")
    writes = name.strip("_") in _WRITING if is_special else name.endswith("_")
    if writes or name in _WRITING or "out" in node.kwargs:
        return False
    return node.kwargs.get("inplace") is not True


_PLAIN_META = frozenset({"example_value", "stack_trace", "region"})

_NATIVE = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
"""Functions without Python of their own."""

_FUNCTIONS = frozenset({"torch.functional", "torch.nn.functional"})
"""Modules whose functions in Python give results and do no more."""

_WRITING = frozenset(
    "setitem delitem iadd iand ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv "
    "ixor".split()
)
"""Functions of :mod:`operator` that write."""


# -- where blocks lie --------------------------------------------------------------------------------------


def find_bounds(calls: Sequence[Node]) -> range | None:
    """Where blocks begin among ``calls``, and where the last one ends; None without :data:`MIN_BLOCKS`.

    The most nodes count, then the fewest values that go from one block to the next.
    """
    looks = _looks(calls)
    best: tuple[int, int, int] | None = None  # nodes covered, minus the period, minus the beginning
    for period in _periods(looks):
        for start, length in _runs(looks, period):
            blocks = length // period + 1
            if blocks >= MIN_BLOCKS:
                best = max(best or (0, 0, 0), (blocks * period, -period, -start))
    if best is None:
        return None
    period, start = -best[1], -best[2]
    length = next(n for s, n in _runs(looks, period) if s == start) + period
    crossing = _crossing(calls)
    first = min(
        range(start, start + period),
        key=lambda k: (crossing[k + period], -((start + length - k) // period), k),
    )
    blocks = (start + length - first) // period
    return range(first, first + blocks * period + 1, period) if blocks >= MIN_BLOCKS else None


def _looks(calls: Sequence[Node]) -> list[int]:
    """A number for each call, equal for those that are alike but for the values they take."""
    numbers: dict[str, int] = {}
    looks = []
    for node in calls:
        arguments = torch.fx.map_arg((node.args, node.kwargs), _kind_of_operand)
        layouts = [(tuple(v.shape), v.stride(), v.dtype) for v in _results(node)]
        text = f"{node.op} {node.target} {arguments} {layouts}"
        looks.append(numbers.setdefault(text, len(numbers)))
    return looks


def _kind_of_operand(node: Node) -> str:
    return node.op if node.op in ("placeholder", "get_attr") else "value"


def _periods(looks: Sequence[int]) -> list[int]:
    """Lengths that blocks may have, by how far calls are apart that repeat seldom."""
    places: dict[int, list[int]] = {}
    for position, look in enumerate(looks):
        places.setdefault(look, []).append(position)
    found: dict[int, None] = {}
    for positions in sorted(places.values(), key=len):
        if len(positions) < MIN_BLOCKS:
            continue
        distances = Counter(b - a for a, b in pairwise(positions))
        distance, _ = distances.most_common(1)[0]
        if distance >= MIN_NODES:
            found[distance] = None
        if len(found) == MAX_PERIODS:
            break
    return list(found)


def _runs(looks: Sequence[int], period: int) -> Iterator[tuple[int, int]]:
    """Beginnings and lengths of what is followed by its like ``period`` later."""
    start = None
    for position in range(len(looks) - period + 1):
        is_alike = position + period < len(looks) and looks[position] == looks[position + period]
        if is_alike and start is None:
            start = position
        elif not is_alike and start is not None:
            yield start, position - start
            start = None


def _crossing(calls: Sequence[Node]) -> list[int]:
    """How many values that are made before each position are used behind it."""
    order = {node: position for position, node in enumerate(calls)}
    changes = [0] * (len(calls) + 1)
    for position, node in enumerate(calls):
        last = max((order[user] for user in node.users if user in order), default=position)
        changes[position + 1] += 1
        if last + 1 <= len(calls):
            changes[last + 1] -= 1
    crossing, total = [], 0
    for change in changes:
        total += change
        crossing.append(total)
    return crossing


# -- pieces ------------------------------------------------------------------------------------------------


def _piece(source: torch.fx.GraphModule, calls: Sequence[Node]) -> Piece:
    """The ``calls`` as a graph module; its names don't tell where in ``source`` they are."""
    inside = set(calls)
    given = [node for node in calls if not node.users.keys() <= inside]
    operands = dict.fromkeys(n for node in calls for n in node.all_input_nodes if n not in inside)
    taken = [node for node in operands if node.op != "get_attr"]
    graph, root = torch.fx.Graph(), torch.nn.Module()
    copies: dict[Node, Node] = {}
    for number, node in enumerate(taken):
        copies[node] = graph.placeholder(f"taken_{number}")
    held = [node for node in operands if node.op == "get_attr"]
    for number, node in enumerate(held):
        name, tensor = f"held_{number}", getattr(source, str(node.target))
        if isinstance(tensor, torch.nn.Parameter):
            root.register_parameter(name, tensor)
        else:
            root.register_buffer(name, tensor)
        copies[node] = graph.get_attr(name)
    for node in calls:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), copies.__getitem__)
        copies[node] = graph.create_node(node.op, node.target, args, kwargs)
    for node, copy in copies.items():
        copy.meta = dict(node.meta)
    graph.output(tuple(copies[node] for node in given))
    return Piece(LazyGraphModule(root, graph), tuple(taken), tuple(given))
