"""Interpolation along the last dims, and its gradients: one table of kinds, any factor, one to three dims.

Each result along a dim is a weighted sum of a few elements, its taps.  Gradients are gathered: an element
goes over the results that it may be a tap of.

By the nearest neighbour an element is copied, from the place to which eager rounds.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.expressions import FloorDiv, to_expression
from weft_loop_ir.lowering.concatenation import bounds_mask, load_where, load_within
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype
from weft_loop_ir.lowering.pooling_windows import Term, fold, table
from weft_loop_ir.lowering.reductions import cast
from weft_loop_ir.lowering.registry import NoLowering, overload, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.recording import BodyRecorder

MAX_UNROLLED = 64
"""Results around an element that are unrolled in one body, in a gradient."""
CUBIC = -0.75
"""The free coefficient of cubic convolution, as torch and OpenCV choose it."""


@dataclass(frozen=True)
class Axis:
    """A dim of ``source`` elements that becomes one of ``target``.

    ``given`` is the factor that the caller named.  Places are computed in ``dtype``.
    """

    source: sympy.Expr
    target: sympy.Expr
    given: float | None
    align_corners: bool
    dtype: torch.dtype

    def scale(self, ops: BodyRecorder) -> Value:
        """How far apart two results are, in elements."""
        source, target = self.source, self.target
        if self.align_corners:
            if target == 1:
                return ops.constant(0.0, self.dtype)
            source, target = source - 1, target - 1
        elif self.given is not None:
            return ops.constant(1.0 / self.given, self.dtype)
        if self.is_static:
            return ops.constant(int(source) / int(target), self.dtype)
        if self.align_corners:  # one result is the first element
            target = sympy.Max(target, 1)
        return ops.truediv(ops.number(source, self.dtype), ops.number(target, self.dtype))

    def place(self, ops: BodyRecorder, result: sympy.Expr) -> Value:
        """Where a result lies among the elements."""
        position = ops.number(result, self.dtype)
        if self.align_corners:
            return ops.mul(position, self.scale(ops))
        return ops.sub(ops.mul(ops.add(position, 0.5), self.scale(ops)), 0.5)

    @property
    def is_static(self) -> bool:
        return isinstance(self.source, sympy.Integer) and isinstance(self.target, sympy.Integer)

    @property
    def last(self) -> sympy.Expr:
        return self.source - 1

    @property
    def whole_factor(self) -> int | None:
        """The factor, where it is whole and the caller names no other."""
        ratio = self.target / self.source if self.source != 0 else sympy.S.NaN
        whole = isinstance(ratio, sympy.Integer) and self.given in (None, float(ratio))
        return int(ratio) if whole and not self.align_corners else None

    def reached(self, reach: int) -> tuple[sympy.Expr, Callable[[sympy.Expr], sympy.Expr]]:
        """How many results may lie less than ``reach`` from an element, and the first of them.

        Raises :class:`NoLowering` where the sizes don't tell.
        """
        if self.align_corners:
            if not self.is_static:
                raise NoLowering("aligned corners of symbolic sizes")
            if self.source == 1 or self.target == 1:
                return self.target, lambda i: sympy.S.Zero
            source, target = self.source - 1, self.target - 1
            count = sympy.Integer(math.ceil(2 * reach * int(target) / int(source)))
            return count, lambda i: FloorDiv((i - reach) * target, source) + 1
        factor = self.whole_factor
        if factor is not None:
            start = (factor * (1 - 2 * reach) - 1) // 2 + 1
            return sympy.Integer(2 * reach * factor), lambda i: i * factor + start
        slack = 0 if self.is_exact() else 3
        count = FloorDiv(2 * reach * self.target + self.source - 1, self.source) + slack

        def first(i: sympy.Expr) -> sympy.Expr:
            twice = sympy.expand((2 * (i - reach) + 1) * self.target) - self.source
            return FloorDiv(twice, 2 * self.source) + 1

        if slack or sympy.Min(count, self.target) == count:
            return count, first
        held = sympy.Min(
            count, self.target
        )  # no more than there are, from one that all of them follow
        return held, lambda i: sympy.Max(0, sympy.Min(first(i), self.target - held))

    def is_exact(self) -> bool:
        """Whether results are spread over the whole source, not by a ``given`` factor that leaves a rest."""
        if self.given is None or self.target / self.source == sympy.Float(self.given):
            return True
        if not self.is_static:
            raise NoLowering("a given factor of symbolic sizes")
        if int(self.target) != math.floor(int(self.source) * self.given):
            raise NoLowering("a factor that is not the sizes'")
        return False


Tap = tuple[Value, Value]
"""An element's number and its weight."""


