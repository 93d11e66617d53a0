"""Matmuls of odd sizes, so that the library's fast kernels take them.

In 16 bits a row must begin at a multiple of 16 bytes, and what is added up over must end at one.  A matmul to
50257 columns is five times slower than one to 50256; the weight, [50257, n] in memory, can be cut there
without a copy, and a small matmul does the rest.  Each part is copied to its columns before the next is
computed: parts that fit in the second-level cache cost neither much memory nor much time.  Everywhere else
zeros are put behind rows and columns where the copies take less time than they save: those of gradients of
50257 columns are read by two matmuls, a weight that is constant gets them once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from weft_loop_ir.guesses import MATMUL_EXTENT
from weft_loop_ir.rewriting.fakes import call_before, insert_call, is_static, replace, source_of

from weft_codegen_triton.gpu import GRAPH_LAUNCH, Gpu

aten = torch.ops.aten

Node = torch.fx.Node

MATMULS = (aten.mm.default, aten.addmm.default)
UNIT = 8
"""Elements of 2 bytes that are 16 bytes."""
MIN_COLUMNS = 1024
MAX_PARTS = 16
PART_UNIT = 256
"""A part's columns are a multiple of this, so that the library's tiles are whole."""

# Parts of a GPU's rates that the library reaches, from 171 matmuls of 13 sizes: with rows at any element, at
# every second or fourth, and at multiples of 16 bytes.
ODD_COLUMNS_RATE, ODD_RATE, EVEN_RATE, ALIGNED_RATE = 0.093, 0.14, 0.25, 0.7
UNALIGNED_PART = 0.5
"""Of the bandwidth, for operands like that."""
MIN_EXTENT = 16
"""Below it matmuls are of other kinds: a vector, a few rows."""


def align_matmuls(graph: torch.fx.Graph, gpu: Gpu) -> None:
    """Cut large matmuls in 16 bits at the last column that is aligned, or pad what is not."""
    for node in _matmuls(graph):
        if _is_worth_it(node, gpu):
            _cut(node, gpu)
    found = [padding for node in _matmuls(graph) if (padding := _padding_of(node, gpu)) is not None]
    readers = Counter(operand for padding in found for operand in padding.operands)
    made: dict[PaddedMatrix, Node] = {}
    results: dict[Node, Node] = {}
    for padding in found:
        copied = sum(gpu.copying(o.bytes) / readers[o] for o in padding.operands if o.is_copied)
        if padding.saved > copied:
            results[padding.node] = _pad(padding, made, results)


def _matmuls(graph: torch.fx.Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op == "call_function" and n.target in MATMULS]


@dataclass(frozen=True)
class PaddedMatrix:
    """The rows of ``source``, or its columns if ``is_turned``, with zeros behind each, and rows of zeros."""

    source: Node
    is_turned: bool
    more_rows: int
    more_columns: int

    @classmethod
    def of_operand(cls, operand: Node, is_turned: bool, more: tuple[int, int]) -> PaddedMatrix:
        """That of a matmul's ``operand``, by columns if ``is_turned``, with ``more`` [rows, columns]."""
        more_rows, more_columns = more[::-1] if is_turned else more
        if operand.target is aten.t.default:
            return cls(source_of(operand), not is_turned, more_rows, more_columns)
        return cls(operand, is_turned, more_rows, more_columns)

    @property
    def is_copied(self) -> bool:
        return bool(self.more_rows or self.more_columns)

    @property
    def bytes(self) -> int:
        return _bytes(self.source.meta["val"])


@dataclass(frozen=True)
class Padding:
    """How the matmul ``node`` is padded: its operands, and by how much [rows, columns] the result is larger.

    ``are_turned``: whether an operand is read as its transpose.  ``saved``: microseconds, before the operands
    are copied.
    """

    node: Node
    operands: tuple[PaddedMatrix, PaddedMatrix]
    are_turned: tuple[bool, bool]
    more: tuple[int, int]
    saved: float


