"""Which calls of operators are contractions: a table of rules, one for each operator.

A rule takes the call and the schedule's buffers and gives a :class:`Contraction`, or None for arguments that
it does not handle; the library runs those.

A convolution is over channels, for each tap of the weight's window.  Where the result lies channels-last, its
pixels are rows and its channels columns; where it lies channels-first, each image is a matmul of a batch
whose rows are channels and whose columns are pixels.  Where each channel is convolved by itself there is no
matmul: the taps are added up element by element.  Elements are loaded from the image itself, so a convolution
of 1 x 1 copies nothing, with steps or without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import sympy
import torch

from weft_loop_ir.contractions.contraction import (
    BATCH,
    COLUMN,
    INNER,
    ROW,
    TAP,
    Bias,
    Contraction,
    Groups,
    Operand,
)
from weft_loop_ir.expressions import FloorDiv, Mod
from weft_loop_ir.index_simplify import ranges_for
from weft_loop_ir.ir import Buffer, BufferView, ExternCall, is_dense

aten = torch.ops.aten

Rule = Callable[[ExternCall, Mapping[str, Buffer]], Contraction | None]
RULES: dict[Any, Rule] = {}
"""Operators to their rules."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""Of operands and results; sums are float32."""


def rule(*operators: Any) -> Callable[[Rule], Rule]:
    """Enter a function into the table."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return enter


def contraction_of(call: ExternCall, buffers: Mapping[str, Buffer]) -> Contraction | None:
    """What ``call`` computes, if it is a contraction of one dtype and has one result, dense by rows."""
    function = RULES.get(call.operator)
    if function is None or call.holds or call.defines or len(call.outputs) != 1:
        return None
    (name,) = call.outputs
    if name is None:
        return None
    found = function(call, buffers)
    if found is None:
        return None
    operands = {found.left.buffer, found.right.buffer, *(a.buffer for a in found.biases)}
    layout = buffers[name].layout
    dtypes = {buffers[n].layout.dtype for n in operands} | {layout.dtype}
    if dtypes != {found.dtype} or found.dtype not in DTYPES:
        return None
    return found


def matmul_operands(call: ExternCall) -> tuple[BufferView, BufferView, BufferView | None]:
    """The left operand, the right one and what is added by ``mm``, ``bmm``, ``addmm`` or ``baddbmm``."""
    *added, left, right = call.arguments
    return left, right, added[0] if added else None


def element(view: BufferView, *places: sympy.Expr) -> sympy.Expr:
    """The position of an element of ``view``; of a dimension of one element the first."""
    pairs = zip(view.size, view.stride, places, strict=True)
    terms = [place * stride for size, stride, place in pairs if size != 1]
    return sympy.expand(sympy.Add(view.offset, *terms))


def operand(view: BufferView, *places: sympy.Expr) -> Operand:
    """``view`` as an operand of a matmul."""
    return Operand(view.buffer, element(view, *places))


def _scaled(call: ExternCall, contraction: Contraction, bias: BufferView) -> Contraction | None:
    """``contraction`` by ``alpha`` and ``bias`` by ``beta``, the keywords."""
    factors = {"beta": 1, "alpha": 1, **call.keywords}
    if set(factors) != {"beta", "alpha"}:
        return None
    beta, alpha = (_number(factors[k]) for k in ("beta", "alpha"))
    if beta is None or alpha is None:
        return None
    places = (BATCH, ROW, COLUMN)[3 - len(bias.size) :]
    index = element(bias, *places)
    # with a scale of 0 the bias does not count, NaN or not
    biases = () if beta == 0 else (Bias(bias.buffer, index, beta),)
    return replace(contraction, biases=biases, scale=alpha)


def _number(value: Any) -> float | None:
    if isinstance(value, sympy.Integer):
        return float(value)
    return float(value) if isinstance(value, int | float) else None


def _matmul(left: BufferView, right: BufferView) -> Contraction:
    batches = len(left.size) - 2
    places = (BATCH,) * batches
    return Contraction(
        left.size[0] if batches else sympy.S.One,
        left.size[-2],
        right.size[-1],
        left.size[-1],
        operand(left, *places, ROW, INNER),
        operand(right, *places, INNER, COLUMN),
        left.dtype,
    )


def _matrix_and_vector(matrix: BufferView, vector: BufferView) -> Contraction:
    """A row of results: the vector is the left operand, the matrix the right one, turned."""
    return Contraction(
        sympy.S.One,
        sympy.S.One,
        matrix.size[0],
        matrix.size[1],
        operand(vector, INNER),
        operand(matrix, COLUMN, INNER),
        matrix.dtype,
    )


def _sum_of_batch(left: BufferView, right: BufferView) -> Contraction:
    """The batch is one more place that is added up over."""
    return Contraction(
        sympy.S.One,
        left.size[1],
        right.size[2],
        left.size[2],
        operand(left, TAP, ROW, INNER),
        operand(right, TAP, INNER, COLUMN),
        left.dtype,
        taps=left.size[0],
    )


def _multiplied(
    contract: Callable[[BufferView, BufferView], Contraction],
    call: ExternCall,
    buffers: Mapping[str, Buffer],
) -> Contraction | None:
    """What ``contract`` says of the two last arguments, added to the first where there are three."""
    views = call.arguments
    if len(views) not in (2, 3) or not all(isinstance(a, BufferView) for a in views):
        return None
    if not is_dense(buffers[str(call.outputs[0])].layout):
        return None
    left, right, added = matmul_operands(call)
    contraction = contract(left, right)
    if added is not None:
        return _scaled(call, contraction, added)
    return None if call.keywords else contraction


for _contract, _operators in (
    (_matmul, (aten.mm, aten.bmm, aten.addmm, aten.baddbmm)),
    (_matrix_and_vector, (aten.mv, aten.addmv)),
    (_sum_of_batch, (aten.addbmm,)),
):
    rule(*(operator.default for operator in _operators))(partial(_multiplied, _contract))


def _grouped(call: ExternCall, buffers: Mapping[str, Buffer]) -> Contraction | None:
    """Rows in groups, each times its own matrix; the ends of the groups are in memory."""
    left, right, *others = [*call.arguments, *call.keywords.values()]
    views = [a for a in others if isinstance(a, BufferView)]
    if any(a is not None and not isinstance(a, BufferView) for a in others) or len(views) != 1:
        return None
    (ends,) = views
    if (
        len(left.size) != 2
        or len(right.size) != 3
        or not is_dense(buffers[str(call.outputs[0])].layout)
    ):
        return None
    numbers = (ends.size[0], ends.stride[0], ends.offset)
    if ends.dtype is not torch.int32 or not all(n.is_Integer for n in numbers):
        return None
    return Contraction(
        sympy.S.One,
        left.size[0],
        right.size[2],
        left.size[1],
        operand(left, ROW, INNER),
        operand(right, BATCH, INNER, COLUMN),
        left.dtype,
        groups=Groups(ends.buffer, int(ends.offset), int(ends.stride[0]), int(ends.size[0])),
    )


if hasattr(aten, "_grouped_mm"):  # since torch 2.8
    rule(aten._grouped_mm.default)(_grouped)


# -- convolutions --------------------------------------------------------------------------------------


@rule(aten.convolution.default)
def convolution(call: ExternCall, buffers: Mapping[str, Buffer]) -> Contraction | None:
    """A convolution of all channels with all, or of each by itself; of static sizes."""
    image, weight, bias, steps, borders, gaps, transposed, _, groups = call.arguments
    result = buffers[str(call.outputs[0])]
    numbers = [*steps, *borders, *gaps, *result.layout.size, *image.size, *weight.size]
    if call.keywords or transposed or not all(sympy.sympify(n).is_Integer for n in numbers):
        return None
    if 0 in (*result.layout.size, *image.size, *weight.size):
        return None
    dimensions = len(weight.size) - 2
    if len(image.size) != dimensions + 2:
        return None
    by_channel = groups != 1
    if by_channel and not (groups == image.size[1] == weight.size[0]):
        return None
    window = _Window(image, weight, *(_each(n, dimensions) for n in (steps, borders, gaps)))
    channels_last = (0, *range(2, dimensions + 2), 1)
    if is_dense(result.layout, channels_last):
        return window.channels_last(result, bias, by_channel)
    if not is_dense(result.layout):
        return None
    if by_channel:
        return window.each_channel_first(result, bias)
    return window.channels_first(result, bias)


def _each(numbers: Sequence[int], dimensions: int) -> list[int]:
    """A number for each dimension, of which one may be given for all."""
    given = [int(n) for n in numbers]
    return given * dimensions if len(given) == 1 else given


class _Window:
    """The places of an image and a weight that make a pixel of the result."""

    def __init__(
        self,
        image: BufferView,
        weight: BufferView,
        steps: Sequence[int],
        borders: Sequence[int],
        gaps: Sequence[int],
    ) -> None:
        self.image = image
        self.weight = weight
        self.steps = steps
        self.borders = borders
        self.gaps = gaps
        self.taps = math.prod(int(n) for n in weight.size[2:])
        self.tap = _digits(TAP if self.taps > 1 else sympy.S.Zero, weight.size[2:])

    def _in_image(
        self, number: sympy.Expr, channel: sympy.Expr, pixel: Sequence[sympy.Expr]
    ) -> Operand:
        """What image ``number`` has under the window that makes ``pixel``."""
        places = [
            p * step + t * gap - border
            for p, step, t, gap, border in zip(
                pixel, self.steps, self.tap, self.gaps, self.borders, strict=True
            )
        ]
        reach = [(int(k) - 1) * gap for k, gap in zip(self.weight.size[2:], self.gaps, strict=True)]
        sizes = self.image.size[2:]
        inside = [
            (place, size)
            for place, size, border, more in zip(places, sizes, self.borders, reach, strict=True)
            if border or more
        ]
        view = self.image
        index = sympy.Add(
            view.offset,
            *(
                place * stride
                for place, stride in zip((number, channel, *places), view.stride, strict=True)
            ),
        )
        # a window of 1 x 1 goes through rows of dense pixels as through those of a matrix
        return Operand(view.buffer, ranges_for(()).simplify(sympy.expand(index)), tuple(inside))

    def _in_weight(self, output: sympy.Expr, channel: sympy.Expr) -> Operand:
        return Operand(self.weight.buffer, element(self.weight, output, channel, *self.tap))

    def channels_last(
        self, result: Buffer, bias: BufferView | None, by_channel: bool
    ) -> Contraction:
        """Rows are the pixels of all images, columns are channels."""
        images, channels, *extents = result.layout.size
        number, *pixel = _digits(ROW, (images, *extents))
        inner = sympy.S.One if by_channel else self.image.size[1]
        channel = COLUMN if by_channel else INNER
        return Contraction(
            sympy.S.One,
            images * math.prod(int(n) for n in extents),
            channels,
            inner,
            self._in_image(number, channel, pixel),
            self._in_weight(COLUMN, sympy.S.Zero if by_channel else INNER),
            result.layout.dtype,
            taps=sympy.Integer(self.taps),
            biases=_biases(bias, COLUMN),
            by_channel=by_channel,
            is_convolution=True,
        )

    def channels_first(self, result: Buffer, bias: BufferView | None) -> Contraction:
        """A batch of images; rows are channels, columns are pixels."""
        images, channels, *extents = result.layout.size
        return Contraction(
            images,
            channels,
            sympy.Integer(math.prod(int(n) for n in extents)),
            self.image.size[1],
            self._in_weight(ROW, INNER),
            self._in_image(BATCH, INNER, _digits(COLUMN, extents)),
            result.layout.dtype,
            taps=sympy.Integer(self.taps),
            biases=_biases(bias, ROW),
            is_convolution=True,
        )

    def each_channel_first(self, result: Buffer, bias: BufferView | None) -> Contraction:
        """Each channel by itself; rows are the channels of all images, columns are pixels."""
        images, channels, *extents = result.layout.size
        number, channel = _digits(ROW, (images, channels))
        return Contraction(
            sympy.S.One,
            images * channels,
            sympy.Integer(math.prod(int(n) for n in extents)),
            sympy.S.One,
            self._in_image(number, channel, _digits(COLUMN, extents)),
            self._in_weight(channel, sympy.S.Zero),
            result.layout.dtype,
            taps=sympy.Integer(self.taps),
            biases=_biases(bias, channel),
            by_channel=True,
            is_convolution=True,
        )


def _digits(number: sympy.Expr, sizes: Sequence[sympy.Expr]) -> list[sympy.Expr]:
    """``number`` as row-major places in ``sizes``."""
    places = []
    step = 1
    for position in range(len(sizes) - 1, -1, -1):
        place = FloorDiv(number, sympy.Integer(step))
        places.append(place if position == 0 else Mod(place, sizes[position]))
        step *= int(sizes[position])
    return places[::-1]


def _biases(bias: BufferView | None, channel: sympy.Expr) -> tuple[Bias, ...]:
    return () if bias is None else (Bias(bias.buffer, element(bias, channel)),)
