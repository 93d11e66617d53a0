"""Attention that a library is to compute, as a kernel that may take the place of the call.

The queries of heads that share keys are rows of one matrix where they lie so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch

from weft_loop_ir.attention.expansion import add_zeros
from weft_loop_ir.attention.find_attention import AttentionKernel, bounds_of_keys
from weft_loop_ir.attention.masks import with_masks_computed
from weft_loop_ir.attention.operands import MatrixOperand, ScoreRows
from weft_loop_ir.bodies import LoopBody
from weft_loop_ir.digits import Digit
from weft_loop_ir.expressions import FloorDiv, Mod, contiguous_stride, loop_symbol
from weft_loop_ir.ir import (
    Buffer,
    BufferKind,
    BufferView,
    ExternCall,
    Kernel,
    Layout,
    LoopVariable,
    Schedule,
)
from weft_loop_ir.loop_nests import LoopNests
from weft_loop_ir.ops import HALVES
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.kernel_names import kernel_name, renamed
from weft_loop_ir.schedule.options import ScheduleOptions
from weft_loop_ir.schedule.replaced_steps import ReplacedSteps

aten = torch.ops.aten

CALLS: Mapping[Any, str | None] = {
    aten._scaled_dot_product_flash_attention.default: None,
    aten._scaled_dot_product_efficient_attention.default: "attn_bias",
    aten._scaled_dot_product_cudnn_attention.default: "attn_bias",
    aten._scaled_dot_product_flash_attention_for_cpu.default: "attn_mask",
}
"""What their masks are called, which are added to scores."""
HIDING = torch.float16
"""Whose lowest number hides a key: torch gives cuDNN masks of truth values so, for bfloat16 too."""
BATCH = MatrixOperand.batch
COUNTERS = "attention_counters"
"""One buffer of all kernels, none of which leaves anything in it."""


def replace_attention_calls(
    schedule: Schedule,
    accept: Callable[[AttentionKernel], bool],
    options: ScheduleOptions | None = None,
) -> Schedule:
    """``schedule`` with kernels for those calls of a library's attention that ``accept`` says are to be.

    Its memory is planned anew, by ``options``.
    """
    around = ReplacedSteps(schedule)
    found: dict[int, AttentionKernel] = {}
    for place, call in around:
        if isinstance(call, ExternCall) and call.operator in CALLS:
            attention = _attention(call, place, schedule, around)
            if attention is not None and accept(attention):
                found[place] = attention
    if found:
        zeros = _zeros(max(int(a.score_rows.batches) for a in found.values()), found, around)
        first, *others = found
        around.put([first], first, [zeros, found[first]])
        for place in others:
            around.put([place], place, [found[place]])
    return around.planned(options)


def _zeros(count: int, readers: Mapping[int, AttentionKernel], around: ReplacedSteps) -> Kernel:
    """What makes the counters of ``readers``, which lie in one buffer."""
    attention = next(iter(readers.values()))
    assert attention.counters is not None
    device = around.buffers[attention.out.buffer].layout.device
    size = (sympy.Integer(count),)
    layout = Layout(device, torch.int32, size, contiguous_stride(size))
    around.add(Buffer(attention.counters, BufferKind.INTERMEDIATE, layout))
    nests = LoopNests(renamed(attention.name, "counters"), around.buffers)
    add_zeros(nests, attention.counters, size[0])
    (kernel,) = nests.expansion().kernels
    return kernel


def _attention(
    call: ExternCall, place: int, schedule: Schedule, around: ReplacedSteps
) -> AttentionKernel | None:
    """The kernel that could take the place of ``call``; None where there is none."""
    given = call.named_arguments
    query, key, value = (given[name] for name in ("query", "key", "value"))
    mask = given.get(CALLS[call.operator] or "")
    result, *others = call.outputs
    views = [query, key, value, *([] if mask is None else [mask])]
    sizes = [n for view in views for n in (*view.size, *view.stride, view.offset)]
    if result is None or any(n is not None and around.readers(n) for n in others):
        return None
    if given.get("dropout_p") or given.get("is_causal") or call.holds or call.defines:
        return None
    if any(around.is_returned(n) for n in call.outputs if n is not None):
        return None  # strides of dims of one element are the library's own
    if not all(n.is_Integer for n in sizes) or 0 in (*query.size, *key.size, *value.size):
        return None
    if query.dtype not in HALVES or any(view.dtype != query.dtype for view in views):
        return None
    if not around.is_made_at(result, place) or result in {view.buffer for view in views}:
        return None
    rows = _Rows.of(query, key, schedule.buffers[result].layout)
    if rows is None:
        return None
    scale = given.get("scale")
    scale = 1 / math.sqrt(int(query.size[3])) if scale is None else scale
    if not isinstance(scale, int | float):
        return None
    return rows.kernel(call, value, mask, float(scale), (place, schedule, around))


class _Rows:
    """The loops over images, heads of keys, heads that share them and queries, of a call's matrices."""

    def __init__(self, query: BufferView, key: BufferView, packs_heads: bool) -> None:
        images, heads, queries, _ = query.size
        self.query, self.key, self.packs_heads = query, key, packs_heads
        self.group = heads / key.size[1]
        names = ("image", "head", "member", "query")
        extents = (images, key.size[1], self.group, queries)
        self.loops = tuple(
            LoopVariable(loop_symbol(name, 0), sympy.sympify(n))
            for name, n in zip(names, extents, strict=True)
        )
        self.keys = LoopVariable(loop_symbol("key", 0), key.size[2])

    @classmethod
    def of(cls, query: BufferView, key: BufferView, result: Layout) -> _Rows | None:
        """The rows of heads that have the same keys together, where they lie so; None if none are."""
        heads, queries = query.size[1:3]
        if heads % key.size[1] != 0:
            return None
        group = heads / key.size[1]
        lies = [view.stride[1] - view.stride[2] * queries for view in (query, result)]
        packs_heads = bool(group == 1 or queries == 1 or all(step == 0 for step in lies))
        return cls(query, key, packs_heads)

    @property
    def score_rows(self) -> ScoreRows:
        image, head, member, query = (loop.symbol for loop in self.loops)
        sizes = [loop.size for loop in self.loops]
        steps = contiguous_stride(tuple(sizes))
        digits = tuple(
            Digit(loop, step)
            for loop, step in zip(self.loops[::-1], steps[::-1], strict=True)
            if loop.size != 1
        )
        inside = 2 if self.packs_heads else 3
        rows = sympy.prod(sizes[inside:])
        batches = sympy.prod(sizes[:inside])
        symbols = {loop.symbol: sympy.S.Zero for loop in self.loops if loop.size == 1}
        row = query + (member * sizes[3] if self.packs_heads else 0)
        batch = image * sizes[1] + head
        batch = batch if self.packs_heads else batch * self.group + member
        row, batch = (sympy.expand(e.xreplace(symbols)) for e in (row, batch))
        number = sympy.Add(*(d.loop.symbol * d.step for d in digits))
        first = sympy.expand(number * self.keys.size)
        return ScoreRows(digits, batches, rows, batch, row, row, first)

    def _matrices(
        self, view: BufferView | Layout, is_of_keys: bool
    ) -> tuple[sympy.Expr, sympy.Expr]:
        """Where a matrix begins, by ``BATCH``, and the step between its rows."""
        heads = self.key.size[1]
        image, head = FloorDiv(BATCH, heads), Mod(BATCH, heads)
        if not self.packs_heads:
            count = heads * self.group
            image, head = FloorDiv(BATCH, count), Mod(BATCH, count)
            head = FloorDiv(head, self.group) if is_of_keys else head
        elif not is_of_keys:
            head = head * self.group
        if self.loops[0].size == 1:
            image = sympy.S.Zero
            head = head.xreplace({Mod(BATCH, heads): BATCH, Mod(BATCH, heads * self.group): BATCH})
        base = view.offset + image * view.stride[0] + head * view.stride[1]
        is_member = (
            self.packs_heads and not is_of_keys and self.query.size[2] == 1 and self.group != 1
        )
        return sympy.expand(base), view.stride[1 if is_member else 2]

    def operand(self, buffer: str, view: BufferView | Layout, is_of_keys: bool) -> MatrixOperand:
        base, step = self._matrices(view, is_of_keys)
        score_rows = self.score_rows
        count = self.keys.size if is_of_keys else score_rows.queries
        size = (score_rows.batches, count, view.size[3])
        return MatrixOperand(buffer, size, base, (step, view.stride[3]))

    def kernel(
        self,
        call: ExternCall,
        value: BufferView,
        mask: BufferView | None,
        scale: float,
        where: tuple[int, Schedule, ReplacedSteps],
    ) -> AttentionKernel:
        place, schedule, around = where
        result, scores = str(call.outputs[0]), f"{call.name}_scores"
        score_rows, loops = self.score_rows, (*self.loops, self.keys)

        def dtype_of(name: str) -> torch.dtype:
            return torch.float32 if name == scores else schedule.buffers[name].layout.dtype

        def writer(name: str) -> Kernel | None:
            return around.writer(name, place)

        body = self._score(scores, mask, scale, score_rows, dtype_of)
        if mask is not None:
            body = with_masks_computed(body, (scores,), self.loops, self.keys, schedule, writer)
        layout = schedule.buffers[result].layout
        of_scores = Layout(
            layout.device,
            HIDING,
            (score_rows.batches, score_rows.queries, self.keys.size),
            (),
        )
        query = self.operand(self.query.buffer, self.query, False)
        key, values = (self.operand(view.buffer, view, True) for view in (self.key, value))
        reads = [query.buffer, key.buffer, values.buffer, *(n for n in body.reads if n != scores)]
        reads.append(COUNTERS)
        return AttentionKernel(
            name=f"{kernel_name([call.operator._schema.name])}_{call.name}",
            outer=self.loops,
            stages=(),
            local_buffers=(),
            reads=tuple(dict.fromkeys(reads)),
            writes=(result, COUNTERS),
            origins=(call.origin,),
            query=query,
            key=key.turned(),
            value=values,
            out=self.operand(result, layout, False),
            score=body,
            scores=scores,
            score_rows=score_rows,
            key_loop=self.keys,
            bounds=bounds_of_keys(body, scores, score_rows, loops, of_scores),
            hidden_are_zero=True,
            kept=(),
            apart=(call,),
            counters=COUNTERS,
        )

    def _score(
        self,
        scores: str,
        mask: BufferView | None,
        scale: float,
        score_rows: ScoreRows,
        dtype_of: Callable[[str], torch.dtype],
    ) -> LoopBody:
        """A score by ``scale`` and the ``mask``."""
        key = self.keys.symbol
        ops = BodyRecorder.over((*self.loops, self.keys), dtype_of)
        score = ops.mul(ops.load(scores, score_rows.first_key + key), scale)
        if mask is not None:
            image, head, member, query = (loop.symbol for loop in self.loops)
            places = (image, head * self.group + member, query, key)[4 - len(mask.size) :]
            pairs = zip(mask.size, mask.stride, places, strict=True)
            index = mask.offset + sympy.Add(*(p * step for n, step, p in pairs if n != 1))
            added = ops.load(mask.buffer, sympy.expand(index))
            score = ops.add(score, ops.to_dtype(added, torch.float32))
        return ops.body(score)
