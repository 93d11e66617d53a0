"""Finds attention in a schedule: a matmul, a kernel that takes the softmax of it, and another matmul.

Whatever the kernel does to a score before the softmax becomes a part of the attention: masks, biases, caps.
Operands are read before copies were made of them, and masks that cost little are computed where they are
used, so that they need no memory and bounds of keys show.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass, replace

import sympy
import torch

from weft_loop_ir.attention.expansion import expanded_attention
from weft_loop_ir.attention.key_bounds import KeyBounds, key_bounds
from weft_loop_ir.attention.masks import with_masks_computed
from weft_loop_ir.attention.operands import (
    FindWriter,
    MatrixOperand,
    ScoreRows,
    operand_of,
    score_rows_of,
)
from weft_loop_ir.attention.softmax_rows import RowStatistic, SoftmaxRows, softmax_rows
from weft_loop_ir.bodies import Constant, LoopBody, Masked, Scalar, Value
from weft_loop_ir.bodies.edit import without_unused
from weft_loop_ir.bodies.replay import Replayer
from weft_loop_ir.contractions import BATCH, COLUMN, ROW, contraction_of, matmul_operands
from weft_loop_ir.ir import (
    Buffer,
    Expansion,
    ExternCall,
    FusedKernel,
    Kernel,
    Layout,
    LoopVariable,
    Schedule,
    Stage,
    is_dense,
)
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.kernel_names import renamed
from weft_loop_ir.schedule.options import ScheduleOptions
from weft_loop_ir.schedule.replaced_steps import ReplacedSteps

aten = torch.ops.aten

MATMULS = (aten.bmm.default, aten.mm.default)
ADDED_MATMULS = (aten.baddbmm.default,)


@dataclass(frozen=True)
class AttentionKernel(FusedKernel):
    """``softmax(f(query @ key)) @ value`` for each matrix of a batch; it has no stages.

    ``query [n, l, e]``, ``key [n, e, s]``, ``value [n, s, d]``, ``out [n, l, d]``. ``score`` gives ``f``
    of a score in float32, at the loops ``outer`` (``score_rows`` says what they are to a matrix and its
    row) and ``key_loop``; it loads the score from ``scores``. ``bounds``: keys that have no weight.
    ``hidden_are_zero``: rows whose scores are all minus infinity give zeros, not NaN. ``kept``: numbers
    of each row and the buffers ``[n, l]`` that they are kept in. ``apart`` are the steps whose place it
    takes. ``counters`` is a buffer of an integer for each matrix, zero before and after: who is last of
    several on one can tell.  ``producers`` compute operands, each a buffer, where they are loaded;
    ``stored`` are kernels that each store rows of keys or of values first, of which no matrix has others'.
    """

    query: MatrixOperand
    key: MatrixOperand
    value: MatrixOperand
    out: MatrixOperand
    score: LoopBody
    scores: str
    score_rows: ScoreRows
    key_loop: LoopVariable
    bounds: KeyBounds | None
    hidden_are_zero: bool
    kept: tuple[tuple[RowStatistic, str], ...]
    apart: tuple[ExternCall | Kernel, ...]
    counters: str | None = None
    producers: tuple[Kernel, ...] = ()
    stored: tuple[Kernel, ...] = ()

    def expanded(self, buffers: Mapping[str, Buffer]) -> Expansion:
        return expanded_attention(self, buffers)


@dataclass(frozen=True)
class _Steps:
    """A matmul, a kernel that writes ``weights`` of it, a matmul of these, and where the three stand."""

    matmul: ExternCall
    kernel: Kernel
    weights: str
    last: ExternCall
    places: tuple[int, int, int]


def fuse_attention(
    schedule: Schedule,
    accept: Callable[[AttentionKernel], bool],
    options: ScheduleOptions | None = None,
) -> Schedule:
    """``schedule`` with those attentions in one kernel that ``accept`` says are to be.

    Its memory is planned anew, by ``options``.
    """
    around = ReplacedSteps(schedule)
    for places, attention, besides in _candidates(schedule, around):
        if accept(attention):
            around.put(places, places[-1], (attention,))
            if besides.writes:
                around.put((), places[1], (besides,))
    return around.planned(options)


def _candidates(
    schedule: Schedule, around: ReplacedSteps
) -> Iterator[tuple[tuple[int, int, int], AttentionKernel, Kernel]]:
    """The places of three steps, what they are together, and a kernel for what the second stores besides."""
    for first, call in around:
        if not isinstance(call, ExternCall) or not is_matmul(call, schedule):
            continue
        (scores,) = call.outputs
        second = around.only_reader(str(scores), first)
        kernel = around.step(second)
        if type(kernel) is not Kernel:
            continue
        assert second is not None
        for weights in kernel.writes:
            third = around.only_reader(weights, second)
            last = around.step(third)
            if not isinstance(last, ExternCall) or last.operator not in MATMULS:
                continue
            assert third is not None
            places = (first, second, third)
            joined = _joined(_Steps(call, kernel, weights, last, places), schedule, around)
            if joined is not None:
                yield places, *joined


def is_matmul(call: ExternCall, schedule: Schedule) -> bool:
    """Whether ``call`` multiplies batches of matrices of one supported dtype, into dense memory."""
    if call.operator not in (*MATMULS, *ADDED_MATMULS):
        return False
    contraction = contraction_of(call, schedule.buffers)
    return contraction is not None and all(n.is_positive for n in contraction.sizes.values())


def _joined(
    found: _Steps, schedule: Schedule, around: ReplacedSteps
) -> tuple[AttentionKernel, Kernel] | None:
    """The three steps as one; None where they are not an attention, or its operands change meanwhile."""
    matmul, kernel, last = found.matmul, found.kernel, found.last
    (scores,), (result,) = matmul.outputs, last.outputs
    assert scores is not None
    if (
        result is None
        or not is_matmul(last, schedule)
        or not _takes_all(last, found.weights, schedule)
    ):
        return None
    layout = schedule.buffers[scores].layout
    batch, queries, keys = (sympy.S.One,) * (3 - len(layout.size)) + layout.size
    index = _only_index(kernel, scores, found.weights)
    score_rows = None if index is None else score_rows_of(index, kernel, batch, queries, keys)
    if score_rows is None:
        return None

    def dtype_of(name: str) -> torch.dtype:
        return torch.float32 if name == scores else schedule.buffers[name].layout.dtype

    score = computed_score(matmul, score_rows, schedule.buffers)
    rows = softmax_rows(kernel, found.weights, keys, scores, score, dtype_of, True)
    if rows is None:
        return None
    _, second, third = found.places
    for name, (_, place) in rows.kept.items():
        is_late = all(reader > third for reader in around.readers(name) if reader != second)
        if not is_late or not _are_rows(name, place, score_rows, keys, schedule):
            return None
    attention = _attention_kernel(found, score_rows, rows, dtype_of, schedule, around)
    if attention is None:
        return None
    return attention, _pointwise(f"{kernel.name}_besides", kernel, rows.key, rows.besides)


def _attention_kernel(
    found: _Steps,
    score_rows: ScoreRows,
    rows: SoftmaxRows,
    dtype_of: Callable[[str], torch.dtype],
    schedule: Schedule,
    around: ReplacedSteps,
) -> AttentionKernel | None:
    """The kernel of ``rows`` between two matmuls; None where what it reads changes before its place."""
    matmul, kernel, last = found.matmul, found.kernel, found.last
    (scores,), (result,) = matmul.outputs, last.outputs
    assert scores is not None and result is not None
    first, second, third = found.places

    def writer(name: str) -> Kernel | None:
        return around.writer(name, third)

    body = with_masks_computed(rows.element, (scores,), kernel.outer, rows.key, schedule, writer)
    layout, loops = schedule.buffers[scores].layout, (*kernel.outer, rows.key)
    body = without_rounding(body, (scores,), layout.dtype, dtype_of, score_rows, loops)
    query, key = _factors(matmul, writer, schedule)
    _, weighted, _ = matmul_operands(last)
    value = operand_of(weighted, writer)
    operands = [operand.buffer for operand in (query, key, value)]
    loads = [name for name in body.reads if name != scores]
    reads = tuple(dict.fromkeys([*operands, *loads]))
    early = {query.buffer, key.buffer, *(view.buffer for view in matmul.views)}
    if not around.stay(early.intersection(reads), first, third):
        return None
    if not around.stay(set(loads) - early, second, third) or result in reads:
        return None
    return AttentionKernel(
        name=renamed(kernel.name, "attention"),
        outer=kernel.outer,
        stages=(),
        local_buffers=(),
        reads=reads,
        writes=(result, *rows.kept),
        origins=(matmul.origin, *kernel.origins, last.origin),
        query=query,
        key=key,
        value=value,
        out=replace(
            MatrixOperand.of(result, schedule.buffers[result].layout),
            size=(score_rows.batches, score_rows.queries, value.size[2]),
        ),
        score=body,
        scores=scores,
        score_rows=score_rows,
        key_loop=rows.key,
        bounds=bounds_of_keys(body, scores, score_rows, loops, layout),
        hidden_are_zero=rows.hidden_are_zero,
        kept=tuple((number, name) for name, (number, _) in rows.kept.items()),
        apart=(matmul, kernel, last),
    )


def bounds_of_keys(
    body: LoopBody,
    scores: str,
    score_rows: ScoreRows,
    loops: tuple[LoopVariable, ...],
    layout: Layout,
) -> KeyBounds | None:
    """Which keys ``body`` leaves visible, at ``loops`` of which the last one is over keys.

    ``layout``: that of ``scores``.
    """
    if score_rows.query is None:
        return None
    queries, keys = layout.size[-2:]
    positions = {loop.symbol for loop in loops}
    lowest = torch.finfo(layout.dtype).min
    return key_bounds(
        body, scores, score_rows.query, loops[-1].symbol, positions, (queries, keys), lowest
    )


def _factors(
    matmul: ExternCall, writer: FindWriter, schedule: Schedule
) -> tuple[MatrixOperand, MatrixOperand]:
    """The operands of ``matmul``, both as they were in 16 bits if they were: their products are exact."""
    views = matmul_operands(matmul)[:2]
    left, right = (operand_of(view, writer, before_widening=True) for view in views)
    dtypes = {schedule.buffers[operand.buffer].layout.dtype for operand in (left, right)}
    if len(dtypes) > 1:
        left, right = (operand_of(view, writer) for view in views)
    return left, right


def _pointwise(name: str, kernel: Kernel, key: LoopVariable, body: LoopBody) -> Kernel:
    """A kernel of ``body`` alone, over the loops of ``kernel`` and ``key``."""
    loops = (*kernel.outer, key)
    return Kernel(name, loops, (Stage((), body),), (), body.reads, body.writes, kernel.origins)


def _are_rows(
    name: str, place: sympy.Expr, score_rows: ScoreRows, keys: sympy.Expr, schedule: Schedule
) -> bool:
    """Whether numbers that are stored at ``place`` of ``name`` lie row by row."""
    is_row = sympy.expand(place * keys - score_rows.first_key) == 0
    return is_row and is_dense(schedule.buffers[name].layout)


def _takes_all(last: ExternCall, weights: str, schedule: Schedule) -> bool:
    """Whether ``last`` multiplies all of ``weights``, as they lie, with something else."""
    left, right, _ = matmul_operands(last)
    layout = schedule.buffers[weights].layout
    return bool(
        left.buffer == weights
        and right.buffer != weights
        and is_dense(left)
        and is_dense(layout)
        and sympy.expand(sympy.prod(left.size) - sympy.prod(layout.size)) == 0
        and not last.keywords
    )


def _only_index(kernel: Kernel, scores: str, weights: str) -> sympy.Expr | None:
    """The index at which all stages read scores and the last one stores weights; None if they differ.

    Stages name their loop over keys alike.
    """
    instructions = (i for body in kernel.bodies for i in body.instructions)
    if any(nested.loads(scores) for i in instructions for nested in i.bodies):
        return None
    found = {access.index for access in kernel.accesses() if access.buffer in (scores, weights)}
    return found.pop() if len(found) == 1 else None


def computed_score(
    matmul: ExternCall, score_rows: ScoreRows, buffers: Mapping[str, Buffer]
) -> Callable[[BodyRecorder, sympy.Expr], Value]:
    """Records a score in float32, with what a matmul adds to it."""
    contraction, name = contraction_of(matmul, buffers), str(matmul.outputs[0])
    assert contraction is not None

    def score(ops: BodyRecorder, index: sympy.Expr) -> Value:
        score = ops.load(name, index)
        if contraction.scale != 1:
            score = ops.mul(score, contraction.scale)
        places = {
            BATCH: score_rows.batch,
            ROW: score_rows.row,
            COLUMN: index - score_rows.first_key,
        }
        for bias in contraction.biases:
            loaded = ops.load(bias.buffer, sympy.expand(bias.index.xreplace(places)))
            added = ops.to_dtype(loaded, torch.float32)
            if bias.scale != 1:
                added = ops.mul(added, bias.scale)
            score = ops.to_dtype(ops.add(score, added), contraction.dtype)
        return score

    return score


def _needs_rounding(
    body: LoopBody,
    scores: Collection[str],
    dtype: torch.dtype,
    dtype_of: Callable[[str], torch.dtype],
    rows_and_keys: Set[sympy.Symbol],
) -> bool:
    """Whether conversions to 16 bits and back may tell which of ``scores`` are lost.

    A number of a whole matrix, such as a slope, hides none: it does not vary with ``rows_and_keys``.
    In float16 a score is lost in a sum with the lowest number, in float32 it is not; in bfloat16 in both.
    """

    def varies(index: sympy.Expr) -> bool:
        return not varying.isdisjoint(index.free_symbols)

    if dtype != torch.float16:
        return dtype == torch.float32
    varying = rows_and_keys | body.bound_symbols
    others = [load for load in body.loads() if load.buffer not in scores]
    numbers = [i.number for i in body.instructions if isinstance(i, Constant)]
    return (
        body.holds(Masked, Scalar)
        or any(dtype_of(i.buffer).is_floating_point and varies(i.index) for i in others)
        or any(MIN_EXACT < abs(number) < float("inf") for number in numbers)
    )


MIN_EXACT = 2048
"""The magnitude from which sums in float16 lose whole numbers."""


def without_rounding(
    body: LoopBody,
    scores: Collection[str],
    dtype: torch.dtype,
    dtype_of: Callable[[str], torch.dtype],
    score_rows: ScoreRows,
    loops: tuple[LoopVariable, ...],
) -> LoopBody:
    """``body``, at ``loops`` of which the last one is over keys, without conversions to ``dtype`` and back.

    As it is where they may tell which of ``scores`` are lost.
    """
    if _needs_rounding(body, scores, dtype, dtype_of, score_rows.positions | {loops[-1].symbol}):
        return body
    ops = BodyRecorder.over(loops, dtype_of, round_low_precision=False)
    result = Replayer(ops).replay(body)
    return without_unused(ops.body(result))
