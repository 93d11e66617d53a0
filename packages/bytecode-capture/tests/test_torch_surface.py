"""What programs use of torch: modes, modules with state and hooks, tensors' methods and properties."""

# The programs below are written for what they do.
# ruff: noqa: C416

from __future__ import annotations

import collections
import functools

import pytest
import torch
from differential import check
from torch import nn
from weft_bytecode_capture import capture


def no_grad_blocks(x):
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
        with torch.set_grad_enabled(False):
            w = x + 1
    return y, z, w, x * 5, torch.is_grad_enabled()


@torch.no_grad()
def without_gradients(x):
    return x * 2


@torch.inference_mode()
def in_inference_mode(x):
    return (x * 2).sum()


def decorated(x):
    return without_gradients(x), x + 1


def left_by_return(x):
    with torch.no_grad():
        if x.dim() == 1:
            return x * 2
    return x * 3


def left_by_exception(x):
    try:
        with torch.no_grad():
            y = x * 2
            raise ValueError("inside")
    except ValueError as error:
        return y, x * 2, str(error)


def autocast_block(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
        with torch.autocast("cpu", enabled=False):
            z = x @ x.t()
    return y, z, x @ x.t(), torch.is_autocast_enabled("cpu")


@torch.autocast("cpu", dtype=torch.bfloat16)
def autocast_decorated(x):
    return x @ x.t()


def inference_block(x):
    with torch.inference_mode():
        y = x * 2
    return y.is_inference(), x + 1


def profiled(x):
    with torch.profiler.record_function("region"):
        return x * 2


def metadata(x):
    return (
        x.shape,
        x.size(),
        x.size(0),
        x.dim(),
        x.ndim,
        x.numel(),
        x.dtype,
        x.device,
        x.requires_grad,
        x.is_contiguous(),
        x.stride(),
        x.element_size(),
        x.is_floating_point(),
        len(x),
        x.layout,
        x.T.shape,
        x.is_leaf,
        x.itemsize,
        x.nbytes,
        x.device.type,
        x.dtype.is_floating_point,
        torch.finfo(x.dtype).max,
        x.shape[-1],
        x.shape.numel(),
        tuple(x.shape),
        x.grad is None,
        x.data.shape,
        x.is_cuda,
        x.is_sparse,
        str(x.dtype),
        x.shape == torch.Size([2, 3]),
    )


def methods(x):
    y = x.clone()
    y.add_(1).mul_(2)
    y[0] = 5
    y[:, 1] += x[:, 0]
    a, b = x.split(1)
    values, indices = x.max(dim=1)
    top = x.topk(2, dim=1)
    return (
        y,
        a,
        b,
        values,
        indices,
        top.values,
        x[..., None],
        x[0],
        x[x > 0].shape if False else 0,
        x.view(-1),
        -x,
        x**2,
        1 - x,
        abs(x),
        x.to(torch.float64),
        x.type_as(x),
        x.mT,
        torch.cat([x, x], 1),
        torch.stack((x, x)),
        x.sum((0, 1)),
        x.mean(-1, keepdim=True),
        x.unbind(0),
        x.chunk(3, dim=1),
        x.new_zeros(2),
        torch.zeros_like(x),
        torch.where(x > 0, x, -x),
        x.detach().requires_grad,
    )


def creation(x):
    n = x.shape[0]
    return (
        torch.arange(n, device=x.device),
        torch.full((n, 2), 1.5),
        torch.ones(n, dtype=torch.long),
        torch.tensor([1, n]),
        torch.tensor(2.0),
        torch.eye(n),
        torch.linspace(0, 1, n),
        torch.empty(0).shape,
        torch.as_tensor([1.0]),
        x.new_tensor([1.0]),
    )


def rows(x):
    return [row * 2 for row in x], torch.stack([r for r in x]), sum(x), dict(enumerate(x))


def functional(x):
    f = nn.functional
    return (
        f.relu(x),
        f.softmax(x, dim=-1),
        f.gelu(x, approximate="tanh"),
        f.layer_norm(x, x.shape[-1:]),
        f.pad(x, (1, 1)),
        f.linear(x, x),
        f.silu(x),
        f.cosine_similarity(x, x),
        f.dropout(x, 0.5, training=False),
        f.interpolate(x[None], scale_factor=2),
    )


def namespaces_of_operators(x):
    spectrum = torch.fft.rfft(x)
    return torch.special.log_ndtr(x), torch.linalg.vector_norm(x), torch.fft.irfft(spectrum, 4)


@pytest.mark.parametrize(
    "function",
    [
        no_grad_blocks, decorated, in_inference_mode, left_by_return, left_by_exception, autocast_block,
        autocast_decorated, profiled, metadata, methods, creation, rows, functional, namespaces_of_operators,
    ],
)  # fmt: skip
def test_tensors(function):
    x = torch.arange(6.0).reshape(2, 3) - 2
    check(
        function,
        [(x,), (x + 1,), (torch.ones(4, 3),)] if function not in (methods,) else [(x,), (x + 1,)],
    )


def test_gradients_wanted():
    x = torch.ones(2, 3, requires_grad=True)
    for function in (no_grad_blocks, decorated, left_by_return, left_by_exception):
        check(function, [(x,)])


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.last = None
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("scratch", None)

    def forward(self, x):
        self.calls += 1
        self.last = x * 2
        self.total += x
        self.scratch = self.total + 1
        self.total = self.total * 1
        return self.last + self.calls


def test_module_attributes_written():
    from weft_bytecode_capture import CaptureOptions, compile_frames

    plain, other = Counter(), Counter()
    compiled = compile_frames(
        other.__call__, lambda g, e: g.forward, CaptureOptions(fullgraph=True)
    )
    for value in (1.0, 2.0, 3.0, 4.0):
        x = torch.full((3,), value)
        assert torch.equal(plain(x), compiled(x))
    assert (plain.calls, plain.last.tolist()) == (other.calls, other.last.tolist())
    assert torch.equal(plain.total, other.total)
    assert torch.equal(plain.scratch, other.scratch)
    assert set(dict(plain.named_buffers())) == set(dict(other.named_buffers()))


class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.by_name = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Linear(3, 3)})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)])
        self.named = nn.ParameterDict({"w": nn.Parameter(torch.full((3,), 2.0))})
        self.seq = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Identity())

    def forward(self, x):
        for layer in self.layers[1:]:
            x = layer(x)
        for i, layer in enumerate(self.layers):
            x = layer(x) + i
        x = self.layers[-1](x)
        for name, module in self.by_name.items():
            x = module(x) + len(name)
        x = self.by_name["a"](x) if "a" in self.by_name else x
        for w in self.weights:
            x = x * w
        x = x * self.weights[0] * self.named["w"]
        x = self.seq(x) + self.seq[0](x) + len(self.seq) + len(self.layers)
        x = self.seq[:2](x)
        total = sum(p.sum() for p in self.parameters())
        names = [name for name, _ in self.named_children()]
        count = sum(1 for _ in self.modules()) + len(list(self.named_parameters()))
        return (
            x + total,
            names,
            count,
            next(self.parameters()).dtype,
            self.training,
            isinstance(self.seq[1], nn.Tanh),
        )


