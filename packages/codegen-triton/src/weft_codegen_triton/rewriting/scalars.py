"""Tensors without dimensions on the CPU, which operators on a GPU take beside the GPU's own.

They are moved: those that the graph makes are made on the GPU, such as the flags of its branches and
loops, and those that it is given are copied there by the program, before each call.  Those that it returns,
such as how often a loop ran, are copied back at its end.

Numbers that a graph computes and returns, as an optimizer's counts of steps, stay on the CPU.  There is one
for each parameter, and all go through the same operators.  The CPU computes each operator once, on the
numbers side by side in a vector, and what the GPU needs of them is sent to it in one copy, for which neither
waits::

    for step in steps:                        counts = torch.stack(steps) + 1
        step += 1                             steps = torch.unbind_copy(counts)
        scale = 1 - 0.9**step                 scales = (1 - 0.9**counts).to("cuda", non_blocking=True)
        parameter -= gradient / scale         parameter -= gradient / scales[k]
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

import torch
import torch.fx
from weft_loop_ir.rewriting.fakes import call_before, insert_call

from weft_codegen_triton._torch import OpOverload, tree_leaves, tree_map

MAX_RETURNED = 8
"""Each copy back waits for the GPU: an optimizer has a counter for each parameter, better left alone."""


def move_scalars(graph: torch.fx.Graph) -> None:
    """Put the CPU tensors of ``graph`` on its GPU, if all are without dimensions and few are returned.

    Those of the graphs of its regions too.
    """
    tensors = [
        (node, value)
        for part in (graph, *regions(graph))
        for node in part.nodes
        if node.op != "output" and not _is_unread_input(node, graph)
        for value in tree_leaves(node.meta.get("val"))
        if isinstance(value, torch.Tensor)
    ]
    devices = {value.device for _, value in tensors if value.device.type != "cpu"}
    scalars = [(node, value) for node, value in tensors if value.device.type == "cpu"]
    returned = [
        node for node in graph.output_node().all_input_nodes if is_on_cpu(node.meta.get("val"))
    ]
    if len(devices) != 1 or any(_stays(node, value) for node, value in scalars):
        return
    if len(returned) > MAX_RETURNED:
        return
    (device,) = devices
    for node in returned:
        _return_copy(node, graph.output_node())
    move = functools.partial(_moved, device=device)
    for node in dict.fromkeys(node for node, _ in scalars):
        node.meta["val"] = tree_map(move, node.meta["val"])
        if "device" in node.kwargs:
            node.update_kwarg("device", device)


def regions(graph: torch.fx.Graph) -> Iterator[torch.fx.Graph]:
    """The graphs of the branches and loops in ``graph``, at any depth."""
    module: Any = graph.owning_module
    for node in graph.find_nodes(op="get_attr"):
        block = module.get_submodule(node.target) if node.target in module._modules else None
        if isinstance(block, torch.fx.GraphModule):
            yield block.graph
            yield from regions(block.graph)


def _stays(node: torch.fx.Node, value: torch.Tensor) -> bool:
    return value.dim() > 0 or node.op == "get_attr"


def _is_unread_input(node: torch.fx.Node, graph: torch.fx.Graph) -> bool:
    return node.op == "placeholder" and node.graph is graph and not node.users


def is_on_cpu(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _return_copy(node: torch.fx.Node, output: torch.fx.Node) -> None:
    """Have the graph return a copy on the CPU of what ``node`` gives."""
    operator, value = torch.ops.aten._to_copy.default, node.meta["val"]
    copy = insert_call(output, value, operator, node, device=value.device)
    output.replace_input_with(node, copy)


def _moved(value: Any, device: torch.device) -> Any:
    """A fake tensor of the CPU on ``device``; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return value
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty((), dtype=value.dtype, device=device)


# -- side by side --------------------------------------------------------------------------------------


aten = torch.ops.aten

Kind = tuple[torch.dtype, ...]
"""Of given numbers that are computed with each other: their dtypes, in order."""


class Lane(NamedTuple):
    """Given numbers that are computed with each other, and what is made of them, have one place in vectors.

    The vectors of a ``kind`` are as long as there are lanes of it.
    """

    kind: Kind
    place: int


