"""Convolutions of numbers of channels that are no multiple of 16 bytes, in 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.rewriting import aligned_convolutions
from weft_codegen_triton.rewriting.aligned_convolutions import align_convolutions
from weft_loop_ir import convolve_channels_last

aten = torch.ops.aten

Function = Callable[..., Any]


def images(channels: int, size: int = 6) -> torch.Tensor:
    return torch.randn(2, channels, size, size).half()


def weight(out: int, channels: int, kernel: int = 3) -> torch.Tensor:
    return (torch.randn(out, channels, kernel, kernel) / channels).half()


def two_layers(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Any:
    h = F.relu(F.conv2d(x * 2, w, padding=1))
    return F.conv2d(h, v, stride=2) + 1, h.sum((2, 3))


def parts(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Any:
    first, second = torch.split(F.conv2d(x.relu(), w, padding=1), [16, w.shape[0] - 16], 1)
    joined = torch.cat([second, first.sigmoid()], 1)
    return F.conv2d(joined, v), joined.mean((2, 3))


def with_bias(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Any:
    h = F.conv2d(x, w, w[:, 0, 0, 0], padding=1)
    return h.flatten(2), F.conv2d(h, v).tanh()


def normalized(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Any:
    h = F.batch_norm(F.conv2d(x.cos(), w), None, None, None, None, True)
    return F.conv2d(F.relu(h), v)


def gradients(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Any:
    h = F.gelu(F.conv2d(x, w))
    y = F.conv2d(h, v)
    rest = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    of_h, of_v, _ = aten.convolution_backward(y * 2, h, v, *rest, [True, True, False])
    _, of_w, _ = aten.convolution_backward(of_h * h, x, w, *rest, [False, True, False])
    return of_v, of_w, of_h


@pytest.fixture
def eager_to_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is unaligned is worth it, as it is for images of some size."""
    monkeypatch.setattr(aligned_convolutions, "saved_by_aligning", lambda *_, **__: 1e9)


def targets(graph: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def convolutions(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    kinds = (aten.convolution.default, aten.convolution_backward.default)
    return [
        node for kind in kinds for node in graph.graph.find_nodes(op="call_function", target=kind)
    ]


@pytest.mark.parametrize("is_turned", [False, True], ids=["as it is", "channels-last"])
@pytest.mark.parametrize("channels", [(18, 27, 20), (16, 33, 24), (26, 24, 17)])
@pytest.mark.parametrize("function", [two_layers, parts, with_bias, normalized, gradients])
@pytest.mark.usefixtures("eager_to_gain")
def test_results_are_the_same(
    function: Function, channels: tuple[int, int, int], is_turned: bool, codegen: TritonCodegen
) -> None:
    torch.manual_seed(0)
    first, second, third = channels
    given = images(first), weight(second, first), weight(third, second)
    graph = make_fx(function, tracing_mode="fake")(*given)
    align_convolutions(graph.graph, REFERENCE)
    if is_turned:
        convolve_channels_last(graph.graph)
    graph.graph.lint()
    graph.recompile()
    for node in convolutions(graph):
        read = [n.meta["val"] for n in node.all_input_nodes if n.meta["val"].dim() == 4]
        assert {extent % 8 for value in read for extent in value.shape[:2]} <= {0, 2}  # 2 images
    wanted = function(*(x.float() for x in given))
    for one, other in zip(graph(*given), wanted, strict=True):
        torch.testing.assert_close(one, other.half(), rtol=1e-2, atol=1e-2, check_stride=False)


@pytest.mark.parametrize("function", [two_layers, parts, with_bias, normalized, gradients])
@pytest.mark.usefixtures("eager_to_gain")
def test_programs_give_results_that_lie_as_eagers(
    function: Function, codegen: TritonCodegen
) -> None:
    torch.manual_seed(0)
    given = images(18), weight(27, 18), weight(20, 27)
    graph = make_fx(function, tracing_mode="fake")(*given)
    wanted = [node.meta["val"] for node in graph.graph.output_node().all_input_nodes]
    codegen.rewrite(graph)
    lowered = weft_loop_ir.lower(graph, options=codegen.lowering_options)
    schedule = weft_loop_ir.schedule(lowered, codegen.schedule_options)
    program = codegen.compile(schedule, {})
    exact = function(*(x.float() for x in given))
    exact = exact if isinstance(exact, tuple) else (exact,)
    for one, fake, other in zip(program(*given), wanted, exact, strict=True):
        torch.testing.assert_close(one, other.half(), rtol=1e-2, atol=1e-2, check_stride=False)
        assert one.stride() == fake.stride()


def grouped(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w[:, :9], groups=2)


def in_float32(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x.float(), w.float())


def of_three_channels(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x[:, :3], w[:, :3])


def of_multiples_of_four(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x.repeat(1, 2, 1, 1), w.repeat(1, 2, 1, 1))


@pytest.mark.parametrize("function", [grouped, of_multiples_of_four, in_float32, of_three_channels])
@pytest.mark.usefixtures("eager_to_gain")
def test_others_stay(function: Function) -> None:
    given = images(18), weight(28, 18), weight(20, 28)
    graph = make_fx(function, tracing_mode="fake")(*given)
    before = targets(graph)
    align_convolutions(graph.graph, REFERENCE)
    assert targets(graph) == before


def test_small_images_stay() -> None:
    given = images(18), weight(27, 18), weight(20, 27)
    graph = make_fx(two_layers, tracing_mode="fake")(*given)
    before = targets(graph)
    align_convolutions(graph.graph, REFERENCE)
    assert targets(graph) == before


def of_pixels(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w).relu()


@pytest.mark.parametrize("size", [6, 180])
@pytest.mark.usefixtures("eager_to_gain")
def test_convolutions_of_pixels_in_kernels_of_our_own_stay(size: int) -> None:
    """Those that fill the device are fused with what reads them, as they are."""
    given = images(18, size), weight(27, 18, 1), weight(20, 27)
    graph = make_fx(of_pixels, tracing_mode="fake")(*given)
    align_convolutions(graph.graph, REFERENCE)
    (convolution,) = convolutions(graph)
    assert convolution.meta["val"].shape[1] == (32 if size == 6 else 27)
