"""``__torch_dispatch__``: tensor classes that hold plain tensors and compute operators with those."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from differential import run_graph, same
from torch.utils._pytree import tree_map
from weft_bytecode_capture import CaptureOptions, capture, compile_frames


class Pair(torch.Tensor):
    """Two tensors of one shape; every operator is computed on both."""

    @staticmethod
    def __new__(cls, first, second, note="none"):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            first.shape,
            strides=first.stride(),
            dtype=first.dtype,
            device=first.device,
            requires_grad=first.requires_grad,
        )

    def __init__(self, first, second, note="none"):
        self.first, self.second, self.note = first, second, note

    def __repr__(self):
        return "Pair"

    def swapped(self):
        return type(self)(self.second, self.first, self.note)

    @property
    def total(self):
        return self.first + self.second

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if not all(issubclass(cls, kind) for kind in types):
            return NotImplemented
        results = []
        for name in ("first", "second"):
            part = lambda x: getattr(x, name) if isinstance(x, Pair) else x  # noqa: B023, E731
            results.append(func(*tree_map(part, args), **tree_map(part, kwargs or {})))
        if not isinstance(results[0], torch.Tensor):
            return results[0]
        return cls(*results)


class Scaled(torch.Tensor):
    """A matrix of bytes and a scale per row; ``linear`` multiplies by what they stand for."""

    @staticmethod
    def __new__(cls, values, scale):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype)

    def __init__(self, values, scale):
        self.values_, self.scale = values, scale

    def __repr__(self):
        return "Scaled"

    def dequantized(self):
        return self.values_.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.t.default:
            return Transposed(args[0])
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].values_, args[0].scale)
        raise NotImplementedError(f"{func} of Scaled")


class Transposed(torch.Tensor):
    """The transpose of a Scaled matrix."""

    @staticmethod
    def __new__(cls, base):
        return torch.Tensor._make_wrapper_subclass(
            cls, (base.shape[1], base.shape[0]), dtype=base.dtype
        )

    def __init__(self, base):
        self.base = base

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.addmm.default:
            return args[0] + args[1] @ args[2].base.dequantized().t()
        if func is torch.ops.aten.mm.default:
            return args[0] @ args[1].base.dequantized().t()
        raise NotImplementedError(f"{func} of Transposed")


class Overriding(Scaled):
    """The same by ``__torch_function__``, before any operator."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            return F.linear(args[0], args[1].dequantized(), *args[2:])
        return super().__torch_function__(func, types, args, kwargs or {})


def taken_apart(value):
    """A result, with what wrappers hold in their place."""
    if isinstance(value, Pair):
        held = {name: taken_apart(part) for name, part in vars(value).items()}
        return type(value).__name__, value.shape, value.stride(), value.dtype, held
    if isinstance(value, (tuple, list)):
        return [taken_apart(part) for part in value]
    return value


def pair(*shape):
    return Pair(torch.randn(*shape), torch.randn(*shape))


SCALED = Scaled(torch.randint(-9, 9, (5, 3), dtype=torch.int8), torch.rand(5, 1))
OVERRIDING = Overriding(SCALED.values_, SCALED.scale)


def read_alone(p):
    return p.first + 1, p.total, p.note


def of_both(p):
    return (p * 2 + 1).sin().sum(-1)


def reflected(p):
    return 1 - p, p @ p.t(), p[0], -p, torch.cat([p, p]), F.softmax(p, dim=-1)


def with_plain(p):
    return p + torch.ones_like(p.first), torch.ones(3) * p


def made_inside(p):
    q = Pair(p.first.exp(), p.second.cos(), note="made")
    return q.swapped() + p, q, q.note


def written_inside(p):
    q = Pair(p.first + 1, p.second + 1)
    q.add_(1)
    q.label = "written"
    return q, q.label


def written_outside(p):
    p.mul_(2)
    return p, p.first


def asked(p):
    q = p.reshape(-1)
    return p.shape, p.dtype, p.dim(), p.numel(), p.is_contiguous(), q.stride(), isinstance(p, Pair)


def of_parts(p):
    a, b = p.split(1)
    return [a, b], p.unbind(1)[0], torch.stack([p.first, p.second])


def refused_by_the_class(p):
    return SCALED + p.first.sum()


def of_two_classes(p):
    return p.__class__ is Pair, type(p * 1) is Pair


FUNCTIONS = (read_alone, of_both, reflected, with_plain, made_inside, written_inside, asked)
FUNCTIONS += (written_outside,)
FUNCTIONS += (of_parts, of_two_classes)


def check(function, *calls, fullgraph=True):
    compiled = compile_frames(function, run_graph, CaptureOptions(fullgraph=fullgraph))
    for call in (*calls, *calls):
        with torch.no_grad():
            copies = [x.clone() for x in call]
            wanted, found = taken_apart(function(*call)), taken_apart(compiled(*copies))
            assert same(taken_apart(call), taken_apart(tuple(copies)))
        assert same(found, wanted), f"{found} is not {wanted}"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_operators_are_computed_by_the_class(function):
    check(function, (pair(2, 3),), (pair(2, 3),))