class Value(NamedTuple):
    """What a vector has in it: how it is computed of what is given, the same in each of its lanes."""

    kind: Kind
    made: str


def compute_side_by_side(graph: torch.fx.Graph) -> bool:
    """Compute numbers on the CPU in vectors, if ``graph`` returns some and elementwise operators give all.

    Whether that could be done; else the graph is as it was.
    """
    made = [node for node in graph.nodes if node.op != "placeholder" and gives_on_cpu(node)]
    if not all(map(_is_elementwise, made)):
        return False
    if {*made}.isdisjoint(graph.output_node().all_input_nodes):
        return False
    read = {source for node in made for source in node.all_input_nodes}
    given = [n for n in graph.nodes if n.op == "placeholder" and n in read and _is_number(n)]
    devices = {user.meta["val"].device for user in _users_elsewhere(made)}
    lanes = _lanes(given, made)
    if lanes is None or len(devices) > 1:
        return False
    _Vectors(graph, given, made, lanes, *devices).put()
    return True


def gives_on_cpu(node: torch.fx.Node) -> bool:
    """Whether a result of ``node`` is on the CPU."""
    return node.op != "output" and any(map(is_on_cpu, tree_leaves(node.meta.get("val"))))


def _is_elementwise(node: torch.fx.Node) -> bool:
    """Whether ``node`` computes a number on the CPU of those there, and would of vectors, each by itself."""
    value, target = node.meta["val"], node.target
    if not isinstance(target, OpOverload) or not _is_scalar(value):
        return False
    if _is_constant(node):
        return True
    if torch.Tag.pointwise not in target.tags and target is not aten._to_copy.default:
        return False
    is_random = torch.Tag.nondeterministic_seeded in target.tags
    return not is_random and all(_is_number(n) or _is_of_call(n) for n in node.all_input_nodes)


def _is_of_call(node: torch.fx.Node) -> bool:
    """Whether ``node`` is a Python number of the call, as a learning rate that varies: all lanes' own."""
    return node.op == "placeholder" and isinstance(node.meta.get("val"), torch.SymFloat)