def _padding_of(node: Node, gpu: Gpu) -> Padding | None:
    """What to pad so that every row that the library reads or writes is aligned; None if that is so."""
    value, left, right = _values(node)
    rows, inner, columns = left.shape[0], left.shape[1], right.shape[1]
    extents: tuple[Any, ...] = (rows, inner, columns)
    known = [n for n in extents if isinstance(n, int)]
    are_matrices = 1 in left.stride() and 1 in right.stride()
    if value.itemsize != 2 or not are_matrices or min(known, default=0) < MIN_EXTENT:
        return None
    left_turned, right_turned = left.stride(1) != 1, right.stride(1) != 1
    more_inner = _missing(inner) if right_turned or not left_turned else 0
    more_rows, more_columns = _missing(rows) if left_turned else 0, _missing(columns)
    unaligned = {
        n for n, more in ((rows, more_rows), (inner, more_inner), (columns, more_columns)) if more
    }
    if not unaligned:
        return None
    operands = (
        PaddedMatrix.of_operand(source_of(node, -2), left_turned, (more_rows, more_inner)),
        PaddedMatrix.of_operand(source_of(node, -1), right_turned, (more_inner, more_columns)),
    )
    saved = _saved(node, unaligned, gpu)
    if more_columns:
        saved -= gpu.copying(_bytes(value))
    return Padding(node, operands, (left_turned, right_turned), (more_rows, more_columns), saved)


def _missing(extent: Any) -> int:
    return -extent % UNIT if isinstance(extent, int) else 0


def _saved(node: Node, unaligned: Collection[int], gpu: Gpu) -> float:
    """Microseconds that the matmul takes less once the extents ``unaligned`` are multiples of the unit."""
    value, left, right = _values(node)
    operations = 2 * _elements(value) * _extent(left.shape[1])
    moved = sum(map(_bytes, (value, left, right)))
    rate = EVEN_RATE
    if any(extent % 2 for extent in unaligned):
        rate = ODD_COLUMNS_RATE if value.shape[1] in unaligned else ODD_RATE
    return _gained(operations, moved, rate, gpu)


def saved_by_aligning(operations: int, moved: int, gpu: Gpu, *, is_odd: bool) -> float:
    """Microseconds that a matmul takes less once rows that begin anywhere are aligned.

    ``is_odd``: at odd elements, too.
    """
    return _gained(operations, moved, ODD_RATE if is_odd else EVEN_RATE, gpu)


def _gained(operations: int, moved: int, rate: float, gpu: Gpu) -> float:
    slow = gpu.multiplying(operations, rate) + gpu.moving(moved, UNALIGNED_PART)
    return slow - max(gpu.multiplying(operations, ALIGNED_RATE), gpu.moving(moved))


def _extent(extent: Any) -> int:
    return extent if isinstance(extent, int) else MATMUL_EXTENT


def _elements(value: torch.Tensor) -> int:
    return _extent(value.shape[0]) * _extent(value.shape[1])


def _bytes(value: torch.Tensor) -> int:
    return _elements(value) * value.itemsize


