"""Operands of other dtypes: refused exactly where eager raises an error for them."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.fx
from beside_eager import check
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from weft_functionalize import Unsupported, functionalize, refused_by_kernels
from weft_functionalize._torch import errors_unlogged

A = torch.linspace(0.1, 0.9, 16).reshape(4, 4)
B = A.expand(2, 4, 4).contiguous()
PLACES = torch.tensor([0, 2])

# Of a 4 x 4 tensor that has each dtype in turn.
PROGRAMS: dict[str, Any] = {
    "mm": lambda t: torch.mm(A, t),
    "linear": lambda t: F.linear(A, t),
    "bias": lambda t: F.linear(A, A, t[0]),
    "addmm": lambda t: torch.addmm(t, A, A),
    "addbmm": lambda t: torch.addbmm(t, B, B),
    "mv": lambda t: A.mv(t[0]),
    "dot": lambda t: A[0].dot(t[0]),
    "layer_norm": lambda t: F.layer_norm(A, (4,), t[0]),
    "layer_norm_of": lambda t: F.layer_norm(t, (4,), A[0], A[0]),
    "group_norm": lambda t: F.group_norm(A, 2, t[0]),
    "group_norm_of": lambda t: F.group_norm(t, 2, A[0], A[0]),
    "batch_norm": lambda t: F.batch_norm(A, t[0], A[0], A[0], A[0]),
    "batch_norm_of": lambda t: F.batch_norm(t, A[0], A[0], A[0], A[0]),
    "index_put": lambda t: A.index_put((PLACES,), t[:2]),
    "index_put_": lambda t: A.clone().index_put_((PLACES,), t[:2], accumulate=True),
    "index_add": lambda t: A.index_add(0, PLACES, t[:2]),
    "index_copy": lambda t: A.index_copy(0, PLACES, t[:2]),
    "heaviside": lambda t: torch.heaviside(A, t),
    "binary_cross_entropy": lambda t: F.binary_cross_entropy(A, t),
    "cross": lambda t: torch.linalg.cross(A[:, :3], t[:, :3]),
    "huber_loss": lambda t: F.huber_loss(t, A),
    "nll_loss": lambda t: F.nll_loss(t, torch.arange(4)),
    "logsigmoid": lambda t: F.logsigmoid(t),
    "glu": lambda t: F.glu(t),
    "lerp": lambda t: torch.lerp(t, t, 0.5),
    "mul_": lambda t: t.clone().mul_(1.5),
    "mul_whole": lambda t: t.clone().mul_(2),
    "div_": lambda t: t.clone().div_(2),
    "div_floor": lambda t: t.clone().div_(2, rounding_mode="floor"),
    "sigmoid_": lambda t: t.clone().sigmoid_(),
    "add_a_float": lambda t: t.clone().add_(A),
    "lt_": lambda t: t.clone().lt_(A),
    "logical_or_": lambda t: t.clone().logical_or_(A),
    "copy_": lambda t: t.clone().copy_(A),
    "fill_": lambda t: t.clone().fill_(1.5),
    "masked_fill_": lambda t: t.clone().masked_fill_(A > 0.5, 1),
    "to a float": lambda t: A.clone().add_(t),
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)


class Program(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, t: torch.Tensor) -> Any:
        return (self.function(t),)


@pytest.mark.parametrize("name", PROGRAMS)
def test_refused_where_eager_raises(name: str) -> None:
    module = torch.fx.symbolic_trace(Program(PROGRAMS[name]))
    raised = []
    for dtype in DTYPES:
        t = A > 0.5 if dtype is torch.bool else (A * 3 if dtype is torch.int64 else A).to(dtype)
        try:
            module(t)
        except (RuntimeError, NotImplementedError):
            raised.append(dtype)
            with pytest.raises((Unsupported, RuntimeError, NotImplementedError)):
                functionalize(module, [t])
        else:
            check(module, t)
    assert torch.float32 not in raised


@pytest.mark.parametrize("span", [1 << 34, 1 << 50])
def test_operands_far_apart_in_memory(span: int) -> None:
    """Kernels are asked without as much memory as such an operand spans."""
    with FakeTensorMode() as mode:
        rows = torch.empty_strided((4, 2), (span, 1))
        places = mode.from_tensor(torch.arange(4))
    graph = torch.fx.symbolic_trace(lambda x, y: (torch.add(x, x), torch.mm(x, x.t()), y + 1))
    assert functionalize(graph, [rows, places])
    refused = torch.fx.symbolic_trace(lambda x: torch.mm(x, x.t().double()))
    with pytest.raises((Unsupported, RuntimeError)):
        functionalize(refused, [rows])


@pytest.mark.parametrize("hidden", [8, 64])
def test_kernels_that_believe_sizes_are_not_tried_on_others(hidden: int) -> None:
    """An LSTM's kernel is told its hidden size: on weights made smaller it would write behind their ends."""
    operator = torch.ops.aten.mkldnn_rnn_layer.default
    with FakeTensorMode():
        x, h = torch.empty(64, 8, hidden), torch.empty(8, hidden)
        weights = [torch.empty(4 * hidden, *more) for more in ((hidden,), (hidden,), (), ())]
        numbers = (False, [], 2, hidden, 2, True, False, True, False)
        tried: list[object] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(refused_by_kernels, "_refusal", tried.append)
            refused_by_kernels.check_by_kernel(operator, [x, *weights, h, h, *numbers], {})
            refused_by_kernels.check_by_kernel(torch.ops.aten.relu.default, [x], {})
    assert [call.operator for call in tried] == [torch.ops.aten.relu.default]


