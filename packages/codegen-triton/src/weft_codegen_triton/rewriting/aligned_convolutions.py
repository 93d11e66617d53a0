"""Convolutions of odd numbers of channels, so that the library's fast kernels take them.

In 16 bits, channels-last, those of a place must begin at a multiple of 16 bytes.  Where that gains more than
it costs, zeros are put behind the channels of images and gradients, which what computes these can write as
well, and behind those of the weight.  What reads a result ends where it did.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from weft_loop_ir.rewriting.fakes import (
    call_before,
    insert_call,
    is_static,
    is_view,
    replace,
    source_of,
)

from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.matmuls.tiles import SQUARE
from weft_codegen_triton.matmuls.untimed_choice import MAX_CHANNELS
from weft_codegen_triton.rewriting.aligned_matmuls import UNIT, saved_by_aligning

aten = torch.ops.aten

Node = torch.fx.Node

MIN_CHANNELS = 16
"""With fewer the library puts zeros behind them itself, or has kernels for so few."""

HALF_UNIT = 4
"""Where places begin at multiples of so many elements the library is about as fast."""


def align_convolutions(graph: torch.fx.Graph, gpu: Gpu) -> None:
    """Put zeros behind the channels of what the convolutions of ``graph`` read, where that gains."""
    padding = _Padding()
    targets: dict[Any, Callable[[Node, _Padding], None]] = {
        aten.convolution.default: _convolve,
        aten.convolution_backward.default: _gradients,
    }
    for node in list(graph.nodes):
        if node.target in targets and _gains(node, gpu):
            targets[node.target](node, padding)


def _operands(node: Node) -> tuple[Node, Node, Node | None]:
    """The image, the weight, and the gradient of the result, where ``node`` computes those of the others."""
    if node.target is aten.convolution.default:
        return source_of(node), source_of(node, 1), None
    return source_of(node, 1), source_of(node, 2), source_of(node)


def _gains(node: Node, gpu: Gpu) -> bool:
    image, weight, gradient = _operands(node)
    read = [image, weight, *([] if gradient is None else [gradient])]
    if not all(map(is_static, read)):
        return False
    *_, transposed, _, groups = node.args[3:9] if gradient is None else node.args[4:10]
    value: torch.Tensor = weight.meta["val"]
    channels = [*value.shape[:2]]
    if value.dim() != 4 or value.itemsize != 2 or transposed or groups != 1:
        return False
    result: Any = node.meta["val"] if gradient is None else gradient.meta["val"]
    if gradient is None and _is_own(value, result, gpu):
        return False
    unaligned = [n for n in channels if n % UNIT]
    if all(n % HALF_UNIT == 0 for n in channels) or min(channels) < MIN_CHANNELS:
        return False
    operations = 2 * result.numel() * value[0].numel()
    sizes = [operand.meta["val"].numel() * value.itemsize for operand in (image, weight)]
    moved = sum(sizes) + result.numel() * value.itemsize
    copied = sizes[0] if channels[1] % UNIT else 0
    if gradient is not None:
        operations *= sum(map(bool, node.args[10][:2]))  # type: ignore[arg-type,index]
        copied += result.numel() * value.itemsize if channels[0] % UNIT else 0
    saved = saved_by_aligning(operations, moved, gpu, is_odd=any(n % 2 for n in unaligned))
    return saved > gpu.copying(copied)


def _is_own(weight: torch.Tensor, result: torch.Tensor, gpu: Gpu) -> bool:
    """Whether a kernel of ours convolves single pixels, with what reads them, as they are."""
    channels, inner = weight.shape[:2]
    rows = result.numel() // channels
    tiles = -(-rows // SQUARE.rows) * -(-channels // SQUARE.columns)
    return weight.shape[2:] == (1, 1) and inner <= MAX_CHANNELS and tiles >= gpu.many_tiles


@dataclass
class _Padding:
    """What has zeros behind it, for all that reads it."""

    made: dict[Node, Node] = field(default_factory=dict)

    def channels(self, before: Node, image: Node) -> Node:
        """``image`` with zeros behind its channels; what else reads it reads a part of that."""
        more = -image.meta["val"].shape[1] % UNIT
        if not more:
            return image
        if image not in self.made:
            is_given = image.op == "placeholder"
            readers = [] if is_given or _is_returned(image) else [*image.users]
            after = before if is_given else image.next
            self.made[image] = whole = _with_more_channels(after, image, more)
            part = call_before(
                whole.next, aten.slice.Tensor, whole, 1, 0, image.meta["val"].shape[1]
            )
            for reader in readers:
                reader.replace_input_with(image, part)
            self.made[part] = whole
        return self.made[image]


def _with_more_channels(before: Node, image: Node, more: int) -> Node:
    value = image.meta["val"]
    batch, channels, *extents = value.shape
    fake = value.new_empty((batch, channels + more, *extents))
    if image.target is aten.cat.default and (*image.args[1:], 0)[0] == 1:
        tensors: Any = image.args[0]
        shape, keywords = [batch, more, *extents], {"dtype": value.dtype, "device": value.device}
        zeros = insert_call(before, value.new_empty(shape), aten.full.default, shape, 0, **keywords)
        return insert_call(before, fake, aten.cat.default, [*tensors, zeros], 1)
    return _with_zeros(before, image, fake)


def _aligned_weight(before: Node, weight: Node) -> Node:
    value = weight.meta["val"]
    fake = value.new_empty(_whole(value.shape, (0, 1)))
    return _with_zeros(before, weight, fake)


def _with_zeros(before: Node, node: Node, fake: torch.Tensor) -> Node:
    """``node`` with zeros behind it in each dim, which give ``fake``; itself if that has its size."""
    pairs = zip(reversed(node.meta["val"].shape), reversed(fake.shape), strict=True)
    ends = [n for extent, whole in pairs for n in (0, whole - extent)]
    if not any(ends):
        return node
    return insert_call(before, fake, aten.constant_pad_nd.default, node, ends)


def _convolve(node: Node, padding: _Padding) -> None:
    value, arguments = node.meta["val"], list(node.args)
    image, weight, _ = _operands(node)
    arguments[:2] = padding.channels(node, image), _aligned_weight(node, weight)
    if isinstance(bias := arguments[2], Node):
        value_ = bias.meta["val"]
        arguments[2] = _with_zeros(node, bias, value_.new_empty(_whole(value_.shape, (0,))))
    batch, channels, *extents = value.shape
    fake = value.new_empty((batch, channels + -channels % UNIT, *extents))
    replace(node, _cut(node, insert_call(node, fake, aten.convolution.default, *arguments)))


def _gradients(node: Node, padding: _Padding) -> None:
    arguments = list(node.args)
    image, weight, gradient = _operands(node)
    assert gradient is not None
    arguments[0] = padding.channels(node, gradient)
    arguments[1:3] = padding.channels(node, image), _aligned_weight(node, weight)
    sizes: Any = arguments[3]
    if sizes is not None:
        arguments[3] = [n + -n % UNIT for n in sizes]
    fakes = [
        None if value is None else value.new_empty(_whole(value.shape, dims))
        for value, dims in zip(node.meta["val"], ((1,), (0, 1), (0,)), strict=True)
    ]
    result = insert_call(node, tuple(fakes), aten.convolution_backward.default, *arguments)
    for user in list(node.users):
        assert user.target is operator.getitem
        which: Any = user.args[1]
        if fakes[which] is not None:
            whole = insert_call(node, fakes[which], operator.getitem, result, which)
            replace(user, _cut(user, whole))
        elif not user.users:
            node.graph.erase_node(user)
    if not node.users:
        node.graph.erase_node(node)


def _whole(shape: torch.Size, dims: tuple[int, ...]) -> list[int]:
    """``shape`` with as much behind each of ``dims`` as makes it a multiple of the unit."""
    return [n + -n % UNIT if dim in dims else n for dim, n in enumerate(shape)]


def _cut(result: Node, whole: Node) -> Node:
    """The part of ``whole`` that is as large as ``result``, in whose place it is.

    A copy of its own where the graph returns it or a view of it, which lies as eager's then.
    """
    part = whole
    extents = zip(result.meta["val"].shape, whole.meta["val"].shape, strict=True)
    for dim, (n, more) in enumerate(extents):
        if n != more:
            part = call_before(result, aten.slice.Tensor, part, dim, 0, n)
    if part is not whole and _is_returned(result):
        part = call_before(result, aten.clone.default, part)
    return part


def _is_returned(node: Node) -> bool:
    pending = [*node.users]
    while pending:
        user = pending.pop()
        if user.op == "output":
            return True
        pending += user.users if is_view(user) else ()
    return False
