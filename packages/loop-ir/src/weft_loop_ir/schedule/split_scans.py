"""Splitting scans of few long rows: totals of pieces, what precedes each piece, then the pieces' own scans.

Elements are read twice and results written once, with as many pieces at work as the device needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import sympy
import torch

from weft_loop_ir.bodies import COMBINED, LEFT, RIGHT, CombineFunction, Scan, Value
from weft_loop_ir.bodies.edit import without_unused
from weft_loop_ir.bodies.replay import Replayer
from weft_loop_ir.expressions import (
    FloorDiv,
    Mod,
    contiguous_stride,
    dot,
    integer,
    loop_symbol,
    product,
)
from weft_loop_ir.ir import Buffer, BufferKind, Layout, LoopVariable, size_hints
from weft_loop_ir.loop_graph import LoopGraph, LoopNode, Node
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.options import ScheduleOptions
from weft_loop_ir.schedule.split_reductions import Hints, reads_columns

MIN_PIECE = 2048
"""Elements of a piece of a row, at least; of columns side by side as many in :data:`SIDE_BY_SIDE` of them."""
SIDE_BY_SIDE = 16
ALIGNMENT = 64
"""Pieces begin at a multiple of it, so that what lies side by side is read in whole vectors."""


def split_long_scans(loop_graph: LoopGraph, options: ScheduleOptions) -> LoopGraph:
    """Split each scan of fewer rows than ``options.split_scan_rows``.

    Where sizes vary, those of the call that the graph was made for decide, and how long pieces are: a longer
    row has more of them, a shorter one fewer or none.
    """
    if not options.split_scan_rows:
        return loop_graph
    hints = size_hints(loop_graph.symbols) if options.split_varying else {}
    buffers = dict(loop_graph.buffers)
    nodes: list[Node] = []
    for node in loop_graph.nodes:
        each = None
        if isinstance(node, LoopNode) and node.is_scan:
            each = _piece(node, options, hints)
        if each is None or not isinstance(node, LoopNode):
            nodes.append(node)
        else:
            nodes += _Split(node, each, buffers).nodes()
    if len(nodes) == len(loop_graph.nodes):
        return loop_graph
    return replace(loop_graph, nodes=tuple(nodes), buffers=buffers)


def _piece(node: LoopNode, options: ScheduleOptions, hints: Hints) -> int | None:
    """The length of the pieces; None to leave the node whole."""
    rows = product(tuple(v.size for v in node.loops)).xreplace(hints)
    length = node.reduction_loops[0].size.xreplace(hints)
    if not (rows.is_Integer and length.is_Integer and rows > 0):
        return None
    if _stays_whole(node, options):
        return None
    together = SIDE_BY_SIDE if reads_columns(node) else 1
    if int(rows) >= options.split_scan_rows * together:
        return None
    wanted = options.split_scan_parts * together // int(rows)
    pieces = min(wanted, int(length) * together // MIN_PIECE)
    if pieces < 2:
        return None
    each = -(-int(length) // (pieces * ALIGNMENT)) * ALIGNMENT
    return each if each < int(length) else None


def _stays_whole(node: LoopNode, options: ScheduleOptions) -> bool:
    """Whether there is a kernel that scans parts of the long rows at once."""
    rows = product(tuple(v.size for v in node.loops))
    length = node.reduction_loops[0].size
    if options.whole_scan_elements is None or not (rows.is_Integer and length.is_Integer):
        return False
    if int(rows) >= options.split_scan_rows or int(length) < options.whole_scan_elements:
        return False
    return not _combine_function_of(node).is_costly


def _combine_function_of(node: LoopNode) -> CombineFunction:
    return next(i.combine_function for i in node.body.instructions if isinstance(i, Scan))


class _Split:
    """The nodes that stand for ``node``, in pieces of ``each`` elements and a shorter rest."""

    def __init__(self, node: LoopNode, each: int, buffers: dict[str, Buffer]) -> None:
        self.node = node
        self.each = each
        self.buffers = buffers
        (along,) = node.reduction_loops
        size, piece = along.size, integer(each)
        self.pieces: sympy.Expr = size // piece if size.is_Integer else FloorDiv(size, piece)
        self.rest: sympy.Expr = size % piece if size.is_Integer else Mod(size, piece)
        self.combine_function = _combine_function_of(node)
        self.around = tuple(
            LoopVariable(loop_symbol("i", k + 1), v.size) for k, v in enumerate(node.loops)
        )
        self.piece = LoopVariable(loop_symbol("i", 0), self.pieces)
        self.totals = self._new_buffers(self.pieces, "total")
        self.before = self._new_buffers(self.pieces + 1, "before")  # nobody reads the first row

    def nodes(self) -> list[LoopNode]:
        """In the order in which they run."""
        each = integer(self.each)
        found = [self._totals(), self._joined(), self._following(self.piece.symbol, each)]
        if self.rest != 0:
            found.append(self._following(self.pieces, self.rest))
        return found

    def _new_buffers(self, rows: sympy.Expr, word: str) -> list[str]:
        """A buffer for each value, with ``rows`` for all points of the loops around."""
        size = (rows, *(v.size for v in self.around))
        device = self.buffers[self.node.writes[0]].layout.device
        names = []
        for k, dtype in enumerate(self.combine_function.dtypes):
            name = f"{self.node.writes[0]}_{word}{k}"
            layout = Layout(device, dtype, size, contiguous_stride(size))
            self.buffers[name] = Buffer(name, BufferKind.INTERMEDIATE, layout)
            names.append(name)
        return names

    def _row(self, row: sympy.Expr) -> sympy.Expr:
        """The index in such a buffer."""
        size = (sympy.S.One, *(v.size for v in self.around))
        index = (row, *(v.symbol for v in self.around))
        return dot(index, contiguous_stride(size), sympy.S.Zero)

    def _totals(self) -> LoopNode:
        def scanned(ops: BodyRecorder, values: Sequence[Value]) -> list[Value]:
            for number, name in enumerate(self.totals):
                total = ops.fold(self.combine_function, number, *values)
                ops.store(name, self._row(self.piece.symbol), total)
            return list(values)  # which nothing uses

        return self._replayed(self.piece.symbol, integer(self.each), scanned, stores=False)

    def _joined(self) -> LoopNode:
        along = LoopVariable(loop_symbol("r", 0), self.pieces)
        ops = self._recorder((*self.around, along))
        values = [ops.load(name, self._row(along.symbol)) for name in self.totals]
        for number, name in enumerate(self.before):
            joined = ops.scan(self.combine_function, number, *values)
            ops.store(name, self._row(along.symbol + 1), joined)
        return self._node(self.around, along, ops)

    def _following(self, piece: sympy.Expr, length: sympy.Expr) -> LoopNode:
        """The scan of each piece, or of the one with the number ``piece``, with what precedes it."""
        numbers = range(len(self.combine_function.dtypes))

        def scanned(ops: BodyRecorder, values: Sequence[Value]) -> list[Value]:
            own = [ops.scan(self.combine_function, number, *values) for number in numbers]
            before = [ops.load(name, self._row(piece)) for name in self.before]
            made = _combined(ops, self.combine_function, before, own)
            if piece.is_Integer:
                return made
            number = ops.index_expr(piece, torch.int64)
            is_later = ops.gt(number, 0)
            return [ops.where(is_later, a, b) for a, b in zip(made, own, strict=True)]

        return self._replayed(piece, length, scanned, stores=True)

    def _replayed(
        self, piece: sympy.Expr, length: sympy.Expr, scanned: _Scanned, *, stores: bool
    ) -> LoopNode:
        """The node over ``length`` elements of pieces, with what ``scanned`` gives for the scan's results."""
        along = LoopVariable(loop_symbol("r", 0), length)
        loops = (self.piece, *self.around) if piece == self.piece.symbol else self.around
        ops = self._recorder((*loops, along))
        old = [v.symbol for v in self.node.all_loops]
        new = [*(v.symbol for v in self.around), piece * self.each + along.symbol]
        replaced = dict(zip(old, new, strict=True))
        made: list[Value] = []

        def scan(combine_function: CombineFunction, number: int, *values: Value) -> Value:
            made[:] = made or scanned(ops, values)
            return made[number]

        def store(
            target: BodyRecorder, name: str, index: sympy.Expr, value: Value, mode: str | None
        ) -> None:
            if stores:
                target.store(name, index, value, mode)

        def place(expression: sympy.Expr) -> sympy.Expr:
            return ops.ranges.simplify(sympy.expand_mul(expression.xreplace(replaced)))

        Replayer(ops, place, store=store, scan=scan).replay(self.node.body)
        return self._node(loops, along, ops)

    def _recorder(self, loops: tuple[LoopVariable, ...]) -> BodyRecorder:
        return BodyRecorder.over(loops, lambda name: self.buffers[name].layout.dtype)

    def _node(
        self, loops: tuple[LoopVariable, ...], along: LoopVariable, ops: BodyRecorder
    ) -> LoopNode:
        body = without_unused(ops.body())
        return LoopNode(body.writes[0], loops, (along,), body, self.node.origins, self.node.block)


_Scanned = Callable[[BodyRecorder, Sequence[Value]], list[Value]]
"""By the recorder and the elements that are scanned: what stands for each result."""


def _combined(
    ops: BodyRecorder,
    combine_function: CombineFunction,
    left: Sequence[Value],
    right: Sequence[Value],
) -> list[Value]:
    """The instructions of ``combine_function`` on values, in ``ops``."""
    given = {f"{side}{k}": v for side, values in ((LEFT, left), (RIGHT, right))
             for k, v in enumerate(values)}  # fmt: skip
    made: dict[str, Value] = {}

    def load(target: BodyRecorder, name: str, index: sympy.Expr) -> Value:
        return given[name]

    def store(
        target: BodyRecorder, name: str, index: sympy.Expr, value: Value, mode: str | None
    ) -> None:
        made[name] = value

    Replayer(ops, load=load, store=store).replay(combine_function.body)
    return [made[f"{COMBINED}{k}"] for k in range(len(left))]