def _linear(ops: BodyRecorder, axis: Axis, result: sympy.Expr) -> list[Tap]:
    place = axis.place(ops, result)
    if not axis.align_corners:
        place = ops.maximum(place, 0.0)
    last = ops.number(axis.last, torch.int64)
    near = ops.minimum(ops.to_dtype(ops.floor(place), torch.int64), last)
    far = ops.minimum(ops.add(near, 1), last)
    weight = ops.sub(place, ops.to_dtype(near, axis.dtype))
    weight = ops.minimum(ops.maximum(weight, 0.0), 1.0)
    return [(near, ops.sub(1.0, weight)), (far, weight)]


def polynomial(ops: Any, dtype: torch.dtype, x: Value, *coefficients: float) -> Value:
    """The polynomial in ``x`` with these coefficients, that of the highest power first."""
    total: Value = ops.constant(coefficients[0], dtype)
    for coefficient in coefficients[1:]:
        total = ops.add(ops.mul(total, x), coefficient)
    return total


def cubic_weights(ops: Any, fraction: Value, dtype: torch.dtype) -> list[Value]:
    """The weights of the four elements around a place ``fraction`` after the second of them.

    Source: Keys, "Cubic convolution interpolation for digital image processing", 1981.
    """

    def near(x: Value) -> Value:
        return polynomial(ops, dtype, x, CUBIC + 2, -(CUBIC + 3), 0.0, 1.0)

    def far(x: Value) -> Value:
        return polynomial(ops, dtype, x, CUBIC, -5 * CUBIC, 8 * CUBIC, -4 * CUBIC)

    rest = ops.sub(1.0, fraction)
    return [far(ops.add(fraction, 1.0)), near(fraction), near(rest), far(ops.add(rest, 1.0))]


def _cubic(ops: BodyRecorder, axis: Axis, result: sympy.Expr) -> list[Tap]:
    place = axis.place(ops, result)
    last = ops.number(axis.last, torch.int64)
    start = ops.minimum(ops.to_dtype(ops.floor(place), torch.int64), last)
    fraction = ops.sub(place, ops.to_dtype(start, axis.dtype))
    fraction = ops.minimum(ops.maximum(fraction, 0.0), 1.0)
    taps: list[Tap] = []
    for step, weight in enumerate(cubic_weights(ops, fraction, axis.dtype), -1):
        element = ops.add(start, step)
        taps.append((ops.minimum(ops.maximum(element, 0), last), weight))
    return taps


@dataclass(frozen=True)
class Kind:
    """How one kind of interpolation weighs elements; ``reach``: taps are nearer to the place than that."""

    taps: Callable[[BodyRecorder, Axis, sympy.Expr], list[Tap]]
    reach: int


KINDS = {"linear": Kind(_linear, 1), "cubic": Kind(_cubic, 2)}


def axes_of(
    source: Sequence[Any],
    target: Sequence[Any],
    scales: Sequence[float | None],
    align_corners: bool,
    dtype: torch.dtype,
) -> list[Axis]:
    rank = len(target)
    given = [*scales, *[None] * (rank - len(scales))]
    named = [g if g is not None and g > 0 and not align_corners else None for g in given]
    sizes = zip(source, target, named, strict=True)
    axes = [
        Axis(to_expression(s), to_expression(t), g, align_corners, compute_dtype(dtype))
        for s, t, g in sizes
    ]
    if any(map(_may_ignore_factor, axes)):
        raise NoLowering("a factor that kernels may ignore")
    return axes


def _may_ignore_factor(axis: Axis) -> bool:
    """Whether eager may compute with the ratio of the sizes in place of a factor that is named.

    Some kernels copy where the sizes are equal (6 times 1.1), some halve places where one is the double.
    """
    if axis.given is None or axis.whole_factor is not None:
        return False
    if axis.is_static:
        return axis.target in (axis.source, 2 * axis.source)
    return True


