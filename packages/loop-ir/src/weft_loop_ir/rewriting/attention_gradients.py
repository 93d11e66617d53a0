"""Backward of attention without its probabilities: they are computed again from scores and a number a row.

In a joint graph of forward and backward, backward of a softmax between two matmuls reads its result, as
large as all scores.  Instead forward keeps two numbers of each row: the largest score, and the logarithm of
the sum of exponentials relative to that; backward multiplies queries and keys again, does to scores what
forward did, and takes ``exp(score - largest - logarithm)``.  Their sum would lose the logarithm where all
scores of a row are the lowest number.
The sum over probabilities and their gradients of a row is that over results and theirs, which is short.
What remains between backward's matmuls is pointwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
import torch.fx

from weft_loop_ir._torch import OpOverload
from weft_loop_ir.rewriting.attention_patterns import RESHAPES, keeps_elements, keeps_order, sizes
from weft_loop_ir.rewriting.fakes import ancestors, call_before, is_view, replace, source_of

aten = torch.ops.aten

Node = torch.fx.Node

MATMULS = (aten.bmm.default, aten.baddbmm.default)

COMPUTED_IN_BACKWARD = "computed_in_backward"
"""Marks nodes, in their ``meta``, that a cut between forward and backward is not to keep."""


@dataclass(frozen=True)
class DifferentiatedAttention:
    """``result = softmax(f(matmul)) @ value``, and backward of it.

    ``changed``: the matmul and what is done to it, in order, up to the operand of ``softmax``.  ``sums`` are
    backward's sums of ``probabilities * their gradient`` along rows; ``result_gradient`` is ``result``'s.
    """

    matmul: Node
    changed: tuple[Node, ...]
    softmax: Node
    result: Node
    result_gradient: Node
    sums: tuple[Node, ...]


def recompute_probabilities(
    graph: torch.fx.Graph, output_count: int, accept: Callable[[DifferentiatedAttention], bool]
) -> int:
    """Change backward of those attentions in a joint graph that ``accept`` says; gives how many.

    ``output_count``: how many of the graph's first results are forward's.
    """
    (output,) = graph.find_nodes(op="output")
    forward = ancestors(output.args[0][:output_count])
    count = 0
    for softmax in graph.find_nodes(op="call_function", target=aten._softmax.default):
        found = _differentiated(softmax, forward) if softmax in forward else None
        if found is not None and accept(found):
            _rewrite(found, forward)
            count += 1
    if count:
        graph.eliminate_dead_code()
    return count


# ---- the pattern -----------------------------------------------------------------------------------------


def _differentiated(softmax: Node, forward: Collection[Node]) -> DifferentiatedAttention | None:
    extents = sizes(softmax)
    if softmax.args[1] not in (-1, len(extents) - 1):
        return None
    if sum(not n.is_Integer for n in extents[:-1]) > 1:
        return None  # a view of rows has no form
    changed = _changed(source_of(softmax), softmax)
    result = _result(softmax, forward)
    if changed is None or result is None:
        return None
    inner = {*changed, softmax}
    if any(u in forward and u not in inner for node in changed for u in node.users):
        return None
    sums, gradients = _sums(softmax, result, forward)
    if not sums or len(gradients) != 1:
        return None
    return DifferentiatedAttention(
        changed[0], tuple(changed), softmax, result, gradients.pop(), tuple(sums)
    )


def _changed(element: Node, softmax: Node) -> list[Node] | None:
    """The matmul, and what is done to it up to ``element``, in order; None if there is not just one."""
    count = element.meta["val"].numel()
    found: list[Node] = []
    seen: dict[Node, bool] = {}

    def is_on_the_way(node: Node) -> bool:
        if node not in seen:
            seen[node] = False
            if node.target in MATMULS:
                seen[node] = bool(node.meta["val"].numel() == count)
            elif _is_pointwise(node):
                sources = [a for a in node.all_input_nodes if _is_as_large(a, count)]
                seen[node] = True in list(map(is_on_the_way, sources))
            if seen[node]:
                found.append(node)
        return seen[node]

    if not is_on_the_way(element) or sum(node.target in MATMULS for node in found) != 1:
        return None
    return found if found[0].target in MATMULS else None


def _is_as_large(node: Node, count: int | torch.SymInt) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and bool(value.numel() == count)


def _is_pointwise(node: Node) -> bool:
    """Whether each element of ``node`` is computed from those at the same place, or is a copy of one."""
    if not isinstance(node.target, OpOverload):
        return False
    if node.target in RESHAPES or node.target is aten._to_copy.default:
        return True
    if node.target in (aten.expand.default, aten.permute.default):
        return keeps_order(node)
    return torch.Tag.pointwise in node.target.tags


def _result(softmax: Node, forward: Collection[Node]) -> Node | None:
    """The one matmul of the probabilities that forward has."""
    matmuls = []
    pending = [softmax]
    while pending:
        node = pending.pop()
        for user in node.users:
            if user not in forward:
                continue
            if user.target is aten.bmm.default and user.args[0] is node is not user.args[1]:
                matmuls.append(user)
            elif keeps_elements(user):
                pending.append(user)
            else:
                return None
    return matmuls[0] if len(matmuls) == 1 else None


def _sums(softmax: Node, result: Node, forward: Collection[Node]) -> tuple[list[Node], set[Node]]:
    """Backward's sums of probabilities times their gradients, and the gradients of ``result`` in these."""
    sums, gradients = [], set()
    for node in _copies(softmax):
        for user in node.users:
            if user in forward or user.target is not aten.mul.Tensor:
                continue
            others = [a for a in user.all_input_nodes if a is not node]
            gradient = _gradient_of_result(others[0], result) if len(others) == 1 else None
            totals = [u for u in user.users if _sums_rows(u)]
            if gradient is not None and totals:
                sums += totals
                gradients.add(gradient)
    return sums, gradients