def test_module_containers():
    torch.manual_seed(0)
    m = Containers().requires_grad_(False)
    check(lambda x: m(x), [(torch.ones(2, 3),), (torch.zeros(1, 3),)])


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.inner.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.inner.register_forward_hook(lambda module, args, output: output + 1)
        self.inner.register_forward_hook(self.noted, with_kwargs=True)
        self.seen = []

    def noted(self, module, args, kwargs, output):
        self.seen.append(output.shape)

    def forward(self, x):
        return self.inner(x)


def test_module_hooks():
    torch.manual_seed(0)
    m = Hooked().requires_grad_(False)
    check(
        lambda x: m(x),
        [(torch.ones(2, 3),), (torch.zeros(1, 3),)],
        state=lambda: list(m.seen),
        reset=lambda: m.seen.clear(),
        fullgraph=False,
    )


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        return self.drop(self.bn(x))


@pytest.mark.parametrize("training", [True, False])
def test_buffers_mutated_in_train_mode(training):
    from weft_bytecode_capture import CaptureOptions, compile_frames

    plain, other = Normed().train(training), Normed().train(training)
    compiled = compile_frames(
        other.__call__, lambda g, e: g.forward, CaptureOptions(fullgraph=True)
    )
    for seed in range(3):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(plain(x), compiled(x))
    for (name, a), (_, b) in zip(plain.named_buffers(), other.named_buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_train_and_eval_recompile():
    m = Normed()

    def f(x):
        return m(x) if m.training else m(x) + 1

    for mode in (True, False, True):
        m.train(mode)
        check(f, [(torch.ones(2, 3),)])


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


def test_autograd_function_gives_eagers_result():
    check(lambda x: Square.apply(x) + 1, [(torch.ones(3),)], fullgraph=False)
    x = torch.ones(3, requires_grad=True)
    check(lambda x: Square.apply(x) + 1, [(x,)], fullgraph=False)


@pytest.mark.parametrize(
    "function",
    [
        inference_block,
        lambda x: x.sum().item() + 1,
        lambda x: x.tolist(),
        lambda x: int(x.sum()),
        lambda x: x * 2 if x.sum() > 0 else x * 3,
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: (x + 1).numpy().tolist(),
        lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False),
        lambda x: (torch.manual_seed(3), torch.rand(2) + x.sum())[1],
    ],
)
def test_breaks_give_eagers_result(function):
    check(function, [(torch.ones(3),), (-torch.ones(3),)], fullgraph=False)


