"""Which blocks a program goes through: of keys that its rows may see, or of rows that may see its keys.

Bounds of positions are expressions; numbers that have to be equal are scanned on the device.  A program
holds the rows from ``first`` on (``YBLOCK`` of them), or the keys (``XBLOCK``), along its tile's first axis.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from weft_loop_ir import KeyBounds, LoopBody, print_index

from weft_codegen_triton.attention.score_printer import ScorePrinter
from weft_codegen_triton.kernel.dtypes import INDEX, loop_bound
from weft_codegen_triton.options import INT32_SAFE

SCANNED = 1024
"""Numbers of the axis that is gone through that are compared at once with the held ones'."""
INTEGER_LIMITS = {"least": -(1 << 63), "most": (1 << 63) - 1}


def seen_keys(
    printer: ScorePrinter, bounds: KeyBounds | None, sight: LoopBody | None = None
) -> str:
    """The range of first keys of blocks that rows from ``first`` on may see.

    All of them, if one of the rows has a ``sight`` that is not finite: weights that are not numbers.
    """
    start, stop = key_range(printer, bounds)
    if bounds is not None and sight is not None:
        printer.emit(f"is_lost = {_is_lost(printer, sight, '[YBLOCK, 1]')}")
        start, stop = _unless_lost(start, stop, print_index(printer.keys, INDEX))
    return f"range({loop_bound(start)}, {loop_bound(stop)}, XBLOCK)"


def key_range(printer: ScorePrinter, bounds: KeyBounds | None) -> tuple[str, str]:
    """The first key, where a block begins, that rows from ``first`` on may see, and the end of them."""
    keys, index = print_index(printer.keys, INDEX), printer.index_type
    start, stop = "0", keys
    if bounds is None:
        return start, stop
    if bounds.first is not None:
        start = f"tl.maximum(first + {print_index(bounds.first, INDEX)}, 0) // XBLOCK * XBLOCK"
    if bounds.last is not None:
        stop = f"tl.minimum(first + YBLOCK + {print_index(bounds.last, INDEX)}, {keys})"
    lows = [_limit(printer, body, more) for body, more in bounds.least]
    highs = [_limit(printer, body, more) for body, more in bounds.most]
    if lows:
        begin = f"tl.minimum({_of_rows(printer, 'min', _most('maximum', lows))}, {keys})"
        start = f"tl.maximum({start}, {begin}.to({index}) // XBLOCK * XBLOCK)"
    if highs:
        end = f"tl.maximum({_of_rows(printer, 'max', _most('minimum', highs))} + 1, 0)"
        stop = f"tl.minimum({stop}, {end}.to({index}))"
    if bounds.if_all_see:
        low, high = _most("maximum", ["0", *lows]), _most("minimum", [f"{keys} - 1", *highs])
        seen = f"tl.broadcast_to({high} - {low} + 1, [YBLOCK, 1])"
        printer.emit(f"all_see = {_of_rows(printer, 'min', seen)} > 0")
        start = f"tl.where(all_see, {start}, 0)"
        stop = f"tl.where(all_see, {stop}, {keys})"
    if bounds.equal:
        rows, numbers = zip(*bounds.equal, strict=True)
        start, stop = _equal(printer, "x", rows, numbers, (start, stop))
    return start, stop


def _limit(printer: ScorePrinter, body: LoopBody, more: sympy.Expr) -> str:
    """An integer of each row, and ``more``: in a range that any key's position could be added to."""
    value = f"tl.broadcast_to({printer.replay(body).code}, [YBLOCK, 1]).to(tl.int64)"
    near = f"tl.minimum(tl.maximum({value}, {-INT32_SAFE}), {INT32_SAFE})"
    code = near if more == 0 else f"{near} + {print_index(more, INDEX)}"
    return str(printer.name(f"({code})", torch.int64, frozenset("y")).code)


def _most(function: str, codes: Sequence[str]) -> str:
    """The ``"minimum"`` or ``"maximum"`` of ``codes``."""
    first, *others = codes
    for other in others:
        first = f"tl.{function}({first}, {other})"
    return first


def _of_rows(printer: ScorePrinter, function: str, code: str) -> str:
    """The ``"min"`` or ``"max"`` of ``code`` over the rows that are there."""
    mask = printer.tile.masks.get("y")
    rest = INTEGER_LIMITS["most" if function == "min" else "least"]
    seen = code if mask is None else f"tl.where({mask}, {code}, {rest})"
    return f"tl.{function}(tl.{function}({seen}, 1), 0)"


