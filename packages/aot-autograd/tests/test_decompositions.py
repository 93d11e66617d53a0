"""Decomposed graphs in float64 beside eager, and what remains in them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
import weft_aot_autograd
import weft_functionalize
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions
from torch._ops import OpOverload
from weft_aot_autograd.decomposition_table import _KEPT, _OWN, DefaultDecompositions

aten = torch.ops.aten

VECTOR: dict[str, Any] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, 0),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=2),
    "addcdiv": lambda x: torch.addcdiv(x, x, x.abs() + 1),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.25),
    "tril": lambda x: x.tril(),
    "triu": lambda x: x.triu(1),
    "roll": lambda x: x.roll(1, 0),
    "nan_to_num": lambda x: torch.nan_to_num(x / 0),
    "isclose": lambda x: torch.isclose(x, x + 1e-9),
    "logit": lambda x: torch.logit(torch.sigmoid(x)),
    "huber": lambda x: F.huber_loss(x, x * 2),
    "mse": lambda x: F.mse_loss(x, x * 2),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x * 3),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 3, 1])),
    "aminmax": lambda x: torch.aminmax(x, dim=0),
    "select_scatter": lambda x: torch.select_scatter(x, x[0], 0, 2),
    "index_add": lambda x: x.index_add(0, torch.tensor([0, 0]), x[:2]),
    "index_copy": lambda x: x.index_copy(0, torch.tensor([2]), x[:1]),
    "index_fill": lambda x: x.index_fill(1, torch.tensor([2]), 3.0),
    "reflection_pad": lambda x: F.pad(x[None], (1, 2), mode="reflect"),
    "replication_pad": lambda x: F.pad(x[None], (1, 2), mode="replicate"),
    "constant_pad": lambda x: F.pad(x, (1, 2, 0, 1), value=3.0),
    "cdist": lambda x: torch.cdist(x, x * 2),
    "unbind": lambda x: x.unbind(1),
    "std": lambda x: x.std(1),
    "var_mean": lambda x: torch.var_mean(x, 0),
    "norm": lambda x: x.norm(dim=1),
    "logsumexp": lambda x: x.logsumexp(1),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.1], dtype=torch.float64)),
    "softshrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "glu": F.glu,
    "celu": F.celu,
    "xlogy": lambda x: torch.xlogy(x.abs(), x.abs()),
    "dropout_in_inference": lambda x: F.dropout(x, 0.5, training=False),
}

IMAGE: dict[str, Any] = {
    "group_norm": lambda x: F.group_norm(x, 2),
    "instance_norm": F.instance_norm,
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, stride=2, padding=1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    "upsample_nearest": lambda x: F.interpolate(x, scale_factor=2),
    "upsample_bilinear": lambda x: F.interpolate(
        x, scale_factor=2, mode="bilinear", align_corners=False
    ),
    "upsample_bicubic": lambda x: F.interpolate(x, size=(7, 9), mode="bicubic"),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "unfold": lambda x: F.unfold(x, 3),
    "grid_sample": lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1).tanh()),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", VECTOR)
def test_matrix(forward: Any, name: str) -> None:
    program = VECTOR[name]
    traced = forward(lambda x: program(x), torch.randn(3, 4, dtype=torch.float64))
    _assert_pure_aten(traced)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", IMAGE)
def test_image(forward: Any, name: str) -> None:
    program = IMAGE[name]
    traced = forward(lambda x: program(x), torch.randn(2, 4, 6, 8, dtype=torch.float64))
    _assert_pure_aten(traced)


def _assert_pure_aten(traced: weft_aot_autograd.ForwardGraph) -> None:
    weft_functionalize.verify_functional(traced.graph_module.graph)
    for node in _calls(traced.graph_module):
        assert "prims" not in str(node.target), node.format_node()


def _calls(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in module.graph.nodes if node.op == "call_function"]


def _targets(traced: weft_aot_autograd.ForwardGraph) -> set[Any]:
    return {node.target for node in _calls(traced.graph_module)}


@pytest.mark.parametrize(
    ("program", "kept"),
    [
        (F.gelu, aten.gelu.default),
        (lambda x: F.softmax(x, -1), aten._softmax.default),
        (lambda x: F.layer_norm(x, (4,)), aten.native_layer_norm.default),
        (lambda x: x @ x.t(), aten.mm.default),
    ],
)
def test_kept_whole(forward: Any, program: Any, kept: Any) -> None:
    traced = forward(lambda x: program(x), torch.randn(3, 4, dtype=torch.float64))
    assert kept in _targets(traced)


def test_batch_norm_for_inference(forward: Any) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).double().eval()
    traced = forward(model, torch.randn(2, 3, 6, 6, dtype=torch.float64))
    assert aten._native_batch_norm_legit_no_training.default in _targets(traced)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (2, 3, 4, 2)])
def test_gradients_of_batch_norm(
    shape: tuple[int, ...], affine: bool, train: bool, dtype: torch.dtype
) -> None:
    """Beside the kernel's, and the same of numbers whose deviation has no square in float32."""
    gradient, x = (torch.randn(shape).to(dtype) for _ in range(2))
    statistics = torch.randn(3), torch.rand(3) + 0.5
    weight = torch.randn(3) if affine else None
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    operator = aten.native_batch_norm_backward.default

    def arguments(scale: float) -> tuple[Any, ...]:
        mean, variance = statistics[0] * scale, statistics[1] * scale**2
        saved = mean, statistics[1].double().rsqrt() / scale
        own = [None if t is None else t.to(kept) for t in (weight, mean, variance, *saved)]
        return gradient, (x.double() * scale).to(dtype), *own, train, 0.0, [True, affine, affine]

    rule = weft_aot_autograd.default_decompositions()[operator]
    for scale in (1.0, 2.0**70) if train else (1.0,):  # a running variance has to be a float32
        exact = operator(*(_wide(t) for t in arguments(scale)))
        eager = operator(*arguments(scale))
        for got, kernel, expected in zip(rule(*arguments(scale)), eager, exact, strict=True):
            assert (got is None) == (kernel is None)
            if got is not None:
                assert got.dtype == kernel.dtype and got.shape == kernel.shape
                factor = scale if got.shape == shape else 1.0
                near = 2e-2 if got.dtype == torch.bfloat16 else 2e-5
                torch.testing.assert_close(
                    got.double() * factor, expected.double() * factor, rtol=near, atol=near
                )


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) else value