def _interpolation(
    kind: Kind,
    context: LoweringContext,
    tensor: TensorValue,
    output_size: Sequence[Any],
    align_corners: bool,
    *scales: float | None,
) -> TensorValue:
    if not tensor.dtype.is_floating_point:
        raise NoLowering("interpolation of integers")
    rank = len(output_size)
    size = context.meta_size()
    compute = compute_dtype(tensor.dtype)
    axes = axes_of(tensor.size[-rank:], size[-rank:], scales, align_corners, compute)
    context.realize_computed(tensor)
    if _gains_by_dims(kind, tensor, axes):
        return _interpolation_by_dims(kind, context, tensor, size, axes, compute)

    def function(ops: BodyRecorder, index: Index) -> Value:
        taps = [
            [(ops.indirect_symbol(tap, a.source, False), weight) for tap, weight in along]
            for a, along in (
                (a, kind.taps(ops, a, i)) for a, i in zip(axes, index[-rank:], strict=True)
            )
        ]

        def total(place: Index) -> Value:
            if len(place) == rank:
                return ops.to_dtype(tensor.load(ops, (*index[:-rank], *place)), compute)
            parts = [ops.mul(total((*place, tap)), weight) for tap, weight in taps[len(place)]]
            return functools.reduce(ops.add, parts)

        return ops.to_dtype(total(()), tensor.dtype)

    count = 4 * (2 * kind.reach) ** rank
    return context.result(function, [tensor], count, True)


def _gains_by_dims(kind: Kind, tensor: TensorValue, axes: Sequence[Axis]) -> bool:
    """Whether doing one dim after another halves how often elements are looked up along a row.

    On a GPU the memory between would cost more.
    """
    if tensor.device.type != "cpu" or tensor.stride is None or tensor.stride[-1] != 1:
        return False
    others = axes[:-1]
    if not others or not all(axis.is_static for axis in others):
        return False
    taps = 2 * kind.reach
    before = math.prod(int(axis.target) * taps for axis in others)
    return 2 * math.prod(int(axis.source) for axis in others) <= before


def _interpolation_by_dims(
    kind: Kind,
    context: LoweringContext,
    tensor: TensorValue,
    size: tuple[sympy.Expr, ...],
    axes: Sequence[Axis],
    compute: torch.dtype,
) -> TensorValue:
    """One dim after another, the last first: then all but that read neighbouring elements in a row.

    Sums have the order that they have in one kernel.
    """
    current = tensor
    for axis, dim in reversed(
        list(zip(axes, range(len(size) - len(axes), len(size)), strict=True))
    ):
        is_last = axis is axes[0]
        dtype = tensor.dtype if is_last else compute
        function = functools.partial(_along, kind, axis, current, dim, compute, dtype)
        along = (*current.size[:dim], size[dim], *current.size[dim + 1 :])
        count = 8 * kind.reach
        current = context.pointwise(along, dtype, tensor.device, function, [current], count, True)
        if not is_last:
            context.realize(current)
    return current


def _along(
    kind: Kind,
    axis: Axis,
    source: TensorValue,
    dim: int,
    compute: torch.dtype,
    dtype: torch.dtype,
    ops: BodyRecorder,
    index: Index,
) -> Value:
    """The weighted sum of the taps along ``dim``, the only one in which ``source`` has another size."""

    def part(tap: Value, weight: Value) -> Value:
        place = ops.indirect_symbol(tap, axis.source, False)
        element = source.load(ops, (*index[:dim], place, *index[dim + 1 :]))
        return ops.mul(ops.to_dtype(element, compute), weight)

    parts = itertools.starmap(part, kind.taps(ops, axis, index[dim]))
    return ops.to_dtype(functools.reduce(ops.add, parts), dtype)


def _interpolation_backward(
    kind: Kind,
    context: LoweringContext,
    grad: TensorValue,
    output_size: Sequence[Any],
    input_size: Sequence[Any],
    align_corners: bool,
    *scales: float | None,
) -> TensorValue:
    rank = len(output_size)
    size = context.meta_size()
    compute = compute_dtype(grad.dtype)
    axes = axes_of(size[-rank:], grad.size[-rank:], scales, align_corners, compute)
    context.realize_computed(grad)
    if all(axis.whole_factor is not None for axis in axes):
        extents, term = _by_formula(kind, grad, axes, compute)
    else:
        extents, term = _by_table(kind, context, grad, axes, compute)
    total = fold(
        context, "sum", size, extents, term, [grad], compute, limit=MAX_UNROLLED, instructions=8
    )
    return cast(context, total, grad.dtype)


