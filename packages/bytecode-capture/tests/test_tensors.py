"""What programs ask of tensors, sizes, number formats and devices, and what they do to them."""

# The programs below are written for what they do.
# ruff: noqa: C416, SIM300

from __future__ import annotations

import functools

import pytest
import torch
from differential import check, run_graph
from torch import nn
from weft_bytecode_capture import CaptureOptions, capture, compile_frames

X = torch.arange(6.0).reshape(2, 3) - 2
CALLS = [(X,), (torch.ones(4, 3),)]


def in_place_through_view(x):
    view = x[0]
    view.mul_(3)
    return x, view


def in_place_through_transpose(x):
    view = x.t()
    view[0] = 7
    x += 1
    return x.sum(), view.shape


def assigned_through_masks(x):
    y = x.clone()
    y[y > 0] = 0
    y[torch.tensor([0, 1])] = 1
    y[..., 0] = 2
    y[0, 1] = 3
    y[:, [0, 1]] += 1
    y[y.shape[0] - 1] = 9
    y[0:1] = x[0:1]
    return y


def given_attributes(x):
    y = x + 1
    y.note = [x.shape]
    y.note.append(3)
    return y.note, hasattr(y, "other"), getattr(y, "other", None), y


def given_attributes_of_an_input(x):
    known = getattr(x, "note", 0)
    x.note = known + 1
    return x.note, x + 1


def alias_outputs(x):
    view = x.view(-1)
    y = x + 1
    return [x, y, x, view, view, y], x is x.contiguous(), y is y.float()


def random_numbers(x):
    return (
        torch.rand(3),
        torch.randn_like(x),
        torch.randint(0, 5, (3,)),
        nn.functional.dropout(x, 0.5, True),
        torch.bernoulli(torch.full((3,), 0.5)),
        x.clone().normal_(),
        torch.randperm(4),
        torch.multinomial(torch.ones(4), 2),
    )


def operators(x):
    return (
        x // 2, x % 2, 2**x, 2 - x, 2 / x, x @ x.t(), x <= 1, x == x, x != 1, ~(x > 0),
        (x > 0) & (x < 1), (x > 0) | (x < 1), (x > 0) ^ (x < 1), x.int() << 1, 3 // (x + 10), -x, +x,
        abs(x), pow(x, 2), x.int() >> 1, 5 % (x + 10), 1 < x,
    )  # fmt: skip


def subscripts(x):
    i = torch.tensor([0, 1])
    return (
        x[i], x[:, i], x[[0, 1]], x[0, [0, 1]], x[..., None, 0], x[-1], x[:, ::2], x[(0, 1)],
        x[slice(0, 1)], x[x.shape[0] - 1, 1], x[None, :, None].shape, x[i, i],
    )  # fmt: skip


def library(x):
    return (
        torch.einsum("ij,kj->ik", x, x),
        torch.meshgrid(x[0], x[0], indexing="ij"),
        torch.broadcast_tensors(x, x[0]),
        torch.split(x, 1),
        torch.cdist(x, x),
        torch.block_diag(x, x),
        torch.tensordot(x, x, dims=2),
        x.unflatten(1, (1, 3)),
        torch.linalg.norm(x),
        torch.linalg.inv(x.t() @ x + torch.eye(3) * 3),
        torch.fft.rfft(x),
        torch.special.expit(x),
        torch.linalg.qr(x)[1].shape,
        torch.ops.aten.add.Tensor(x, x, alpha=2),
        torch.ops.aten.relu(x),
        torch.promote_types(x.dtype, torch.int8),
        torch.result_type(x, 1),
        torch.can_cast(x.dtype, torch.int32),
    )


def rows(x):
    a, b = x[:2]
    return (
        a + b,
        [r for r in x],
        list(zip(x, x, strict=True)),
        max(len(r) for r in x),
        tuple(x),
        [*x],
    )


