"""Convolutions on channels-last memory, which libraries want, and what lies between them alike.

cuDNN and oneDNN turn images around each convolution that is not: a pass over the image, one over the weight
and one over the result.  Here values between convolutions lie channels-last from the first to the last; only
what other operators read, or what leaves the graph, is turned back.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import Any

import torch
import torch.fx

from weft_loop_ir.rewriting.fakes import (
    computed,
    insert_call,
    is_static,
    lies_like,
    restrided,
    source_of,
)

aten = torch.ops.aten

HALVES = (torch.float16, torch.bfloat16)
MIN_CHANNELS = 4
"""With fewer, an image is turned for nothing."""

CONVOLUTIONS: dict[Any, int] = {aten.convolution.default: 2, aten.convolution_backward.default: 3}
"""How many operands, the first ones, are turned; the last of them is the weight."""

FOLLOW = frozenset(
    """
    relu silu gelu sigmoid tanh hardswish hardsigmoid hardtanh leaky_relu elu mish relu6 clamp clamp_min
    exp neg abs sqrt rsqrt pow add sub mul div maximum minimum where rsub square
    _to_copy clone cat constant_pad_nd slice
    _native_batch_norm_legit_no_training native_group_norm
    _native_batch_norm_legit_functional
    max_pool2d_with_indices avg_pool2d upsample_nearest2d upsample_bilinear2d
    max_pool2d_with_indices_backward threshold_backward gelu_backward silu_backward sigmoid_backward
    tanh_backward le lt ge gt eq ne logical_not logical_and
    """.split()
)
"""Operators whose results lie as their operands do."""
LIKE_INPUT = frozenset({"native_group_norm", "_native_batch_norm_legit_functional"})
"""Operators that torch makes contiguous, and weft's kernels write as well any other way."""


def convolve_channels_last(
    graph: torch.fx.Graph,
    dtypes: Collection[torch.dtype] = HALVES,
    min_channels: int = MIN_CHANNELS,
    *,
    max_weight: float = math.inf,
    longest_band: float = math.inf,
) -> None:
    """Lay convolutions in ``dtypes``, their operands, and what is computed of them channels-last.

    Nothing is done where most convolutions are others, or none has ``min_channels`` input channels.
    A convolution is left as it is where its weight, which has to be turned at each call, has more than
    ``max_weight`` times the elements of its images, read and written; of each channel by itself also where
    its kernel is a band of more than ``longest_band`` pixels.
    """
    found = [
        node
        for target in CONVOLUTIONS
        for node in graph.find_nodes(op="call_function", target=target)
    ]
    eligible = [node for node in found if _is_eligible(node, dtypes, longest_band)]
    deep = [node for node in eligible if _channels(node) >= min_channels]
    closed = any(node.op == "get_attr" for node in graph.nodes)  # bodies of regions
    if 2 * len(eligible) > len(found) and deep and not closed:
        light = {node for node in eligible if _weight_to_images(node) <= max_weight}
        _Relaying().run(graph, light)


def _is_eligible(node: torch.fx.Node, dtypes: Collection[torch.dtype], longest_band: float) -> bool:
    """Whether ``node`` convolves images of static size, all channels with all, or each by itself."""
    if node.target not in CONVOLUTIONS:
        return False
    operands = node.args[: CONVOLUTIONS[node.target]]
    if not all(is_static(operand) for operand in operands):
        return False
    weight = _weight(node)
    groups = node.args[8 if node.target is aten.convolution.default else 9]
    depthwise = bool(groups == weight.shape[0])
    is_image = weight.dim() == 4 and weight.dtype in dtypes
    kernel = sorted(weight.shape[2:])
    is_band = depthwise and kernel[0] == 1 and kernel[-1] > longest_band
    return is_image and not is_band and bool(groups == 1 or depthwise)


