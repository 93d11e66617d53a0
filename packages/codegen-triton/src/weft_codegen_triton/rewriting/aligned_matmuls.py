"""Matmuls of odd sizes, so that the library's fast kernels take them.

In 16 bits a row must begin at a multiple of 16 bytes.  A matmul to 50257 columns is five times slower than
one to 50256; the weight, [50257, n] in memory, can be cut there without a copy, and a small matmul does the
rest.  Each part is copied to its columns before the next is computed: parts that fit in the second-level
cache cost neither much memory nor much time.  Where rows of both operands are odd, zeros are put behind them;
a weight that is constant gets them once.
"""

from __future__ import annotations

import itertools

import torch
import torch.fx
from weft_loop_ir.rewriting.fakes import call_before, insert_call, is_static, source_of

aten = torch.ops.aten

MATMULS = (aten.mm.default, aten.addmm.default)
UNIT = 8
"""Elements of 2 bytes that are 16 bytes."""
MIN_COLUMNS = 1024
MIN_OPERATIONS = 1 << 28
"""Multiplications below which one matmul is faster than two."""
PART_BYTES = 64 << 20
"""Of a matmul's part, at least: the cache holds most of it until it is read again."""
MAX_PARTS = 16
PART_UNIT = 256
"""A part's columns are a multiple of this, so that the library's tiles are whole."""


def align_matmuls(graph: torch.fx.Graph) -> None:
    """Pad rows of large matmuls in 16 bits to a multiple of 8, and cut them at the last such column."""
    for target in MATMULS:
        for node in graph.find_nodes(op="call_function", target=target):
            if _has_odd_rows(node):
                _pad(node)
            if _is_worth_it(node):
                _cut(node)


def _has_odd_rows(node: torch.fx.Node) -> bool:
    """Whether the operands' rows are what is added up over, side by side, and so many that a copy pays."""
    if not all(map(is_static, (node, *node.args[-2:]))):
        return False
    value, left, right = _values(node)
    inner = left.shape[1]
    if value.itemsize != 2 or inner % UNIT == 0 or min(value.shape) < MIN_COLUMNS // 2:
        return False
    is_turned = right.stride(0) == 1
    return bool(is_turned and value.numel() * inner >= MIN_OPERATIONS)


def _values(node: torch.fx.Node) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of a matmul, its left and its right operand."""
    value, left, right = (n.meta["val"] for n in (node, *node.args[-2:]))  # type: ignore[union-attr]
    return value, left, right


def _pad(node: torch.fx.Node) -> None:
    """Let both operands of ``node`` have zeros behind each row."""
    left, right = source_of(node, -2), source_of(node, -1)
    missing = -left.meta["val"].shape[1] % UNIT
    rows = call_before(node, aten.t.default, right)
    padded = [
        call_before(node, aten.constant_pad_nd.default, o, [0, missing]) for o in (left, rows)
    ]
    node.args = (*node.args[:-2], padded[0], call_before(node, aten.t.default, padded[1]))


def _is_worth_it(node: torch.fx.Node) -> bool:
    if not all(map(is_static, (node, *node.args[-2:]))):
        return False
    value, _, weight = _values(node)
    columns = value.shape[1]
    if value.itemsize != 2 or columns % UNIT == 0 or columns < MIN_COLUMNS:
        return False
    operations = value.numel() * weight.shape[0]
    is_turned = weight.stride(0) == 1 and weight.stride(1) % UNIT == 0
    return bool(is_turned and operations >= MIN_OPERATIONS)


def _cut(node: torch.fx.Node) -> None:
    """Replace ``node`` by matmuls of parts of its columns, each written to its place after the other."""
    value = node.meta["val"]
    size, dtype, device = list(value.shape), value.dtype, value.device
    whole = insert_call(node, value, aten.empty.memory_format, size, dtype=dtype, device=device)
    edges = _edges(value)
    for start, end in itertools.pairwise(edges):
        operands = list(node.args)
        operands[-1] = _sliced(node, operands[-1], start, end)
        if len(operands) == 3 and operands[0].meta["val"].shape[-1] != 1:  # type: ignore[union-attr]
            operands[0] = _sliced(node, operands[0], start, end)
        part = call_before(node, node.target, *operands, **node.kwargs)
        whole = insert_call(node, value, aten.slice_scatter.default, whole, part, 1, start, end)
    node.replace_all_uses_with(whole)
    node.graph.erase_node(node)


def _edges(value: torch.Tensor) -> list[int]:
    """The columns between which parts of the matmul ``value`` lie: the last part is the unaligned rest."""
    rows, columns = value.shape
    edge = columns // UNIT * UNIT
    parts = min(MAX_PARTS, max(1, rows * edge * value.itemsize // PART_BYTES))
    step = -(-edge // parts // PART_UNIT) * PART_UNIT
    return [*range(0, edge, step), edge, columns]


def _sliced(before: torch.fx.Node, operand: object, start: int, end: int) -> torch.fx.Node:
    assert isinstance(operand, torch.fx.Node)
    return call_before(
        before, aten.slice.Tensor, operand, operand.meta["val"].dim() - 1, start, end
    )
