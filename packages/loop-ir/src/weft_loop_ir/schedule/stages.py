"""From a group to a kernel: stages, forwarding of stored values, dead stores, local buffers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.bodies.edit import without_unused
from weft_loop_ir.bodies.replay import Replayer
from weft_loop_ir.expressions import integer, loop_symbol
from weft_loop_ir.ir import Kernel, LocalBuffer, LoopVariable, Stage
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.accesses import Extent, with_replaced
from weft_loop_ir.schedule.groups import Group, Member
from weft_loop_ir.schedule.loop_order import Nest, arranged
from weft_loop_ir.schedule.options import ScheduleOptions


def build_kernel(
    group: Group,
    buffer_dtype: Callable[[str], torch.dtype],
    is_private: Callable[[str], bool],
    options: ScheduleOptions,
) -> Kernel:
    """The kernel of ``group``.  ``is_private`` says that no other step reads a buffer, nor the caller."""
    outer = _loops("i", group.outer)
    inner = _loops("r", group.inner)
    builder = _Builder(group, outer, inner, buffer_dtype, is_private, options)
    stages = builder.stages()
    nest = arranged(Nest(outer, inner, stages), builder.all_dtypes())
    origins = sorted({origin for m in group.members for origin in m.node.origins})
    local = tuple(builder.local_buffers.values())
    return Kernel.of_stages("kernel", nest.outer, nest.stages, local, origins)


def _loops(prefix: str, extents: Sequence[Extent]) -> tuple[LoopVariable, ...]:
    return tuple(
        LoopVariable(loop_symbol(prefix, k), _expression(extent))
        for k, extent in enumerate(extents)
    )


def _expression(extent: Extent) -> sympy.Expr:
    return integer(extent) if isinstance(extent, int) else extent


@dataclass
class _Part:
    """The members of one stage, in order."""

    level: int
    spans_inner: bool
    members: list[Member] = field(default_factory=list)

    @property
    def has_reduction(self) -> bool:
        return any(m.node.reduction_loops for m in self.members)


def partition(group: Group) -> list[_Part]:
    """Order a group's members in stages.

    A stage that spans the inner loops comes before the once-per-outer-iteration stage of the same level; a
    member goes to the first stage after those it needs, where a reduction is complete, and not before one
    that is to read what it overwrites.
    """
    if not group.has_reduction:
        return [_Part(0, True, list(group.members))]
    level_of: dict[str, tuple[int, bool, bool]] = {}
    last_read: dict[str, tuple[int, int]] = {}  # by buffer: the last stage yet that reads it
    parts: dict[tuple[int, int], _Part] = {}
    for member in group.members:
        level = 0
        for name in member.node.reads:
            if name not in level_of:
                continue
            needed, needed_spans, is_reduction = level_of[name]
            later = member.spans_inner and (is_reduction or not needed_spans)
            level = max(level, needed + 1 if later else needed)
        place = 0 if member.spans_inner else 1
        for name in member.node.writes:
            read_level, read_place = last_read.get(name, (0, 0))
            level = max(level, read_level + (read_place > place))
        key = (level, place)
        for name in member.node.reads:
            last_read[name] = max(key, last_read.get(name, key))
        parts.setdefault(key, _Part(level, member.spans_inner)).members.append(member)
        for name in member.node.writes:
            level_of[name] = (level, member.spans_inner, _reduces(member))
    return [parts[key] for key in sorted(parts)]


def _reduces(member: Member) -> bool:
    """Whether what the member stores is known only after the inner loops."""
    return bool(member.node.reduction_loops) and not member.node.is_scan


class _Builder:
    def __init__(
        self,
        group: Group,
        outer: tuple[LoopVariable, ...],
        inner: tuple[LoopVariable, ...],
        buffer_dtype: Callable[[str], torch.dtype],
        is_private: Callable[[str], bool],
        options: ScheduleOptions,
    ) -> None:
        self.group = group
        self.outer = outer
        self.inner = inner
        self.buffer_dtype = buffer_dtype
        self.is_private = is_private
        self.options = options
        self.parts = partition(group)
        self.local_buffers: dict[str, LocalBuffer] = {}
        self._symbol_numbers = itertools.count()
        self._stage_of: dict[str, int] = {}
        self._spans: dict[str, bool] = {}
        for position, part in enumerate(self.parts):
            for member in part.members:
                for name in member.node.writes:
                    self._stage_of[name] = position
                    self._spans[name] = part.spans_inner and not _reduces(member)
        self._late_reads = self._read_in_later_stages()

    def _read_in_later_stages(self) -> set[str]:
        late = set()
        for position, part in enumerate(self.parts):
            for member in part.members:
                for name in member.node.reads:
                    if self._stage_of.get(name, position) < position:
                        late.add(name)
        return late

    def all_dtypes(self) -> Callable[[str], torch.dtype]:
        def dtype_of(name: str) -> torch.dtype:
            local = self.local_buffers.get(name)
            return self.buffer_dtype(name) if local is None else local.dtype

        return dtype_of

    def stages(self) -> tuple[Stage, ...]:
        self._choose_local_buffers()
        return tuple(self._stage(position, part) for position, part in enumerate(self.parts))

    def _choose_local_buffers(self) -> None:
        """Buffers that only later stages of this kernel read live for one outer iteration."""
        row: sympy.Expr = sympy.S.One
        for variable in self.inner:
            row = row * variable.size
        for name in self._stage_of:
            if name not in self._late_reads or not self.is_private(name):
                continue
            dtype = self.buffer_dtype(name)
            size = row if self._spans[name] else sympy.S.One
            known = isinstance(size, sympy.Integer)
            if known and int(size) * dtype.itemsize > self.options.max_local_bytes:
                continue
            self.local_buffers[name] = LocalBuffer(name, dtype, size)

    def _local_index(self, name: str) -> sympy.Expr:
        """The index of a local buffer: the row-major position in the inner loops, or 0."""
        if not self._spans[name]:
            return sympy.S.Zero
        index: sympy.Expr = sympy.S.Zero
        for variable in self.inner:
            index = index * variable.size + variable.symbol
        return sympy.expand_mul(index)

    def _stage(self, position: int, part: _Part) -> Stage:
        is_pointwise_kernel = not self.group.has_reduction
        inner = self.inner if part.spans_inner and not is_pointwise_kernel else ()
        loops = self.outer + inner
        rounds = self.options.round_low_precision
        ops = BodyRecorder.over(loops, self.buffer_dtype, self._symbol_numbers, rounds)
        ranges = ops.ranges
        stored: dict[tuple[str, sympy.Expr], Value] = {}
        kept_stores = self._kept_stores(part)

        def load(target: BodyRecorder, name: str, index: sympy.Expr) -> Value:
            index = ranges.simplify(index)
            if target is ops:
                value = stored.get((name, sympy.expand_mul(index)))
                if value is not None:
                    return value
            if name in self.local_buffers:
                return target.load(name, self._local_index(name))
            return target.load(name, index)

        def store(
            target: BodyRecorder, name: str, index: sympy.Expr, value: Value, mode: str | None
        ) -> None:
            index = ranges.simplify(index)
            if not part.has_reduction or self._spans[name]:
                # Members write an index in different forms: n*(m + 3), n*m + 3*n.
                stored[(name, sympy.expand_mul(index))] = value
            if name in kept_stores:
                local = name in self.local_buffers
                target.store(name, self._local_index(name) if local else index, value, mode)

        for member in part.members:
            index = _member_index(member, self.outer + self.inner)
            Replayer(ops, index, load, store).replay(member.node.body)
        return Stage(inner, without_unused(ops.body()), part.has_reduction)

    def _kept_stores(self, part: _Part) -> set[str]:
        """The buffers whose stores in this stage somebody reads: outside, or in a later stage.

        A nested body reads memory, not the values of its stage.
        """
        kept = set()
        nested = {
            name
            for member in part.members
            for i in member.node.body.instructions
            for body in i.bodies
            for name in body.reads
        }
        for member in part.members:
            for name in member.node.writes:
                if name in self._late_reads or not self.is_private(name) or name in nested:
                    kept.add(name)
        return kept


def _member_index(
    member: Member, all_loops: tuple[LoopVariable, ...]
) -> Callable[[sympy.Expr], sympy.Expr]:
    """The function that takes a member's index expression to the kernel's loop symbols."""
    symbols = tuple(v.symbol for v in member.node.all_loops)
    kernel_symbols = [v.symbol for v in all_loops]
    replacements: dict[sympy.Symbol, sympy.Expr] = {}
    for symbol, row in zip(symbols, member.mapping, strict=True):
        terms = [s * c for s, c in zip(kernel_symbols, row, strict=True) if c != 0]
        replacements[symbol] = sympy.Add(*terms)
    if all(a == b for a, b in replacements.items()):
        return lambda expression: expression
    cache: dict[sympy.Expr, sympy.Expr] = {}

    def rewrite(expression: sympy.Expr) -> sympy.Expr:
        known = cache.get(expression)
        if known is None:
            replaced = with_replaced(expression, symbols, replacements)
            known = cache[expression] = sympy.expand_mul(replaced)
        return known

    return rewrite