def _copies(node: Node) -> list[Node]:
    """``node`` and what holds its elements in order, of any dtype."""
    found = [node]
    for copy in found:  # grows as it is walked
        found += filter(keeps_elements, copy.users)
    return found


def _sums_rows(node: Node) -> bool:
    if node.target is not aten.sum.dim_IntList or len(node.args) < 3 or not node.args[2]:
        return False
    (source,) = node.all_input_nodes
    return node.args[1] in ([-1], [source.meta["val"].dim() - 1])


def _gradient_of_result(node: Node, result: Node) -> Node | None:
    """The gradient of ``result`` whose matmul ``node`` is, the gradient of the probabilities."""
    while keeps_elements(node):
        node = source_of(node)
    if node.target is not aten.bmm.default:
        return None
    gradient, turned = source_of(node), source_of(node, 1)
    is_turned = turned.target is aten.transpose.int and set(turned.args[1:]) in ({1, 2}, {-1, -2})
    return gradient if is_turned and turned.args[0] is result.args[1] else None


# ---- what takes its place --------------------------------------------------------------------------------


def _rewrite(found: DifferentiatedAttention, forward: Collection[Node]) -> None:
    copies = [node for node in _copies(found.softmax) if node in forward][1:]
    shared = [*found.changed, found.softmax, *copies]
    readers = {node: [u for u in node.users if u not in forward] for node in shared}
    after = found.softmax.next
    largest, logarithm = _row_statistics(found.changed[-1], after)
    twins: dict[Node, Node] = {}

    def copy(node: Node) -> None:
        with after.graph.inserting_before(after):
            twins[node] = after.graph.node_copy(node, lambda n: twins.get(n, n))

    for node in found.changed:
        copy(node)
    element = _widened(twins[found.changed[-1]], after)
    below = call_before(after, aten.sub.Tensor, element, largest)
    exponent = call_before(after, aten.sub.Tensor, below, logarithm)
    probability = call_before(after, aten.exp.default, exponent)
    made = [element, below, exponent, probability]
    dtype = found.softmax.meta["val"].dtype
    if dtype != torch.float32:
        probability = call_before(after, aten._to_copy.default, probability, dtype=dtype)
    twins[found.softmax] = probability
    for node in copies:
        copy(node)
    for node in (*made, *twins.values()):
        node.meta[COMPUTED_IN_BACKWARD] = True
    for total in found.sums:
        _sum_over_results(total, found)
    for node, users in readers.items():
        for user in users:
            user.replace_input_with(node, twins[node])
    for matmul in _column_gradients(found, forward):
        _turn(matmul)


def _column_gradients(found: DifferentiatedAttention, forward: Collection[Node]) -> list[Node]:
    """Backward's matmuls of ``query.mT`` that are read in another order, not returned as they lie.

    Keys lie column by column in the matmul of scores, and so would their gradients, which are summed over
    heads, rotated, or copied by rows.
    """
    users = source_of(found.matmul, -2).users
    turned = [n for n in users if n.target is aten.transpose.int and set(n.args[1:]) == {1, 2}]
    return [
        user
        for node in turned
        for user in node.users
        if user not in forward
        and user.target is aten.bmm.default
        and user.args[0] is node is not user.args[1]
        and not _is_returned(user)
    ]


def _is_returned(node: Node) -> bool:
    """Whether ``node``, or a view of it, is a result of the graph."""
    return any(user.op == "output" or (is_view(user) and _is_returned(user)) for user in node.users)


def _turn(matmul: Node) -> None:
    """Have ``left.mT @ right``, whose arguments are given so, computed as ``(right.mT @ left).mT``."""
    rows = call_before(matmul, aten.transpose.int, matmul.args[1], 1, 2)
    turned = call_before(matmul, aten.bmm.default, rows, source_of(matmul).args[0])
    columns = call_before(matmul, aten.transpose.int, turned, 1, 2)
    replace(matmul, columns)


def _widened(node: Node, before: Node) -> Node:
    if node.meta["val"].dtype == torch.float32:
        return node
    return call_before(before, aten._to_copy.default, node, dtype=torch.float32)


def _row_statistics(element: Node, before: Node) -> tuple[Node, Node]:
    """The largest element of each row, and the logarithm of the sum of exponentials relative to it."""
    element = _widened(element, before)
    largest = call_before(before, aten.amax.default, element, [-1], True)
    powers = call_before(
        before, aten.exp.default, call_before(before, aten.sub.Tensor, element, largest)
    )
    total = call_before(before, aten.sum.dim_IntList, powers, [-1], True)
    return largest, call_before(before, aten.log.default, total)


def _sum_over_results(total: Node, found: DifferentiatedAttention) -> None:
    """``sum(probabilities * their gradients)`` is ``sum(results * their gradients)``, for each row."""
    operands = (_widened(n, total) for n in (found.result, found.result_gradient))
    product = call_before(total, aten.mul.Tensor, *operands)
    rows = call_before(total, aten.sum.dim_IntList, product, [-1], True)
    size = total.meta["val"].shape
    if rows.meta["val"].shape != size:
        extents = [n if isinstance(n, int) else -1 for n in size]
        rows = call_before(total, aten.view.default, rows, extents)
    replace(total, rows)
