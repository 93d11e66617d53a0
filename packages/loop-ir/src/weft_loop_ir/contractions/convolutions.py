"""Convolutions as contractions: over channels, for each tap of the weight's window.

Where the result lies channels-last, its pixels are rows and its channels columns; where it lies
channels-first, each image is a matmul of a batch whose rows are channels and whose columns are pixels.
Where each channel is convolved by itself there is no matmul: the taps are added up element by element.
Elements are loaded from the image itself, so a convolution of 1 x 1 copies nothing, with steps or without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

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
    Operand,
)
from weft_loop_ir.contractions.read_calls import element, rule
from weft_loop_ir.expressions import FloorDiv, Mod
from weft_loop_ir.index_simplify import ranges_for
from weft_loop_ir.ir import Buffer, BufferView, ExternCall, is_dense

aten = torch.ops.aten


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