FUNCTIONS = [
    in_place_through_view, in_place_through_transpose, assigned_through_masks, given_attributes,
    alias_outputs, random_numbers, operators, subscripts, library, rows,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_in_one_graph(function):
    torch.manual_seed(0)
    check(function, CALLS, reset=lambda: torch.manual_seed(0))


FACTS = {
    "size and tuples": lambda x: (x.shape + (1,), x.shape[:1], tuple(x.shape), (*x.shape, 4)),
    "size compared": lambda x: (
        x.shape == (2, 3),
        x.shape != torch.Size([2, 3]),
        x.shape == x.size(),
    ),
    "size as a sequence": lambda x: (
        x.shape.count(3),
        x.shape.index(3),
        len(x.shape),
        list(x.shape),
    ),
    "size in builtins": lambda x: (max(x.shape), sum(x.shape), 3 in x.shape, [d for d in x.shape]),
    "size as text": lambda x: (str(x.shape), repr(x.shape), f"{x.shape}", str(x.shape[:1])),
    "size as key": lambda x: ({x.shape: 1}[x.shape], hash(x.shape) == hash(tuple(x.shape))),
    "size made": lambda x: (torch.Size([1, 2]), torch.Size((1,)).numel(), torch.Size(x.shape)),
    "size given": lambda x: (x.reshape(*x.shape), x.view(x.shape[::-1]), x.new_zeros(x.shape)),
    "size of a size": lambda x: (isinstance(x.shape, tuple), isinstance(x.shape, torch.Size)),
    "dtype": lambda x: (x.dtype == torch.float32, x.dtype is torch.float32, str(x.dtype), x.dtype),
    "dtype properties": lambda x: (x.dtype.itemsize, x.dtype.is_complex, x.dtype.is_signed),
    "dtype converted": lambda x: (x.dtype.to_complex(), x.to(torch.int8), x.half().dtype),
    "dtype in containers": lambda x: (
        {torch.float32: 1}[x.dtype],
        x.dtype in (torch.half, torch.float),
    ),
    "finfo": lambda x: (torch.finfo(x.dtype).eps, torch.finfo(torch.float16).min),
    "finfo properties": lambda x: (torch.finfo(x.dtype).bits, torch.finfo(x.dtype).dtype),
    "iinfo": lambda x: (torch.iinfo(torch.int32).max, torch.iinfo(torch.int8).min),
    "device": lambda x: (x.device.type, x.device.index, str(x.device), repr(x.device)),
    "device compared": lambda x: (x.device == torch.device("cpu"), x.device != "cpu"),
    "device made": lambda x: (
        torch.device("cuda:1").index,
        torch.device("cpu", 0),
        torch.device(type="cpu"),
    ),
    "device given": lambda x: (torch.zeros(2, device=x.device), x.to(x.device), x.to("cpu")),
    "kinds": lambda x: (isinstance(x, torch.Tensor), torch.is_tensor(x), type(x) is torch.Tensor),
    "class": lambda x: (
        x.__class__ is torch.Tensor,
        x.__class__.__name__,
        isinstance(x, nn.Parameter),
    ),
    "type": lambda x: (x.type(), torch.typename(x), callable(x), issubclass(type(x), torch.Tensor)),
    "attributes": lambda x: (hasattr(x, "shape"), hasattr(x, "foo"), getattr(x, "ndim", 0)),
    "flags": lambda x: (x.is_leaf, x.grad_fn is None, x.grad is None, x.is_nested, x.is_sparse),
    "identity of copies": lambda x: (
        x.contiguous() is x,
        x.float() is x,
        x.detach() is x,
        x.cpu() is x,
    ),
    "identity in place": lambda x: (x.add_(1) is x, x.relu_() is x, torch.relu_(x) is x),
    "identity of views": lambda x: (
        x.expand_as(x) is x,
        x.t().contiguous() is x,
        x.type_as(x) is x,
    ),
    "requires_grad_ as it is": lambda x: (x.requires_grad_(False) is x, x + 1),
    "modes": lambda x: (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), x + 1),
    "defaults": lambda x: (torch.get_default_dtype(), torch.get_default_device(), x + 1),
    "determinism": lambda x: (torch.are_deterministic_algorithms_enabled(), x + 1),
    "devices": lambda x: (torch.cuda.is_available(), torch.cuda.device_count(), x + 1),
    "lists": lambda x: ([x, x].index(x), [x].count(x), x in [x], sorted([x.shape[0], 1])),
    "higher-order": lambda x: (list(map(torch.sin, [x, x])), functools.reduce(torch.add, [x, x])),
}


@pytest.mark.parametrize("name", FACTS)
def test_facts(name):
    check(FACTS[name], CALLS)


def test_attributes_given_to_an_input():
    compiled = compile_frames(
        given_attributes_of_an_input, run_graph, CaptureOptions(fullgraph=True)
    )
    x = torch.ones(2)
    for count in range(1, 5):
        note, result = compiled(x)
        assert (note, x.note) == (count, count)
        assert torch.equal(result, x + 1)


def test_sizes_kept_by_objects():
    class Box:
        def __init__(self, shape):
            self.shape = shape

    box = Box(torch.Size([2, 3]))
    check(lambda x: (x.reshape(box.shape), len(box.shape), box.shape[0]), [(X,), (X + 1,)])
    box.shape = torch.Size([3, 2])
    check(lambda x: (x.reshape(box.shape), len(box.shape), box.shape[0]), [(X,), (X + 1,)])