def _by_formula(
    kind: Kind, grad: TensorValue, axes: list[Axis], compute: torch.dtype
) -> tuple[list[sympy.Expr], Term]:
    """Whole factors: the results that an element reaches are at even distances, and so runs of lanes."""
    rank = len(axes)
    reached = [axis.reached(kind.reach) for axis in axes]

    def term(ops: BodyRecorder, index: Index, offsets: Index) -> Value:
        here = index[-rank:]
        results = [first(i) + o for (_, first), i, o in zip(reached, here, offsets, strict=True)]
        bounds = list(zip(results, grad.size[-rank:], strict=True))
        part, _ = load_within(ops, grad, (*index[:-rank], *results), compute, 0.0, bounds)
        for axis, result, i in zip(axes, results, here, strict=True):
            part = ops.mul(part, _share(ops, kind, axis, result, i)[0])
        return part

    return [count for count, _ in reached], term


def _by_table(
    kind: Kind, context: LoweringContext, grad: TensorValue, axes: list[Axis], compute: torch.dtype
) -> tuple[list[sympy.Expr], Term]:
    """Any factors: for each dim a table of the results that an element is a tap of, and of its weights."""
    rank = len(axes)
    reached = [axis.reached(kind.reach) for axis in axes]
    results, weights = [], []
    for axis, (count, first) in zip(axes, reached, strict=True):

        def result(ops: BodyRecorder, index: Index, axis: Axis = axis, first: Any = first) -> Value:
            place = ops.ranges.simplify(first(index[0])) + index[1]
            mine = _share(ops, kind, axis, place, index[0])[1]
            inside = bounds_mask(ops, [(place, axis.target)])
            mine = mine if inside is None else ops.logical_and(mine, inside)
            return ops.where(mine, ops.index_expr(place, torch.int64), -1)

        def weight(ops: BodyRecorder, index: Index, axis: Axis = axis, first: Any = first) -> Value:
            place = ops.ranges.simplify(first(index[0])) + index[1]
            return _share(ops, kind, axis, place, index[0])[0]

        size = (axis.source, count)
        results.append(table(context, size, torch.int64, grad.device, result))
        weights.append(table(context, size, compute, grad.device, weight))

    def term(ops: BodyRecorder, index: Index, offsets: Index) -> Value:
        places = list(zip(index[-rank:], offsets, strict=True))
        taken = [r.load(ops, place) for r, place in zip(results, places, strict=True)]
        inside = functools.reduce(ops.logical_and, [ops.ge(t, 0) for t in taken])

        def value(nested: Any) -> Value:
            where = [
                nested.indirect_symbol(r.load(nested, place), axis.target, False)
                for r, place, axis in zip(results, places, axes, strict=True)
            ]
            part = nested.to_dtype(grad.load(nested, (*index[:-rank], *where)), compute)
            for w, place in zip(weights, places, strict=True):
                part = nested.mul(part, w.load(nested, place))
            return part  # type: ignore[no-any-return]

        return ops.masked(inside, value, 0.0)

    return [count for count, _ in reached], term


def _share(
    ops: BodyRecorder, kind: Kind, axis: Axis, result: sympy.Expr, element: sympy.Expr
) -> tuple[Value, Value]:
    """The weight that the element has in the result, 0 unless it is one of its taps; and whether it is."""
    here = ops.index_expr(element, torch.int64)
    taps = [(ops.eq(tap, here), weight) for tap, weight in kind.taps(ops, axis, result)]
    shares = [ops.where(mine, weight, 0.0) for mine, weight in taps]
    return functools.reduce(ops.add, shares), functools.reduce(
        ops.logical_or, [mine for mine, _ in taps]
    )


_OPERATORS = (
    # operator, kind
    ("upsample_linear1d", "linear"),
    ("upsample_bilinear2d", "linear"),
    ("upsample_trilinear3d", "linear"),
    ("upsample_bicubic2d", "cubic"),
)
for (_name, _kind), (_suffix, _rule) in itertools.product(
    _OPERATORS, (("", _interpolation), ("_backward", _interpolation_backward))
):
    _operator = overload(f"{_name}{_suffix}")
    if _operator is not None:
        register_lowering(_operator)(functools.partial(_rule, KINDS[_kind]))


# -- by nearest neighbour ------------------------------------------------------------------------------


MAX_EXACT_FACTOR = 40
"""Up to here the rounded product with a whole factor's inverse never falls short of a whole number."""


