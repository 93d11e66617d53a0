"""What may raise comes before a program writes to an input or draws a random number.

Positions read from memory are checked first, and calls that raise for some values are moved there.

A call that raises has then changed nothing, and can be run again as the program was written: eager's error is
raised where eager raises it, after what eager does before.  The positions are read a second time for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import sympy

from weft_loop_ir.bodies import Indirect, LoopBody
from weft_loop_ir.bodies.edit import without_unused
from weft_loop_ir.data_symbols import defined_symbols, item_symbols
from weft_loop_ir.loop_graph import (
    LoopGraph,
    LoopNode,
    Node,
    has_effect,
    item_writes,
    raises_by_value,
)
from weft_loop_ir.schedule.dependency_graph import Dependencies


def check_first(loop_graph: LoopGraph) -> LoopGraph:
    """``loop_graph`` with nodes that check positions, which write nothing, before all that has an effect.

    What is checked there is not checked again.  Positions that depend on what is written are checked where
    they are used.
    """
    nodes = loop_graph.nodes
    if not any(map(_may_raise, nodes)):
        return loop_graph
    graph = Dependencies(nodes, loop_graph.buffers)
    effects = [key for key, node in enumerate(nodes) if has_effect(node, loop_graph.buffers)]
    if not effects:
        return loop_graph
    late = _reached(effects, graph.successors)
    known = set(loop_graph.buffers) - {name for key in late for name in item_writes(nodes[key])}
    givers: dict[sympy.Symbol, list[int]] = {}
    for key, node in enumerate(nodes):
        for symbol in defined_symbols([node]):
            givers.setdefault(symbol, []).append(key)
    too_late = {symbol for symbol, keys in givers.items() if not late.isdisjoint(keys)}
    checks: dict[tuple[object, LoopBody], LoopNode] = {}
    rest: list[Node] = list(nodes)
    for key, node in enumerate(nodes):
        if not isinstance(node, LoopNode) or not node.body.checks_positions:
            continue
        check = _check_of(node, f"check{len(checks)}")
        if check is None or (key in late and not known.issuperset(check.reads)):
            continue
        if too_late & item_symbols(check, loop_graph.buffers):
            continue
        checks.setdefault((check.loops, check.body), check)
        rest[key] = replace(node, body=_unchecked(node.body))
    raising = [k for k, node in enumerate(nodes) if raises_by_value(node) and k not in late]
    if not checks and not raising:
        return loop_graph
    makers = [k for c in checks.values() for name in c.reads for k in graph.writers.get(name, ())]
    used = set().union(*(item_symbols(c, loop_graph.buffers) for c in checks.values()))
    makers += [key for symbol in used & givers.keys() for key in givers[symbol]]
    wanted = [*(key for key in makers if key not in late), *raising]
    needed = _reached(wanted, graph.predecessors)
    first = [rest[key] for key in range(len(rest)) if key in needed]
    last = [rest[key] for key in range(len(rest)) if key not in needed]
    return replace(loop_graph, nodes=(*first, *checks.values(), *last))


def _may_raise(node: Node) -> bool:
    if isinstance(node, LoopNode):
        return node.body.checks_positions
    return raises_by_value(node)


def _reached(starts: Iterable[int], step: Mapping[int, set[int]]) -> set[int]:
    """``starts`` and what can be reached from them."""
    found: set[int] = set()
    pending = list(starts)
    while pending:
        key = pending.pop()
        if key not in found:
            found.add(key)
            pending += step[key]
    return found


def _check_of(node: LoopNode, name: str) -> LoopNode | None:
    """What checks the positions of ``node`` and does nothing else."""
    body = without_unused(node.body, stores=False)
    if not body.instructions or any(i.operation.combines for i in body.instructions):
        return None
    used = body.free_symbols
    loops = tuple(v for v in node.all_loops if v.symbol in used or not v.size.is_positive)
    return LoopNode(name, loops, (), body, node.origins, node.block)


def _unchecked(body: LoopBody) -> LoopBody:
    """``body`` that relies on its positions, but for those in a part that is masked."""
    instructions = tuple(i.unchecked() if isinstance(i, Indirect) else i for i in body.instructions)
    return replace(body, instructions=instructions)