# What breaks says why, in the words of the catalogue, and does what it does in CPython.

GENERATOR = torch.Generator()
VALUE = "value of a tensor as a Python object"


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.mul:
            return 7
        return super().__torch_function__(function, types, args, kwargs or {})


def with_default_dtype(x):
    torch.set_default_dtype(torch.float64)
    try:
        return torch.zeros(2), x + 1
    finally:
        torch.set_default_dtype(torch.float32)


def with_seed(x):
    torch.manual_seed(3)
    return torch.rand(2) + x.sum()


def forked(x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        y = torch.rand(2)
    return y, x + 1


def state_of_random_numbers(x):
    state = torch.get_rng_state()
    first = torch.rand(2)
    torch.set_rng_state(state)
    return first, torch.rand(2), x + 1


def own_generator(x):
    GENERATOR.manual_seed(0)
    return torch.rand(2, generator=GENERATOR) + x.sum()


def new_data(x):
    x.data = x.data.flatten()[:1]
    return x + 1


BREAKS = {
    "item": (lambda x: x.to(torch.complex64).sum().item(), VALUE),
    "tolist": (lambda x: (x.tolist(), x + 1), VALUE),
    "numpy": (lambda x: (x + 1).numpy().tolist(), "NumPy array"),
    "any": (lambda x: any([(x == x).all()]), "branch on a tensor's value"),
    "address": (lambda x: (x.data_ptr() != 0, x + 1), "storage of a tensor"),
    "requires_grad_": (lambda x: (x[:1], x.requires_grad_()), "change of requires_grad"),
    "apply_": (
        lambda x: x.clone().apply_(lambda v: v + 1),
        "Python function applied to each element",
    ),
    "default dtype": (with_default_dtype, "change of torch's defaults"),
    "forked generator": (forked, None),
    "state of the generator": (state_of_random_numbers, "state of a random number generator"),
    "from_numpy": (lambda x: torch.from_numpy(x.sum().numpy()) + 1, VALUE),
    "threads": (lambda x: (torch.get_num_threads(), x + 1), "setting that may change"),
    "data": (new_data, "attribute write"),
    "class of a tensor": (lambda x: Tagged(x) * 2, "construction of an instance"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_breaks(name):
    function, kind = BREAKS[name]
    check(function, CALLS, fullgraph=False, reset=lambda: torch.manual_seed(0))
    found = capture(function)(X.clone()).breaks
    assert found
    assert all(graph_break.explanation for graph_break in found)
    if kind is not None:
        assert kind in [graph_break.kind for graph_break in found]


@pytest.mark.parametrize("function", [with_seed, own_generator])
def test_seeds(function):
    check(function, CALLS, fullgraph=True, reset=lambda: torch.manual_seed(0))


class Dispatching(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


DISPATCHING = torch.ones(3).as_subclass(Dispatching)


def test_class_that_overrides_dispatch():
    function = lambda x: (type(DISPATCHING) is Dispatching, DISPATCHING.shape, x + 1)  # noqa: E731
    check(function, [(X,)], fullgraph=False)
    kinds = {graph_break.kind for graph_break in capture(function)(X).breaks}
    assert "tensor of unusual kind" in kinds


def test_gradients_break_or_pass():
    def passes(x):
        return x.grad_fn is None, x.is_leaf, x.grad is None, (x * 2).detach()

    def backward(x):
        (x * x).sum().backward()
        return x.grad

    def hook(x):
        y = x * 2
        y.register_hook(lambda gradient: gradient * 2)
        return y + 1

    def gradient(x):
        return torch.autograd.grad((x * x).sum(), x)[0]

    x = torch.ones(3, requires_grad=True)
    for function in (passes, backward, hook, gradient):
        check(function, [(x,)], fullgraph=False)
    assert not capture(backward)(x).breaks
    assert capture(hook)(x).breaks[0].kind == "hook of a tensor"
    assert not capture(gradient)(x).breaks


def test_a_gradient_is_another_tensor_in_each_call():
    weight = torch.nn.Parameter(torch.ones(3))

    def update(rate):
        weight.grad.mul_(rate)
        return weight.grad + weight.detach()

    graphs = []

    def backend(graph_module, example_inputs):
        graphs.append(graph_module)
        return graph_module.forward

    compiled = compile_frames(update, backend)
    for value in (1.0, 2.0, 3.0):
        weight.grad = torch.full((3,), value)
        want = update(2.0)
        weight.grad = torch.full((3,), value)
        torch.testing.assert_close(compiled(2.0), want)
        torch.testing.assert_close(weight.grad, torch.full((3,), 2 * value))
        assert len(graphs) == 1
