"""Convolutions of patches that neither overlap nor leave anything out: matmuls of one row a patch.

A vision model begins with one, of images with three channels, or of a video's.  Channels so few are none
of the library's fast kernels: it turns images, and copies them with more.  Here the rows of patches are one
copy, of which the gradient of the weight is a matmul too.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
import torch.fx
from weft_loop_ir.rewriting.fakes import (
    call_before,
    insert_call,
    is_static,
    lies_like,
    replace,
    source_of,
)

from weft_codegen_triton.rewriting.aligned_matmuls import UNIT

aten = torch.ops.aten

Node = torch.fx.Node

MIN_ROW = 32
"""Elements of a patch, below which a matmul has next to nothing to add up."""


def multiply_patches(graph: torch.fx.Graph) -> None:
    """Put matmuls in the place of the convolutions of ``graph`` whose kernels tile images of few channels."""
    rows: dict[Any, Node] = {}
    for node in list(graph.nodes):  # in order: rows stand before the first that reads them
        if _is_product(node):
            _multiply(node, _rows(node, 0, rows))
        elif _is_gradient(node):
            _multiply_gradient(node, _rows(node, 1, rows))


def _is_product(node: Node) -> bool:
    if node.target is not aten.convolution.default:
        return False
    return _tiles(node, 0) and node.args[2] is None and _is_dense(node)


def _is_gradient(node: Node) -> bool:
    """Whether ``node`` is asked for the gradient of the weight alone."""
    if node.target is not aten.convolution_backward.default:
        return False
    asked: Any = node.args[10]
    return _tiles(node, 1) and list(asked) == [False, True, False]


def _tiles(node: Node, first: int) -> bool:
    """Whether the kernel of ``node``, whose image is its argument ``first``, moves by its own extents.

    And whether the image has few channels, in 16 bits.
    """
    image, weight = source_of(node, first), source_of(node, first + 1)
    if not is_static(image) or not is_static(weight) or not is_static(source_of(node)):
        return False
    value, kernel = image.meta["val"], list(weight.meta["val"].shape[2:])
    stride, padding, dilation, transposed, _, groups = node.args[3 + first : 9 + first]
    dims = len(kernel)
    return bool(
        value.itemsize == 2
        and value.shape[1] % UNIT != 0
        and groups == 1
        and not transposed
        and _each(stride, dims) == kernel
        and set(_each(padding, dims)) == {0}
        and set(_each(dilation, dims)) == {1}
        and math.prod(kernel) > 1
        and value.shape[1] * math.prod(kernel) >= MIN_ROW
    )


def _each(numbers: Any, dims: int) -> list[Any]:
    return [*numbers] * dims if len(numbers) == 1 else [*numbers]


def _is_dense(node: Node) -> bool:
    """Whether the result lies as a contiguous one, or channels-last."""
    value = node.meta["val"]
    return bool(value.is_contiguous() or lies_like(value, _channels_last(value)))


def _channels_last(value: torch.Tensor) -> torch.Tensor:
    """A fake tensor like ``value``, but that its second dim is the last in memory."""
    batch, channels, *extents = value.shape
    return value.new_empty((batch, *extents, channels)).movedim(-1, 1)


def _rows(node: Node, first: int, made: dict[Any, Node]) -> Node:
    """The patches that ``node`` multiplies, ``[patches, elements]``, ordered as the weight's elements."""
    image, weight = source_of(node, first), source_of(node, first + 1)
    kernel = tuple(weight.meta["val"].shape[2:])
    if (image, kernel) in made:
        return made[image, kernel]
    whole = image
    batch, channels, *extents = image.meta["val"].shape
    counts = [n // k for n, k in zip(extents, kernel, strict=True)]
    for dim, (count, k, n) in enumerate(zip(counts, kernel, extents, strict=True), 2):
        if count * k != n:
            whole = call_before(node, aten.slice.Tensor, whole, dim, 0, count * k)
    if whole is not image:
        whole = _contiguous(node, whole)
    pairs = [n for pair in zip(counts, kernel, strict=True) for n in pair]
    parts = _viewed(node, whole, [batch, channels, *pairs])
    dims = len(kernel)
    order = [0, *range(2, 2 + 2 * dims, 2), 1, *range(3, 3 + 2 * dims, 2)]
    parts = _contiguous(node, call_before(node, aten.permute.default, parts, order))
    shape = [batch * math.prod(counts), channels * math.prod(kernel)]
    made[image, kernel] = call_before(node, aten.view.default, parts, shape)
    return made[image, kernel]


def _multiply(node: Node, rows: Node) -> None:
    value, weight = node.meta["val"], source_of(node, 1)
    batch, channels, *extents = value.shape
    columns = call_before(node, aten.t.default, _viewed(node, weight, [channels, -1]))
    result = _product(node, rows, columns)
    result = call_before(node, aten.view.default, result, [batch, *extents, channels])
    last = len(extents) + 1
    result = call_before(node, aten.permute.default, result, [0, last, *range(1, last)])
    if not lies_like(result.meta["val"], value):
        result = _contiguous(node, result)
    replace(node, result)


def _multiply_gradient(node: Node, rows: Node) -> None:
    """Make the gradient of the weight, the one result that ``node`` is asked for."""
    gradient, weight = source_of(node), source_of(node, 2)
    batch, channels, *extents = gradient.meta["val"].shape
    dims = len(extents) + 2
    turned = call_before(node, aten.permute.default, gradient, [0, *range(2, dims), 1])
    flat = _viewed(node, turned, [batch * math.prod(extents), channels])
    product = _product(node, call_before(node, aten.t.default, flat), rows)
    shape = list(weight.meta["val"].shape)
    result = call_before(node, aten.view.default, product, shape)
    for user in list(node.users):
        assert user.target is operator.getitem
        if user.args[1] == 1:
            replace(user, result)
        elif not user.users:
            node.graph.erase_node(user)
    if not node.users:
        node.graph.erase_node(node)


def _product(before: Node, left: Node, right: Node) -> Node:
    """Their matmul; not computed for the fake value, where autocast may be on."""
    rows, columns = left.meta["val"], right.meta["val"]
    value = rows.new_empty((rows.shape[0], columns.shape[1]))
    return insert_call(before, value, aten.mm.default, left, right)


def _viewed(before: Node, node: Node, shape: list[int]) -> Node:
    """``node`` in ``shape``: a view where its memory allows that, else a copy's."""
    value = node.meta["val"]
    try:
        value.view(shape)
    except (RuntimeError, ValueError):  # the latter of fake tensors
        node = _contiguous(before, node)
    return call_before(before, aten.view.default, node, shape)


def _contiguous(before: Node, node: Node) -> Node:
    return call_before(before, aten.clone.default, node, memory_format=torch.contiguous_format)