@pytest.mark.parametrize("chosen", range(5))
@pytest.mark.parametrize("operator", ["index_put.default", "index_put_.default"])
def test_values_for_what_a_mask_chooses_are_not_refused(operator, chosen) -> None:
    packet, _, overload = operator.partition(".")
    function = getattr(getattr(torch.ops.aten, packet), overload)
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.zeros(2, 4))
        mask = mode.from_tensor(torch.zeros(4, dtype=torch.bool))
        values = mode.from_tensor(torch.ones(2, chosen))
        refused_by_kernels.check_by_kernel(function, (x, [None, mask], values), {})
        if chosen not in (1, 3):
            places = mode.from_tensor(torch.zeros(3, dtype=torch.long))
            with pytest.raises(Unsupported):
                refused_by_kernels.check_by_kernel(function, (x, [None, places], values), {})


@pytest.mark.parametrize("size", [32, 128, 4096])
def test_windows_of_large_tensors_are_not_refused(size: int) -> None:
    """In smaller sizes 128 and 126 are 32 and 31, which the window's two ends do not lead to."""
    scatter = torch.ops.aten.slice_scatter.default
    with FakeTensorMode():
        x, part = torch.empty(size - 2, size), torch.empty(size - 2, size - 2)
        refused_by_kernels.check_by_kernel(scatter, (x, part, 1, 1, -1), {})
        half = torch.empty(size - 2, size // 2)
        refused_by_kernels.check_by_kernel(scatter, (x, half, 1, 0, -1, 2), {})
        diagonal = torch.ops.aten.diagonal_scatter.default
        refused_by_kernels.check_by_kernel(diagonal, (x, torch.empty(size - 2), 1), {})
        if size < 1024 and torch.__version__ >= "2.13":  # until then its fakes refuse that
            with pytest.raises(Unsupported, match="slice"):
                refused_by_kernels.check_by_kernel(diagonal, (x, torch.empty(size - 2), 3), {})
        if size < 1024:
            with pytest.raises(Unsupported, match="slice"):
                refused_by_kernels.check_by_kernel(scatter, (x, part, 1, 2, -1), {})


def test_examples_that_do_not_fit_together_are_not_logged() -> None:
    """Sizes are halved until few elements are left, the larger ones first; other threads' errors are."""
    image, pooled = torch.empty(2, 16, 32, 32), torch.empty(2, 16, 16, 16)
    found = torch.zeros(2, 16, 16, 16, dtype=torch.long)
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(handler)

    def refused() -> None:
        with FakeTensorMode() as mode, pytest.raises(RuntimeError):
            torch.mm(mode.from_tensor(torch.zeros(2, 3)), mode.from_tensor(torch.zeros(2, 3)))

    try:
        with FakeTensorMode() as mode:
            tangent, x, places = (mode.from_tensor(t) for t in (pooled, image, found))
            numbers = ([2, 2], [2, 2], [0, 0], [1, 1], False)
            backward = torch.ops.aten.max_pool2d_with_indices_backward.default
            refused_by_kernels.check_by_kernel(backward, (tangent, x, *numbers, places), {})
        assert not records
        with errors_unlogged(), ThreadPoolExecutor(1) as other:
            refused()
            assert not records
            other.submit(refused).result()
            assert records
    finally:
        logger.removeHandler(handler)