def seeing_rows(printer: ScorePrinter, bounds: KeyBounds | None, sight: LoopBody | None) -> str:
    """The range of first rows of blocks that may see keys from ``first`` on.

    All of them, if any row of the matrix has a ``sight`` that is not finite.
    """
    queries = print_index(printer.queries, INDEX)
    start, stop = "0", queries
    if bounds is not None and bounds.last is not None:
        start = f"tl.maximum(first - ({print_index(bounds.last, INDEX)}), 0) // YBLOCK * YBLOCK"
    if bounds is not None and bounds.first is not None:
        stop = f"tl.minimum(first + XBLOCK - ({print_index(bounds.first, INDEX)}), {queries})"
    if bounds is not None and bounds.equal:
        numbers, keys = zip(*bounds.equal, strict=True)
        start, stop = _equal(printer, "y", keys, numbers, (start, stop))
    if bounds is not None and sight is not None:
        _scan_rows(printer, sight, queries)
        start, stop = _unless_lost(start, stop, queries)
    return f"range({loop_bound(start)}, {loop_bound(stop)}, YBLOCK)"


def _unless_lost(start: str, stop: str, extent: str) -> tuple[str, str]:
    return f"tl.where(is_lost > 0, 0, {start})", f"tl.where(is_lost > 0, {extent}, {stop})"


def _is_lost(printer: ScorePrinter, sight: LoopBody, shape: str) -> str:
    """Whether any row that the tile holds has a sight that is not finite: 1 or 0."""
    value = f"tl.broadcast_to({printer.replay(sight).code}, {shape})"
    lost = f'(tl.abs({value}) < float("inf")) == 0'
    mask = printer.tile.masks.get("y")
    return f"tl.max(tl.max(({lost if mask is None else f'({lost}) & {mask}'}).to(tl.int32), 1), 0)"


def _scan_rows(printer: ScorePrinter, sight: LoopBody, queries: str) -> None:
    """Print ``is_lost`` for all rows of the matrix."""
    printer.emit("is_lost = tl.full([], 0, tl.int32)")
    with printer.loop(f"for scanned in range(0, {loop_bound(queries)}, {SCANNED}):"):
        _name_scanned(printer, "y", queries)
        printer.emit(
            f"is_lost = tl.maximum(is_lost, {_is_lost(printer, sight, f'[1, {SCANNED}]')})"
        )


def _name_scanned(printer: ScorePrinter, axis: str, extent: str) -> None:
    """Let the tile be a row of :data:`SCANNED` along ``axis``."""
    printer.emit(
        f"{axis}index = scanned + tl.arange(0, {SCANNED})[None, :]",
        f"{axis}mask = {axis}index < {extent}",
    )
    printer.tile.masks[axis] = f"{axis}mask"
    if axis == "x":
        printer.name_key()
    else:
        printer.name_loops(of_rows=True, of_batches=False)


def _equal(
    printer: ScorePrinter,
    axis: str,
    held: Sequence[LoopBody],
    scanned: Sequence[LoopBody],
    between: tuple[str, str],
) -> tuple[str, str]:
    """What is left of the range ``between`` along ``axis``: where ``scanned`` lie among the ``held`` numbers.

    Found by going through the scanned numbers alone.
    """
    extent = print_index(printer.keys if axis == "x" else printer.queries, INDEX)
    block, other = ("XBLOCK", "YBLOCK") if axis == "x" else ("YBLOCK", "XBLOCK")
    _print_limits(printer, held, f"[{other}, 1]", printer.tile.masks.get("yx"["xy".index(axis)]))
    start, stop = between
    printer.emit(
        f"begins = tl.full([1, {SCANNED}], {INT32_SAFE - 1}, tl.int32)",
        f"ends = tl.full([1, {SCANNED}], 0, tl.int32)",
    )
    with printer.loop(f"for scanned in range({loop_bound(start)}, {loop_bound(stop)}, {SCANNED}):"):
        _name_scanned(printer, axis, extent)
        conditions = [f"{axis}mask"]
        for number, body in enumerate(scanned):
            value = printer.replay(body).code
            conditions += [f"({value} >= least{number})", f"({value} <= greatest{number})"]
        index = f"{axis}index.to(tl.int32)"
        printer.emit(
            f"is_seen = {' & '.join(conditions)}",
            f"begins = tl.where(is_seen, tl.minimum(begins, {index}), begins)",
            f"ends = tl.where(is_seen, tl.maximum(ends, {index} + 1), ends)",
        )
    printer.emit(f"begin = tl.min(tl.min(begins, 1), 0) // {block} * {block}")
    printer.emit("end = tl.max(tl.max(ends, 1), 0)")
    return f"tl.maximum(begin, {start})", f"tl.minimum(end, {stop})"


def _print_limits(
    printer: ScorePrinter, held: Sequence[LoopBody], shape: str, mask: str | None
) -> None:
    """Print the ``least`` and ``greatest`` of each of the ``held`` numbers."""
    for number, body in enumerate(held):
        value = f"tl.broadcast_to({printer.replay(body).code}, {shape}).to(tl.int64)"
        for name, reduce, rest in (("least", "min", "most"), ("greatest", "max", "least")):
            seen = value if mask is None else f"tl.where({mask}, {value}, {INTEGER_LIMITS[rest]})"
            printer.emit(f"{name}{number} = tl.{reduce}(tl.{reduce}({seen}, 1), 0)")