def _values(node: Node) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of a matmul, its left and its right operand."""
    value, left, right = (n.meta["val"] for n in (node, *node.args[-2:]))  # type: ignore[union-attr]
    return value, left, right


def _pad(padding: Padding, made: dict[PaddedMatrix, Node], results: dict[Node, Node]) -> Node:
    """Replace the matmul by one of padded operands; what is read of it ends where it did.

    ``made`` has the operands of others, ``results`` what is in the place of other matmuls.
    """
    node, (more_rows, more_columns) = padding.node, padding.more
    value = node.meta["val"]
    matrices = [_padded(node, operand, made, results) for operand in padding.operands]
    operands = [
        call_before(node, aten.t.default, matrix) if is_turned else matrix
        for matrix, is_turned in zip(matrices, padding.are_turned, strict=True)
    ]
    added = [_padded_term(node, more_rows, more_columns)] if len(node.args) == 3 else []
    result = call_before(node, node.target, *added, *operands, **node.kwargs)
    if more_rows:
        result = call_before(node, aten.slice.Tensor, result, 0, 0, value.shape[0])
    if more_columns:
        result = call_before(node, aten.slice.Tensor, result, 1, 0, value.shape[1])
        result = call_before(
            node, aten.clone.default, result, memory_format=torch.contiguous_format
        )
    replace(node, result)
    return result


def _padded(
    node: Node, operand: PaddedMatrix, made: dict[PaddedMatrix, Node], results: dict[Node, Node]
) -> Node:
    if operand not in made:
        source = results.get(operand.source, operand.source)
        matrix = call_before(node, aten.t.default, source) if operand.is_turned else source
        if operand.is_copied:
            matrix = _with_zeros(node, matrix, operand.more_rows, operand.more_columns)
        made[operand] = matrix
    return made[operand]


def _padded_term(node: Node, more_rows: int, more_columns: int) -> Node:
    """What ``node`` adds to its product, which is expanded to it."""
    term = source_of(node)
    extents = term.meta["val"].shape
    wanted = (more_rows, more_columns)[-len(extents) :]
    more = [0 if extent == 1 else n for extent, n in zip(extents, wanted, strict=True)]
    return _with_zeros(node, term, *more) if any(more) else term


def _with_zeros(before: Node, matrix: Node, *more: int) -> Node:
    """``matrix``, or a vector, with so many zeros behind it in each dim."""
    value = matrix.meta["val"]
    # computed for the fake value, the operator would make numbers of sizes that vary
    padded = value.new_empty([n + m for n, m in zip(value.shape, more, strict=True)])
    ends = [n for m in more[::-1] for n in (0, m)]
    return insert_call(before, padded, aten.constant_pad_nd.default, matrix, ends)


def _is_worth_it(node: torch.fx.Node, gpu: Gpu) -> bool:
    """Whether two matmuls, each result of which is copied to its columns, take less time than one."""
    if not all(map(is_static, (node, *node.args[-2:]))):
        return False
    value, _, weight = _values(node)
    columns = value.shape[1]
    if value.itemsize != 2 or columns % UNIT == 0 or columns < MIN_COLUMNS:
        return False
    is_turned = weight.stride(0) == 1 and weight.stride(1) % UNIT == 0
    return is_turned and _saved(node, {columns}, gpu) > GRAPH_LAUNCH + gpu.copying(_bytes(value))


def _cut(node: torch.fx.Node, gpu: Gpu) -> None:
    """Replace ``node`` by matmuls of parts of its columns, each written to its place after the other."""
    value = node.meta["val"]
    size, dtype, device = list(value.shape), value.dtype, value.device
    whole = insert_call(node, value, aten.empty.memory_format, size, dtype=dtype, device=device)
    edges = _edges(value, gpu)
    for start, end in itertools.pairwise(edges):
        operands = list(node.args)
        operands[-1] = _sliced(node, operands[-1], start, end)
        if len(operands) == 3 and operands[0].meta["val"].shape[-1] != 1:  # type: ignore[union-attr]
            operands[0] = _sliced(node, operands[0], start, end)
        part = call_before(node, node.target, *operands, **node.kwargs)
        whole = insert_call(node, value, aten.slice_scatter.default, whole, part, 1, start, end)
    replace(node, whole)


def _edges(value: torch.Tensor, gpu: Gpu) -> list[int]:
    """The columns between which parts of the matmul ``value`` lie: the last part is the unaligned rest."""
    rows, columns = value.shape
    edge = columns // UNIT * UNIT
    parts = min(MAX_PARTS, max(1, rows * edge * value.itemsize // gpu.cached_bytes))
    step = -(-edge // parts // PART_UNIT) * PART_UNIT
    return [*range(0, edge, step), edge, columns]


def _sliced(before: torch.fx.Node, operand: object, start: int, end: int) -> torch.fx.Node:
    assert isinstance(operand, torch.fx.Node)
    return call_before(
        before, aten.slice.Tensor, operand, operand.meta["val"].dim() - 1, start, end
    )