def _weight_to_images(node: torch.fx.Node) -> float:
    """How many elements the weight has for each one of the images; a weight of 1 x 1 counts a quarter.

    Such a weight lies channels-last already.
    """
    weight = _weight(node)
    images: list[torch.Tensor] = [node.args[0].meta["val"]]  # type: ignore[union-attr]
    value = node.meta["val"]
    images.append(value if isinstance(value, torch.Tensor) else images[0])
    elements = sum(image.numel() for image in images)
    share = 0.25 if weight.shape[2:].numel() == 1 else 1.0
    return share * weight.numel() / max(elements, 1)


def _channels(node: torch.fx.Node) -> int:
    """The channels of the image that is convolved."""
    return int(source_of(node, CONVOLUTIONS[node.target] - 2).meta["val"].shape[1])


def _weight(node: torch.fx.Node) -> torch.Tensor:
    operand = source_of(node, CONVOLUTIONS[node.target] - 1)
    value: torch.Tensor = operand.meta["val"]
    return value


def _turned(value: torch.Tensor) -> torch.Tensor:
    """A fake tensor like ``value`` that lies channels-last; ``value`` itself if it does."""
    _, channels, height, width = value.shape
    turned = restrided(value, (channels * height * width, 1, width * channels, channels))
    return value if lies_like(value, turned) else turned


def _name(node: torch.fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name).removeprefix("aten::")


class _Relaying:
    """One run over a graph.  ``before`` holds the values that lie otherwise now, as they were."""

    def __init__(self) -> None:
        self.before: dict[torch.fx.Node, Any] = {}
        self.restored: dict[torch.fx.Node, torch.fx.Node] = {}
        self.turned: dict[torch.fx.Node, torch.fx.Node] = {}

    def run(self, graph: torch.fx.Graph, eligible: Collection[torch.fx.Node]) -> None:
        for node in list(graph.nodes):
            moved = [n for n in node.all_input_nodes if n in self.before]
            if node in eligible:
                self._convolve(node)
            elif not moved:
                continue
            elif node.target is operator.getitem:
                self._settle(node, node.args[0].meta["val"][node.args[1]])
            elif _name(node) in FOLLOW:
                self._follow(node)
            else:
                for operand in moved:
                    node.replace_input_with(operand, self._restore(operand, node))

    def _convolve(self, node: torch.fx.Node) -> None:
        for position in range(CONVOLUTIONS[node.target]):
            operand = source_of(node, position)
            node.update_arg(position, self._turn(operand, node))
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            self._settle(node, _turned(value))
        else:
            images = [None if v is None else _turned(v) for v in value[:2]]
            self._settle(node, (*images, *value[2:]))

    def _turn(self, operand: torch.fx.Node, user: torch.fx.Node) -> torch.fx.Node:
        """``operand`` channels-last, for ``user`` and later ones."""
        value = operand.meta["val"]
        if value.is_contiguous(memory_format=torch.channels_last):
            return operand
        if operand not in self.turned:
            copy, form = aten.clone.default, torch.channels_last
            self.turned[operand] = insert_call(
                user, _turned(value), copy, operand, memory_format=form
            )
        return self.turned[operand]

    def _follow(self, node: torch.fx.Node) -> None:
        value = computed(node)
        if _name(node) in LIKE_INPUT:
            dense = torch.empty_like(source_of(node).meta["val"])
            value = (restrided(value[0], dense.stride()), *value[1:])
        self._settle(node, value)

    def _settle(self, node: torch.fx.Node, value: Any) -> None:
        """Note that ``node`` gives ``value`` now."""
        before = node.meta["val"]
        if not isinstance(value, torch.Tensor) or not lies_like(before, value):
            node.meta["val"], self.before[node] = value, before

    def _restore(self, node: torch.fx.Node, user: torch.fx.Node) -> torch.fx.Node:
        """``node`` as it lay before, for ``user`` and later ones."""
        if node not in self.restored:
            self.restored[node] = insert_call(user, self.before[node], aten.clone.default, node)
        return self.restored[node]
