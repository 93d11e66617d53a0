"""Operators on fake tensors in a process that has not loaded torch's compiler, which takes long to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each program is run by itself: other tests load the compiler.

CALLS = """
import sys
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from weft_bytecode_capture.symbolic.graph.fake_mode import RememberingFakeMode

aten = torch.ops.aten
CALLS = {
    "add": lambda x, y, i: x + y[0],
    "promoted": lambda x, y, i: i * 1.5 + x.double(),
    "compared": lambda x, y, i: (x > 0) & (i < 3),
    "transposed": lambda x, y, i: x.t() * y.t() + 1,
    "strided": lambda x, y, i: torch.where(x[:, ::2] > 0, x[:, ::2], y[:, ::2]).exp(),
    "clamp": lambda x, y, i: x.clamp(min=0.5).pow(2).rsqrt(),
    "linear": lambda x, y, i: F.linear(x, y, y[:, 0]),
    "matmul": lambda x, y, i: x.unsqueeze(0).expand(3, -1, -1) @ y.t(),
    "conv": lambda x, y, i: F.conv1d(x[None], y[:, :, None].expand(-1, -1, 3), padding=1),
    "norm": lambda x, y, i: F.layer_norm(x, (6,), y[0], y[1]),
    "batch_norm": lambda x, y, i: F.batch_norm(x, None, None, training=True),
    "softmax": lambda x, y, i: F.log_softmax(x, -1) + x.softmax(0),
    "gelu": lambda x, y, i: F.gelu(x, approximate="tanh") + F.silu(y) + F.mish(x),
    "attention": lambda x, y, i: F.scaled_dot_product_attention(x[None, None], y[None, None], x[None, None]),
    "reduced": lambda x, y, i: x.sum(0, keepdim=True) + x.mean() + x.var(1).amax(),
    "scanned": lambda x, y, i: x.cumsum(1),
    "sorted": lambda x, y, i: x.sort(dim=0),
    "taken": lambda x, y, i: x[i[0]] + F.embedding(i[1], y),
    "scattered": lambda x, y, i: x.index_add(0, i[0, :6], y),
    "joined": lambda x, y, i: torch.cat([x, y.t()], 1).split(4, 1),
    "pooled": lambda x, y, i: F.max_pool1d(x, 2) + F.avg_pool1d(y, 2),
    "resized": lambda x, y, i: F.interpolate(x[None], scale_factor=2.0, mode="linear"),
    "lost": lambda x, y, i: F.cross_entropy(x, i[0]) + F.mse_loss(x, y),
    "dropped": lambda x, y, i: F.dropout(x, 0.1),
    "made": lambda x, y, i: torch.zeros_like(x, dtype=torch.int64) + torch.arange(6),
    "decomposed": lambda x, y, i: torch.linalg.qr(x),
    "special": lambda x, y, i: torch.special.entr(x) + torch.logaddexp(x, y),
    "written": lambda x, y, i: x.clone().mul_(2).add_(y),
}


def looks(value):
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad
    return tuple(map(looks, value))


def run(mode, gradients):
    x, y = (mode.from_tensor(torch.randn(6, 6), static_shapes=True) for _ in range(2))
    i = mode.from_tensor(torch.zeros(6, 6, dtype=torch.int64), static_shapes=True)
    with mode, torch.set_grad_enabled(gradients):
        return {name: looks(call(x.requires_grad_(gradients), y, i)) for name, call in CALLS.items()}


mode = RememberingFakeMode()
x = mode.from_tensor(torch.randn(6, 6), static_shapes=True)
with mode, torch.no_grad():
    F.layer_norm(x, (6,))
assert "torch.distributed.tensor" not in sys.modules  # which torch's rule loads outside of modes
found = [run(RememberingFakeMode(), gradients) for gradients in (False, True)]
assert "torch._dynamo" not in sys.modules
known = [run(FakeTensorMode(), gradients) for gradients in (False, True)]
assert "torch._dynamo" in sys.modules
for got, expected in zip(found, known, strict=True):
    for name in CALLS:
        assert got[name] == expected[name], (name, got[name], expected[name])
"""

MARKS = """
import torch
from weft_bytecode_capture._torch.without_compiler import _references, references_as_they_are
marked = [f for f in _references() if hasattr(f, "__dynamo_disable")]
assert not marked and len(_references()) > 100
with references_as_they_are():
    assert all(f.__dict__["__dynamo_disable"] is f for f in _references())
    with references_as_they_are():
        pass
    assert all(f.__dict__["__dynamo_disable"] is f for f in _references())
    first = _references()[0]
    setattr(first, "__dynamo_disable", print)  # as the compiler does
assert first.__dict__["__dynamo_disable"] is print
assert not any(hasattr(f, "__dynamo_disable") for f in _references()[1:])
try:
    with references_as_they_are():
        raise ValueError
except ValueError:
    assert not any(hasattr(f, "__dynamo_disable") for f in _references()[1:])
"""

OTHERS = """
import sys
import torch
from weft_bytecode_capture.symbolic.graph.fake_mode import RememberingFakeMode

@torch.library.custom_op("mine::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x

@twice.register_fake
def _(x):
    return torch.empty_like(x)

mode = RememberingFakeMode()
x = mode.from_tensor(torch.randn(3, 4), static_shapes=True)
with mode:
    made = x * 2
    assert "torch._dynamo" not in sys.modules
    assert twice(x).shape == (3, 4)  # may have a profile, which the compiler's settings hold
assert "torch._dynamo" in sys.modules
with mode:
    assert (made + x).shape == (3, 4)


@torch.compile(backend="eager")
def compiled(x, y):
    return torch._refs.add(x, y) * torch.nn.functional.gelu(x)

x, y = torch.randn(2, 3, 4)
torch.testing.assert_close(compiled(x, y), (x + y) * torch.nn.functional.gelu(x))
"""


@pytest.mark.kept
@pytest.mark.parametrize("program", [CALLS, MARKS, OTHERS], ids=["calls", "marks", "others"])
def test_operators_without_torchs_compiler(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)
