"""Takes rows before a matmul instead of after it: ``(h @ w)[:, :-1]`` is ``h[:, :-1] @ w``.

So the matmuls of a gradient, which has zeros in the place of the other rows, are of fewer rows too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from weft_functionalize import known_equal

from .emit import BlockRecorder
from .rows import MATMULS, VIEWS, row_dims, shape_of
from .unit_gradient import is_zero

aten = torch.ops.aten
Node = torch.fx.Node

_COPIES = frozenset({aten._to_copy.default, aten.clone.default})


def take_rows_first(graph: torch.fx.Graph, is_large: Callable[[Node], bool]) -> None:
    """Take rows before the matmuls of ``graph`` that are large, in place; gradients' matmuls follow."""
    for node in list(graph.nodes):
        if node.target is aten.slice.Tensor:
            chain = _chain_to_matmul(node)
            if chain and is_large(chain[0]):
                _slice_first(node, chain)
        elif node.target is aten.slice_scatter.default and is_zero(node.args[0]):
            _shorten_readers(node, is_large)


def _chain_to_matmul(node: Node) -> list[Node]:
    """The matmul whose rows ``node`` takes, and what comes between; each has one reader."""
    chain: list[Node] = []
    while True:
        (node, *_) = node.all_input_nodes if node.target not in MATMULS else (node,)
        chain.insert(0, node)
        if len(node.users) != 1:
            return []
        if node.target in MATMULS:
            return chain
        if node.target not in VIEWS | _COPIES:
            return []


def _rows_sliced(node: Node, whole: Node, rows: Any) -> int | None:
    """How many dimensions of ``whole`` are rows, if ``node`` takes a part of one of these."""
    dims = row_dims(shape_of(whole), rows)
    dim = node.args[1 if node.target is aten.slice.Tensor else 2] if len(node.args) > 1 else 0
    is_row = dims is not None and len(shape_of(whole)) == dims + 1 and dim % (dims + 1) < dims  # type: ignore[operator]
    return dims if is_row else None


def _numbers(arguments: Sequence[Any]) -> Any:
    return torch.fx.map_arg(tuple(arguments), lambda n: n.meta["val"])


def _slice_first(node: Node, chain: Sequence[Node]) -> None:
    matmul = chain[0]
    whole, (left, right) = chain[-1], matmul.args[-2:]
    assert isinstance(left, Node) and isinstance(right, Node)
    if _rows_sliced(node, whole, shape_of(matmul)[0]) is None:
        return
    bias = [n for n in matmul.args[:-2] if isinstance(n, Node)]
    if any(len(shape_of(b)) > 1 for b in bias):
        return
    with torch.no_grad(), left.meta["val"].fake_mode, BlockRecorder(node.graph, node) as recorder:
        recorder.provenance = matmul
        short = _shortened(recorder.tensor(left), node.args[1:], shape_of(whole))
        operands = [*map(recorder.tensor, bias), short, recorder.tensor(right)]
        result = matmul.target(*operands, **_numbers([matmul.kwargs])[0])  # type: ignore[operator]
        for copy in chain[1:]:
            if copy.target is aten._to_copy.default:
                result = result.to(copy.meta["val"].dtype)
        new = recorder.node_of(aten.view.default(result, shape_of(node)))
    node.replace_all_uses_with(new)


def _shortened(flat: torch.Tensor, where: Sequence[Any], shape: Sequence[Any]) -> torch.Tensor:
    """Of a matrix of rows those that a slice ``where`` takes of these in ``shape``."""
    columns = flat.shape[1]
    rows = flat.reshape((*shape[:-1], columns))
    part = aten.slice.Tensor(rows, *_numbers(where))
    short: torch.Tensor = part.reshape((-1, columns))
    return short


def _shorten_readers(node: Node, is_large: Callable[[Node], bool]) -> None:
    """Have matmuls and sums read the rows of ``node`` that are not zeros, where it is a large matrix."""
    part = node.args[1]
    assert isinstance(part, Node)
    copies: list[Node] = []
    last = node
    while len(last.users) == 1 and next(iter(last.users)).target in VIEWS | _COPIES:
        last = next(iter(last.users))
        copies.append(last)
    shape = shape_of(last)
    if len(shape) != 2 or not known_equal(shape[1], shape_of(node)[-1]):
        return
    if _rows_sliced(node, node, shape[0]) is None or not is_large(last):
        return
    readers = list(last.users)
    if not all(_is_shortened(reader, last) for reader in readers):
        return
    for reader in readers:
        first = reader if reader.target is not aten.t.default else next(iter(reader.users))
        mode = node.meta["val"].fake_mode
        with torch.no_grad(), mode, BlockRecorder(node.graph, first) as recorder:
            recorder.provenance = reader
            rows = recorder.tensor(part).reshape((-1, shape[1]))
            for copy in copies:
                if copy.target is aten._to_copy.default:
                    rows = rows.to(copy.meta["val"].dtype)
            new = recorder.node_of(_reduced(recorder, reader, rows, node))
        first.replace_all_uses_with(new)


def _is_shortened(reader: Node, rows: Node) -> bool:
    if reader.target is aten.t.default:
        users = list(reader.users)
        return len(users) == 1 and users[0].target is aten.mm.default and users[0].args[0] is reader
    if reader.target is aten.mm.default:
        return reader.args[0] is rows and reader.args[1] is not rows
    return reader.target is aten.sum.dim_IntList and reader.args[1] == [0]


def _reduced(recorder: BlockRecorder, reader: Node, rows: torch.Tensor, node: Node) -> torch.Tensor:
    """What ``reader`` computes, of the rows that are not zeros."""
    where = node.args[2:]
    if reader.target is aten.t.default:
        product = next(iter(reader.users))
        other = recorder.tensor(product.args[1])  # type: ignore[arg-type]
        result: torch.Tensor = aten.mm.default(rows.t(), _shortened(other, where, shape_of(node)))
        return result
    if reader.target is aten.mm.default:
        product = aten.mm.default(rows, recorder.tensor(reader.args[1]))  # type: ignore[arg-type]
        columns = product.shape[1]
        part, whole = shape_of(node.args[1]), shape_of(node)  # type: ignore[arg-type]
        zeros = torch.zeros((*whole[:-1], columns), dtype=product.dtype, device=product.device)
        filled = aten.slice_scatter.default(
            zeros, product.view((*part[:-1], columns)), *_numbers(where)
        )
        result = filled.view((-1, columns))
    else:
        result = aten.sum.dim_IntList(rows, *reader.args[1:], **reader.kwargs)
    return result