def test_other_sizes_are_other_programs():
    check(of_both, (pair(2, 3),), (pair(4, 3),), (pair(2, 5),))


@pytest.mark.parametrize("weight", [SCALED, OVERRIDING], ids=["dispatch", "function"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_weight_of_a_class(weight, bias):
    module = torch.nn.Linear(3, 5, bias=bias)
    module.weight = torch.nn.Parameter(weight, requires_grad=False)
    check(module.forward, (torch.randn(2, 3),), (torch.randn(4, 3),), (torch.randn(2, 7, 3),))


def test_a_parameter_of_a_class_is_one():
    parameter = torch.nn.Parameter(SCALED, requires_grad=False)

    def asked(x):
        return x + 1, isinstance(parameter, torch.nn.Parameter), parameter.requires_grad

    check(asked, (torch.randn(2),))


def test_what_the_class_refuses_is_refused():
    compiled = compile_frames(refused_by_the_class, run_graph, CaptureOptions())
    with torch.no_grad(), pytest.raises(NotImplementedError, match="of Scaled"):
        compiled(pair(2, 3))


def test_another_class_with_the_same_sizes_is_another_program():
    class Other(Pair):
        pass

    first = pair(2, 3)
    check(of_two_classes, (first,), (Other(first.first, first.second),))


def test_gradients_stay_with_autograd():
    def step(p):
        return (p * 2).first

    leaf = torch.randn(2, 3, requires_grad=True)
    found = compile_frames(step, run_graph, CaptureOptions())(Pair(leaf, leaf))
    assert same(found, step(Pair(leaf, leaf)))
    kinds = {graph_break.kind for graph_break in capture(step)(Pair(leaf, leaf)).breaks}
    assert "tensor of unusual kind" in kinds


def test_a_frozen_weight_under_inputs_with_gradients():
    module = torch.nn.Linear(3, 5)
    module.weight = torch.nn.Parameter(OVERRIDING, requires_grad=False)
    compiled = compile_frames(module.forward, run_graph, CaptureOptions(fullgraph=True))
    x, y = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3)
    y = y.copy_(x.detach()).requires_grad_()
    compiled(x).sum().backward()
    module(y).sum().backward()
    assert same(x.grad, y.grad)


class Bytes(torch.Tensor):
    """A matrix of bytes and a scale, for products that the class computes, transposed or not."""

    @staticmethod
    def __new__(cls, values, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, values.shape, dtype=scale.dtype, strides=values.stride()
        )

    def __init__(self, values, scale):
        self.values_, self.scale = values, scale

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def dequantized(self):
        return self.values_.to(self.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        aten = torch.ops.aten
        if func is aten.t.default:
            return cls(args[0].values_.t(), args[0].scale.t())
        if func is aten.detach.default:
            return cls(args[0].values_, args[0].scale)
        if func in (aten.mm.default, aten.addmm.default) and type(args[-1]) is Bytes:
            made = args[-2] @ args[-1].dequantized()
            return made + args[0] if len(args) == 3 else made
        if func is aten.view.default:
            return args[0].dequantized().reshape(args[1])
        raise NotImplementedError(str(func))


@pytest.mark.parametrize("bias", [False, True])
def test_an_adapter_is_trained_beside_bytes(bias):
    first, second = (torch.nn.Linear(4, 4, bias=bias) for _ in range(2))
    for layer in (first, second):
        frozen = Bytes.of(layer.weight.detach())
        layer.weight = torch.nn.Parameter(frozen, requires_grad=False)
    adapter = torch.nn.Linear(4, 4)
    trained = [parameter for layer in (first, adapter) for parameter in layer.parameters()]
    trained = [parameter for parameter in trained if parameter.requires_grad]

    def step(x):
        return second((first(x) + adapter(x)).relu()).sin()

    compiled = compile_frames(step, run_graph, CaptureOptions(fullgraph=True))
    for rows in (2, 3):
        x = torch.randn(rows, 4, requires_grad=True)
        found = torch.autograd.grad(compiled(x).sum(), [x, *trained])
        assert all(map(same, found, torch.autograd.grad(step(x).sum(), [x, *trained])))


def test_what_the_class_makes_plain_is_differentiated():
    weight = Bytes.of(torch.randn(3, 4))

    def step(x):
        return (weight.view(4, 3) * x).sum(0)

    compiled = compile_frames(step, run_graph, CaptureOptions(fullgraph=True))
    x = torch.randn(4, 3, requires_grad=True)
    (found,) = torch.autograd.grad(compiled(x).sum(), x)
    assert same(found, torch.autograd.grad(step(x).sum(), x)[0])