def _is_number(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return _is_scalar(value) and is_on_cpu(value)


def _is_scalar(value: object) -> TypeGuard[torch.Tensor]:
    """Whether ``value`` is a float, or what a comparison of floats gives, which chooses one of two."""
    if not isinstance(value, torch.Tensor) or value.dim() > 0:
        return False
    return value.is_floating_point() or value.dtype is torch.bool


def _users_elsewhere(nodes: list[torch.fx.Node]) -> Iterator[torch.fx.Node]:
    """What reads ``nodes`` on another device."""
    users = dict.fromkeys(user for node in nodes for user in node.users)
    return (user for user in users if user.op != "output" and not gives_on_cpu(user))


def _lanes(
    given: list[torch.fx.Node], made: list[torch.fx.Node]
) -> dict[torch.fx.Node, Lane] | None:
    """The lane of each number but constants; None where one is made of nothing that is given."""
    together: dict[torch.fx.Node, set[torch.fx.Node]] = {}
    for node in made:
        if _is_constant(node):
            continue
        sources = [n for n in node.all_input_nodes if not (_is_constant(n) or _is_of_call(n))]
        numbers = {node}.union(*(together.get(source, {source}) for source in sources))
        together.update(dict.fromkeys(numbers, numbers))
    lanes: dict[torch.fx.Node, Lane] = {}
    lengths: dict[Kind, int] = {}
    order = {node: k for k, node in enumerate(given)}
    for numbers in {id(numbers): numbers for numbers in together.values()}.values():
        roots = sorted(numbers & order.keys(), key=order.__getitem__)
        if not roots:
            return None
        kind = tuple(root.meta["val"].dtype for root in roots)
        lane = Lane(kind, lengths.setdefault(kind, 0))
        lengths[kind] += 1
        lanes.update(dict.fromkeys(numbers, lane))
    return lanes


def _is_constant(node: torch.fx.Node) -> bool:
    return node.target is aten.full.default and not node.all_input_nodes


@dataclass
class _Vectors:
    """Puts vectors in the place of numbers; what is on ``device`` reads some of them."""

    graph: torch.fx.Graph
    given: list[torch.fx.Node]
    made: list[torch.fx.Node]
    lanes: dict[torch.fx.Node, Lane]
    device: torch.device | None = None
    values: dict[torch.fx.Node, Value] = field(default_factory=dict)
    """What each number is."""
    vectors: dict[Value, torch.fx.Node] = field(default_factory=dict)

    def put(self) -> None:
        self.start = next(node for node in self.graph.nodes if node.op != "placeholder")
        self._stack()
        constants = [*filter(_is_constant, self.made)]
        for node in constants:
            value = self.values[node] = Value((), f"{node.args}{node.meta['val'].dtype}")
            if value not in self.vectors:
                with self.graph.inserting_before(self.start):
                    self.vectors[value] = self.graph.node_copy(node)
        self.made = [node for node in self.made if not _is_constant(node)]
        for node in self.made:
            self._compute(node)
        self._return()
        self._send()
        for node in (*reversed(self.made), *constants):
            self.graph.erase_node(node)

    def _call(self, target: Any, *arguments: Any, **keywords: Any) -> torch.fx.Node:
        """A call at the beginning of the graph, after those before it."""
        return call_before(self.start, target, *arguments, **keywords)

    def _stack(self) -> None:
        """Put what is given side by side: of the lanes of a kind all that come first, then all others."""
        columns: dict[Value, list[torch.fx.Node]] = {}
        numbers: dict[Lane, int] = {}
        for node in self.given:
            lane = self.lanes[node]
            number = numbers[lane] = numbers.get(lane, -1) + 1
            value = self.values[node] = Value(lane.kind, f"given {number}")
            columns.setdefault(value, []).append(node)
        for value, nodes in columns.items():
            nodes.sort(key=lambda node: self.lanes[node].place)
            self.vectors[value] = self._call(aten.stack.default, nodes)

    def _compute(self, node: torch.fx.Node) -> None:
        for source in filter(_is_of_call, node.all_input_nodes):
            self.vectors[self.values.setdefault(source, Value((), source.name))] = source
        arguments = torch.fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
        value = self.values[node] = Value(self.lanes[node].kind, f"{node.target}{arguments}")
        if value not in self.vectors:
            own = functools.partial(torch.fx.map_arg, fn=lambda n: self.vectors[self.values[n]])
            self.vectors[value] = self._call(node.target, *own(node.args), **own(node.kwargs))
        assert self.vectors[value].meta["val"].dtype == node.meta["val"].dtype

    def _return(self) -> None:
        """Have the graph return numbers with memory of their own."""
        output = self.graph.output_node()
        numbers: dict[Value, torch.fx.Node] = {}
        for node in self.made:
            if output in node.users:
                value = self.values[node]
                if value not in numbers:
                    numbers[value] = self._call(aten.unbind_copy.int, self.vectors[value])
                all_numbers, place = numbers[value], self.lanes[node].place
                fake = all_numbers.meta["val"][place]
                number = insert_call(self.start, fake, operator.getitem, all_numbers, place)
                output.replace_input_with(node, number)

    def _send(self) -> None:
        """Send what is read elsewhere there: the vectors of a length and dtype in one copy."""
        read = [node for node in self.made if any(_users_elsewhere([node]))]
        batches: dict[Any, list[Value]] = {}
        for value in dict.fromkeys(map(self.values.__getitem__, read)):
            batches.setdefault((value.kind, self.vectors[value].meta["val"].dtype), []).append(
                value
            )
        sent: dict[Value, torch.fx.Node] = {}
        for values in batches.values():
            batch = self._call(aten.stack.default, [self.vectors[value] for value in values])
            there = self._call(aten._to_copy.default, batch, device=self.device, non_blocking=True)
            for row, value in enumerate(values):
                sent[value] = self._call(aten.select.int, there, 0, row)
        for node in read:
            place = self.lanes[node].place
            number = self._call(aten.select.int, sent[self.values[node]], 0, place)
            for user in [*_users_elsewhere([node])]:
                user.replace_input_with(node, number)
