"""A block as text, one line a node, with what its regions write: for goldens and dumps of each step."""

from __future__ import annotations

import operator

import torch.fx

from .block_propagation import region_clobbers, region_writes


def format_block(graph: torch.fx.Graph) -> list[str]:
    """The block's parameters, its nodes, numbered in order, and what it returns.

    ``writes %1 -> 0`` behind a region's operator says that its result 0 is the new version of ``%1``:
    block propagation puts an Update there, once the block around it is rewritten.
    """
    named = [node for node in graph.nodes if node.op not in ("get_attr", "output")]
    names = {node: f"%{number}" for number, node in enumerate(named)}
    names |= {node: str(node.target) for node in graph.find_nodes(op="get_attr")}
    parameters = ", ".join(names[node] for node in graph.find_nodes(op="placeholder"))
    lines = [f"block({parameters})"]
    for node in graph.nodes:
        arguments = torch.fx.map_arg(node.args, lambda n: _Name(names[n]))
        if node.op == "output":
            lines.append(f"return {_listed(arguments)}")
        elif node.op == "call_function":
            call = f"{_operator(node)}({', '.join(map(str, arguments))})"
            if node.target is operator.getitem:
                call = f"{arguments[0]}[{arguments[1]}]"
            lines.append(f"{names[node]} = {call}{_effects(node, names)}")
    return lines


class _Name(str):
    """A node's name, shown without quotation marks inside tuples."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _operator(node: torch.fx.Node) -> str:
    return getattr(node.target, "__name__", str(node.target))


def _listed(returned: tuple[object, ...]) -> str:
    (values,) = returned
    return ", ".join(map(str, values)) if isinstance(values, (tuple, list)) else str(values)


def _effects(node: torch.fx.Node, names: dict[torch.fx.Node, str]) -> str:
    found = [f"{names[variable]} -> {result}" for variable, result in region_writes(node)]
    effects = f" writes {', '.join(found)}" if found else ""
    clobbered = [names[variable] for variable in region_clobbers(node)]
    return effects + (f" clobbers {', '.join(clobbered)}" if clobbered else "")