def test_own_table(forward: Any) -> None:
    functional = weft_functionalize.functionalize(
        torch.fx.symbolic_trace(lambda x: torch.addcmul(x, x, x)), [torch.ones(2)]
    )
    traced = weft_aot_autograd.trace_inference(functional, decompositions={})
    assert _targets(traced) == {aten.addcmul.default}
    # The functional graph itself stays as it is.
    weft_aot_autograd.trace_inference(functional)
    calls = _calls(functional.graph_module)
    assert [node.target for node in calls] == [aten.addcmul.default]


def test_rules_looked_up_one_by_one_are_those_of_the_whole_table() -> None:
    """Torch's own table, which it makes by going through all operators, is the reference."""
    table = weft_aot_autograd.default_decompositions()
    whole = core_aten_decompositions()
    packets = [getattr(aten, name) for name in aten]
    operators = {getattr(packet, name) for packet in packets for name in packet.overloads()}
    assert len(operators) > 2500
    wanted = {o for o in whole if isinstance(o, OpOverload) and not is_kept(o)} | set(_OWN)
    assert {o for o in operators | wanted if o in table} == wanted
    assert set(table) == wanted
    for operator in wanted - set(_OWN):
        rule = whole[operator]  # those of operators composed of others are made anew each time
        assert table[operator] is rule or isinstance(rule, functools.partial)


def is_kept(operator: OpOverload) -> bool:
    if operator._schema.is_mutable or torch.Tag.nondeterministic_seeded in operator.tags:
        return True
    return any(operator._schema.name == f"aten::{name}" for row in _KEPT.values() for name in row)


def test_rule_that_declines() -> None:
    functional = weft_functionalize.functionalize(
        torch.fx.symbolic_trace(lambda x: x.sin().cos()), [torch.ones(2)]
    )

    def decline(x: Tensor) -> Any:
        torch.exp(x)
        return NotImplemented

    def write(x: Tensor) -> Any:
        return x.clone().zero_()

    table = {aten.sin.default: decline, aten.cos.default: write}
    traced = weft_aot_autograd.trace_inference(functional, decompositions=table)
    assert _targets(traced) == {aten.sin.default, aten.cos.default}


def test_stack_traces_are_kept() -> None:
    module = torch.fx.symbolic_trace(lambda x: F.huber_loss(x, x * 2))
    for node in module.graph.nodes:
        node.meta["stack_trace"] = "File user.py"
    functional = weft_functionalize.functionalize(module, [torch.ones(2)])
    traced = weft_aot_autograd.trace_inference(functional)
    calls = _calls(traced.graph_module)
    assert len(calls) > 3
    assert all(node.meta["stack_trace"] == "File user.py" for node in calls)


@pytest.mark.parametrize("eps", [None, -1.0, 0.0, 1e-3, 0.6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradient_of_logit_at_its_ends(eps: float | None, dtype: torch.dtype) -> None:
    rule = DefaultDecompositions()[aten.logit_backward.default]
    x = torch.tensor([-0.0, 0.0, 1.0, 0.5, -1.0, 2.0, 0.3, float("nan"), 1e-3], dtype=dtype)
    for gradient in (torch.ones_like(x), -torch.ones_like(x)):
        # One by one: eager's kernel for vectors has other signs, at as many elements as the processor takes.
        each = zip(gradient.split(1), x.split(1), strict=True)
        wanted = torch.cat([aten.logit_backward.default(one, at, eps) for one, at in each])
        torch.testing.assert_close(rule(gradient, x, eps), wanted, equal_nan=True)