def _whole_factor(axis: Axis) -> int | None:
    factor = axis.whole_factor
    return factor if factor is not None and factor <= MAX_EXACT_FACTOR else None


def _neighbour(ops: BodyRecorder, axis: Axis, result: sympy.Expr, centred: bool) -> Value:
    """The element that a result is copied from.

    Eager computes its place in ``axis.dtype`` and rounds it to float32 before it takes the floor.
    """
    position = ops.number(result, axis.dtype)
    if centred:
        position = ops.add(position, 0.5)
    place = ops.mul(position, axis.scale(ops))
    whole = ops.floor(ops.to_dtype(place, torch.float32))
    last = ops.number(axis.last, torch.int64)
    return ops.minimum(ops.to_dtype(whole, torch.int64), last)


def _upsample(
    centred: bool,
    context: LoweringContext,
    tensor: TensorValue,
    output_size: Sequence[Any],
    *scales: float | None,
) -> TensorValue:
    size = context.meta_size()
    rank = len(size) - 2
    axes = axes_of(tensor.size[-rank:], size[-rank:], scales, False, _place_dtype(tensor, rank))

    def source(ops: BodyRecorder, axis: Axis, i: sympy.Expr) -> sympy.Expr:
        factor = _whole_factor(axis)
        if factor is not None:
            return ops.ranges.floor_div(i, sympy.Integer(factor))
        return ops.indirect_symbol(_neighbour(ops, axis, i, centred), axis.source, False)

    def function(ops: BodyRecorder, index: Index) -> Value:
        where = (source(ops, axis, i) for axis, i in zip(axes, index[-rank:], strict=True))
        return tensor.load(ops, (*index[:-rank], *where))

    return context.result(function, [tensor], 6, True)


def _place_dtype(tensor: TensorValue, rank: int) -> torch.dtype:
    """The dtype of places: eager's kernel for two dims computes in float32 for float64 tensors too."""
    return tensor.dtype if tensor.dtype == torch.float64 and rank != 2 else torch.float32


def _upsample_backward(
    centred: bool,
    context: LoweringContext,
    grad: TensorValue,
    output_size: Sequence[Any],
    input_size: Sequence[Any],
    *scales: float | None,
) -> TensorValue:
    """The sum of the results that each element was copied to: a block of them for whole factors."""
    size = context.meta_size()
    rank = len(size) - 2
    compute = compute_dtype(grad.dtype)
    axes = axes_of(size[-rank:], grad.size[-rank:], scales, False, torch.float32)
    factors = [_whole_factor(axis) for axis in axes]
    extents = [
        sympy.Integer(factor) if factor is not None else _most_copies(axis)
        for axis, factor in zip(axes, factors, strict=True)
    ]
    context.realize_computed(grad)

    def term(ops: BodyRecorder, index: Index, offsets: Index) -> Value:
        results: list[sympy.Expr] = []
        bounds: list[tuple[sympy.Expr, sympy.Expr]] = []
        mine: list[Value] = []
        for axis, factor, i, o in zip(axes, factors, index[-rank:], offsets, strict=True):
            if factor is not None:
                results.append(i * factor + o)
                continue
            first = ops.ranges.floor_div(sympy.expand(i * axis.target), axis.source) - 1
            results.append(first + o)
            bounds.append((first + o, axis.target))
            neighbour = _neighbour(ops, axis, first + o, centred)
            mine.append(ops.eq(neighbour, ops.index_expr(i, torch.int64)))
        mask = bounds_mask(ops, bounds)
        tests = mine if mask is None else [mask, *mine]
        mask = functools.reduce(ops.logical_and, tests) if tests else None
        return load_where(ops, mask, grad, (*index[:-rank], *results), compute, 0.0)

    total = fold(context, "sum", size, extents, term, [grad], compute)
    return cast(context, total, grad.dtype)


def _most_copies(axis: Axis) -> sympy.Expr:
    """How many results an element may be copied to, and the slack of rounding and of a given factor."""
    axis.is_exact()
    return FloorDiv(axis.target + axis.source - 1, axis.source) + 4


for (_name, _centred), _rank in itertools.product(
    (("upsample_nearest", False), ("_upsample_nearest_exact", True)), (1, 2, 3)
):
    for _suffix, _rule in (("", _upsample), ("_backward", _upsample_backward)):
        _operator = overload(f"{_name}{_rank}d{_suffix}")
        if _operator is not None:
            register_lowering(_operator)(functools.partial(_rule, _centred))
