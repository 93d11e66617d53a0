"""Convolutions whose kernels tile images of few channels: matmuls of patches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled_beside_eager import compiled
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.rewriting.patch_convolutions import multiply_patches

aten = torch.ops.aten

CONVOLVE: dict[int, Callable[..., torch.Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

CASES: dict[str, tuple[tuple[int, ...], int, tuple[int, ...], torch.memory_format]] = {
    "images": ((2, 3, 16, 24), 8, (8, 8), torch.contiguous_format),
    "another output": ((2, 3, 16, 16), 5, (4, 4), torch.contiguous_format),
    "rest is cut": ((2, 3, 17, 22), 8, (4, 5), torch.contiguous_format),
    "channels-last": ((2, 3, 8, 8), 6, (4, 4), torch.channels_last),
    "one channel": ((3, 1, 16, 16), 8, (8, 8), torch.contiguous_format),
    "a video": ((2, 3, 4, 8, 8), 7, (2, 4, 4), torch.contiguous_format),
    "a sound": ((2, 1, 130), 4, (64,), torch.contiguous_format),
    "many odd channels": ((2, 12, 6, 6), 4, (3, 3), torch.contiguous_format),
}


def operands(name: str) -> tuple[list[torch.Tensor], int, tuple[int, ...]]:
    shape, channels, kernel, form = CASES[name]
    x = torch.randn(shape).half().contiguous(memory_format=form)
    weight = (torch.randn(channels, shape[1], *kernel) / 8).half()
    return [x, weight.contiguous(memory_format=form)], len(kernel), kernel


def rewritten(function: Callable[..., Any], given: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    graph = make_fx(function, tracing_mode="fake")(*given)
    multiply_patches(graph.graph)
    graph.graph.lint()
    graph.recompile()
    return graph


def targets(graph: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("name", CASES)
def test_result_is_a_matmuls(name: str) -> None:
    given, dims, kernel = operands(name)

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return CONVOLVE[dims](x, weight, stride=kernel)

    graph = rewritten(function, given)
    assert aten.mm.default in targets(graph) and aten.convolution.default not in targets(graph)
    result, wanted = graph(*given), function(*given)
    torch.testing.assert_close(result, wanted, rtol=2e-3, atol=2e-3)
    node = graph.graph.output_node().all_input_nodes[0]
    assert node.meta["val"].stride() == result.stride()


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_the_weight_is_a_matmul(name: str) -> None:
    (x, weight), dims, kernel = operands(name)
    gradient = F.gelu(CONVOLVE[dims](x, weight, stride=kernel))

    def function(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        zeros, ones = [0] * dims, [1] * dims
        results = aten.convolution_backward(
            *(gradient, x, weight, None, kernel, zeros, ones, False, zeros, 1),
            [False, True, False],
        )
        return results[1] * 2

    graph = rewritten(function, (gradient, x, weight))
    assert aten.mm.default in targets(graph)
    assert aten.convolution_backward.default not in targets(graph)
    wanted = function(gradient.float(), x.float(), weight.float()).half()
    torch.testing.assert_close(
        graph(gradient, x, weight), wanted, rtol=5e-3, atol=1e-2, check_stride=False
    )


def test_forward_and_backward_share_the_patches() -> None:
    (x, weight), _, kernel = operands("images")

    def function(x: torch.Tensor, weight: torch.Tensor) -> Any:
        y = F.conv2d(x, weight, stride=kernel)
        given = (y, x, weight, None, kernel, [0, 0], [1, 1], False, [0, 0], 1)
        return y, aten.convolution_backward(*given, [False, True, False])[1]

    graph = rewritten(function, (x, weight))
    assert targets(graph).count(aten.mm.default) == 2
    # of the patches, of the result, and of its gradient
    assert targets(graph).count(aten.clone.default) == 3


def overlapping(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, stride=3)


def padded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, stride=4, padding=1)


def dilated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, stride=4, dilation=2)


def transposed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv_transpose2d(x[:, :1].expand(-1, w.shape[0], -1, -1), w, stride=4)


def in_float32(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x.float(), w.float(), stride=4)


def of_eight_channels(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x.repeat(1, 3, 1, 1)[:, :8], w.repeat(1, 3, 1, 1)[:, :8], stride=4)


def with_gradient_of_images(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = F.conv2d(x, w.float().half(), stride=3)
    given = (y, x, w, None, [3, 3], [0, 0], [1, 1], False, [0, 0], 1)
    return aten.convolution_backward(*given, [True, True, False])[:2]


STAY = (overlapping, padded, dilated, transposed, in_float32, of_eight_channels)


@pytest.mark.parametrize("function", [*STAY, with_gradient_of_images])
def test_others_stay(function: Callable[..., Any]) -> None:
    given = [torch.randn(2, 3, 16, 16).half(), torch.randn(8, 3, 4, 4).half()]
    before = make_fx(function, tracing_mode="fake")(*given)
    assert targets(rewritten(function, given)) == targets(before)


def test_kernels_beside_eager(codegen: TritonCodegen) -> None:
    """As it is compiled, with a bias and what follows in a model."""
    torch.manual_seed(0)
    given = [torch.randn(2, 3, 16, 16).half(), (torch.randn(8, 3, 4, 4) / 8).half()]
    given += [torch.randn(8).half(), torch.randn(1, 16, 8).half()]

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, p: torch.Tensor) -> Any:
        return F.relu(F.conv2d(x, w, b, stride=4).flatten(2).transpose(1, 2) + p)

    graph = make_fx(function, tracing_mode="fake")(*given)
    codegen.rewrite(graph)
    program = compiled(codegen, graph, *given)
    torch.testing.assert_close(program(*given)[0], function(*given), rtol=4e-3, atol=4e-3)


def test_patches_come_before_the_first_that_multiplies_them() -> None:
    (x, weight), dims, kernel = operands("images")
    gradient = F.gelu(CONVOLVE[dims](x, weight, stride=kernel))

    def function(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        zeros, ones = [0] * dims, [1] * dims
        results = aten.convolution_backward(
            *(gradient, x, weight, None, kernel, zeros, ones, False, zeros, 1),
            [False, True, False],
        )
        return CONVOLVE[dims](x, weight - results[1], stride=kernel)

    graph = rewritten(function, (gradient, x, weight))  # asks whether its order is right
    assert targets(graph).count(aten.mm.default) == 2
    given = gradient, x, weight
    torch.testing.assert_close(graph(*given), function(*given), rtol=2e-2, atol=2e-2)