def test_named_tuple_of_tensors():
    Both = collections.namedtuple("Both", "a b")
    check(lambda x: Both(x + 1, b=x)._replace(a=x * 2), [(torch.ones(2),)])


def test_partial_of_a_torch_function():
    check(lambda x: functools.partial(torch.add, alpha=2)(x, x), [(torch.ones(2),)])


def mapped(x):
    y = x.sin()
    return torch.vmap(lambda row: row.sum() * 2)(y) + 1


def differentiated(x):
    y = x.sin()
    return torch.func.grad(lambda z: (z * z).sum())(y) + 1


def jacobian(x):
    y = x.sin()
    return torch.func.jacrev(lambda z: z * z)(y[0]) + 1


@pytest.mark.parametrize("function", [mapped, differentiated, jacobian])
def test_function_transforms_are_in_the_graph(function):
    x = torch.randn(4, 3)
    check(function, [(x,), (x + 1,)])
    result = capture(function)(x)
    assert not result.breaks
    assert len(result.graphs) == 1


def keeps_a_row(x):
    kept = []
    made = torch.vmap(lambda row: kept.append(row) or row * 2)(x.sin())
    return made, kept[0].shape


def keeps_a_row_in_a_list(x, rows):
    return torch.vmap(lambda row: rows.append(row) or row * 2)(x.sin()) + 1


def test_what_stands_for_others_stays_in_the_transform():
    x = torch.randn(4, 3)
    check(keeps_a_row, [(x,), (x + 1,)])
    check(lambda x: keeps_a_row_in_a_list(x, []), [(x,)], fullgraph=True)
    result = capture(keeps_a_row_in_a_list)(x, [])
    assert [b.kind for b in result.breaks] == ["function transform"]


def branches_on_a_row(x):
    return torch.vmap(lambda row: row * 2 if row.sum() > 0 else row)(x)


def asks_chance(x):
    return torch.vmap(lambda row: row if torch.rand(()) < 2 else -row, randomness="different")(x)


def reads_a_row(x):
    return torch.vmap(lambda row: row * row.sum().item())(x)


def fits_not(x):
    return torch.vmap(lambda row: row @ x)(x)


def maps_another_dimension(x):
    return torch.vmap(torch.sin, in_dims=3)(x)


def raises_inside(x):
    def f(row):
        raise ValueError(f"{tuple(row.shape)}")

    try:
        return torch.vmap(f)(x)
    except ValueError as error:
        return x + len(str(error))


def draws_inside(x):
    return torch.vmap(lambda row: row + torch.rand(3))(x)


@pytest.mark.parametrize(
    "function",
    [
        branches_on_a_row, asks_chance, reads_a_row, fits_not, maps_another_dimension, raises_inside,
        draws_inside,
    ],
)  # fmt: skip
def test_errors_of_transforms(function):
    x = torch.randn(4, 3)
    check(function, [(x,), (x + 1,)], fullgraph=False)
    torch.vmap(torch.sin)(x)  # no level is left entered
