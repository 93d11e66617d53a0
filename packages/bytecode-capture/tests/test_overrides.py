"""``__torch_function__``: tensor classes, other classes and modes that override operators."""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F
from differential import check, run_graph, same
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from weft_bytecode_capture import capture, compile_frames


class WithUnit(torch.Tensor):
    """A tensor with a unit, which results inherit."""

    @staticmethod
    def __new__(cls, data, unit):
        tensor = torch.as_tensor(data).as_subclass(cls)
        tensor.unit = unit
        return tensor

    @property
    def double(self):
        return self * 2

    def label(self):
        return self.unit + "!"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, cls):
            result.unit = next(a.unit for a in args if isinstance(a, cls))
        return result


class Logged(torch.Tensor):
    log: list[str] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.log.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Indifferent(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


HANDLED = {}


def implements(function):
    def register(implementation):
        HANDLED[function] = implementation
        return implementation

    return register


class Diagonal:
    def __init__(self, size, value):
        self.size, self.value = size, value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in HANDLED or not all(issubclass(t, (torch.Tensor, Diagonal)) for t in types):
            return NotImplemented
        return HANDLED[func](*args, **(kwargs or {}))


@implements(torch.mean)
def _mean(diagonal):
    return torch.tensor(diagonal.value) / diagonal.size


@implements(torch.matmul)
def _matmul(left, right):
    return left.value * right if isinstance(left, Diagonal) else left * right.value


@implements(torch.Tensor.add)
def _add(left, right):
    return "added"


class Counting(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if isinstance(result, torch.Tensor) else result


UNIT = WithUnit(torch.arange(6.0).reshape(2, 3), "kg")
INDIFFERENT = torch.ones(2, 3).as_subclass(Indifferent)


def results_inherit(x):
    y = UNIT * 2 + x
    return y, y.unit, y.sum(0), y.label(), y.double, y.shape, y[0], len(y), y.dtype, type(y)


def in_place(x):
    y = UNIT.clone()
    z = y.add_(1)
    return z is y, y, torch.cat([y, x]), list(y), y.max(0).values


def both_sides(x):
    return (
        x + UNIT,
        x - UNIT,
        x.matmul(UNIT.T),
        F.relu(UNIT),
        F.linear(x, UNIT),
        x > UNIT,
        x == UNIT,
        2**UNIT,
    )


def made_inside(x):
    y = x.as_subclass(WithUnit)
    y.unit = "a"
    x.add_(1)
    return y, [y, y], y.unit


def log_of_calls(x):
    Logged.log.clear()
    y = x.as_subclass(Logged)
    z = (y * 2).sum()
    return z, list(Logged.log)


def indifferent(x):
    return INDIFFERENT * 2, x + INDIFFERENT, type(INDIFFERENT), INDIFFERENT.shape, INDIFFERENT


def other_class(x):
    diagonal = Diagonal(3, 2.0)
    return torch.mean(diagonal), torch.matmul(diagonal, x), torch.matmul(x, diagonal), x + diagonal


def overridable(a, b):
    if torch.overrides.has_torch_function((a, b)):
        return torch.overrides.handle_torch_function(overridable, (a, b), a, b=b)
    return a * b + 1


def own_overridable_function(x):
    return overridable(x, x), overridable(UNIT, x)


def disabled_in_a_block(x):
    with torch._C.DisableTorchFunctionSubclass():
        y = UNIT * 2
    return y, type(y), UNIT * x


def kinds(x):
    return isinstance(UNIT, WithUnit), isinstance(UNIT, torch.Tensor), torch.is_tensor(UNIT)


def counting_mode(x):
    with Counting() as mode:
        y = torch.sin(x) + x.sum()
        y[0] = 1.0
        rows, kind = y.shape[0], x.dtype
        y.add_(2)
        z = F.softmax(y, -1) + torch.zeros(3)
        size, parts, count = y.size(0), [row * 1 for row in y], len(y)
    return y, z, mode.names, rows, kind, size, parts, count


def nested_modes(x):
    with Doubling():
        with Counting() as mode:
            y = x + 1
        z = x * 1
    return y, z, mode.names, x + 1


def modes_that_are_asked_for(x):
    with Doubling(), Counting() as mode:
        modes = torch.overrides._get_current_function_mode_stack()
        innermost = torch.overrides._get_current_function_mode()
    return x + 1, [type(m) for m in modes], innermost is mode


def mode_and_class(x):
    with Counting() as mode:
        return UNIT * x, mode.names


PROGRAMS = [
    results_inherit, in_place, both_sides, made_inside, log_of_calls, indifferent, other_class,
    own_overridable_function, disabled_in_a_block, kinds, counting_mode, nested_modes, mode_and_class,
    modes_that_are_asked_for,
]  # fmt: skip


@pytest.mark.parametrize("function", PROGRAMS)
def test_one_graph(function):
    check(function, [(torch.ones(2, 3),), (torch.arange(6.0).reshape(2, 3),)])


def test_instances_of_another_class_are_captured_anew():
    def function(x):
        return x * 2 + 1

    compiled = compile_frames(function, run_graph)
    plain = torch.ones(2)
    for x in (plain, plain.as_subclass(Indifferent), WithUnit(plain, "m"), plain):
        assert same(compiled(x), function(x))


def test_gradients_reach_an_instance():
    leaves = [torch.ones(3, requires_grad=True) for _ in range(2)]
    for function, leaf in zip((capture(lambda x: (x * x).sum()), None), leaves, strict=True):
        x = WithUnit(leaf, "m")
        result = function(x).result if function is not None else (x * x).sum()
        result.backward()
    assert torch.equal(leaves[0].grad, leaves[1].grad)


def mode_around_a_break(x):
    with Doubling():
        y = x + 1
        time.sleep(0)
        z = y * 1
    return y, z, x + 1


def test_mode_around_a_break():
    check(mode_around_a_break, [(torch.ones(2),)], fullgraph=False)


class CountingDispatch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Counting, CountingDispatch])
def test_modes_around_a_compiled_call_see_the_programs_operators_alone(kind):
    def function(x):
        return torch.add(x, 1) + torch.ones(2)

    def inner(x):
        return function(x)

    compiled = compile_frames(inner, run_graph)
    x = torch.ones(2)
    compiled(x)  # what is compiled without the mode is not for calls within it
    names = []
    for callee in (inner, compiled, compiled):
        with kind() as mode:
            result = callee(x)
        assert torch.equal(result, torch.full((2,), 3.0))
        names.append(mode.names)
    assert names[0] == names[1] == names[2]


def made_inside(x):
    with torch.device("meta") as device:
        made = torch.ones(2), torch.empty_strided((2,), (1,)), torch.tensor([1.0])
        with torch.device("cpu"):
            inner = torch.arange(2)
        told = torch.get_default_device(), torch.rand(2) * 2
    return *made, inner, *told, device, torch.zeros(2), x + 1


def made_around_a_break(x):
    with torch.device("meta"):
        first = torch.ones(2)
        print(end="")
        second = torch.ones(2), x.new_ones(2)
    return first, *second, torch.ones(2)


def made_before_an_error(x):
    try:
        with torch.device("meta"):
            raise ValueError
    except ValueError:
        return torch.ones(2), x


def module_made_inside(x):
    with torch.device("meta"):
        return torch.nn.Linear(2, 2).weight, x + 1


@pytest.mark.parametrize("default", [None, "meta"])
@pytest.mark.parametrize(
    "function", [made_inside, made_around_a_break, made_before_an_error, module_made_inside]
)
def test_tensors_are_made_on_the_device_of_a_context(function, default):
    compiled = compile_frames(function, run_graph)
    x = torch.ones(2)
    torch.set_default_device(default)
    try:
        wanted, found = function(x), compiled(x)
    finally:
        torch.set_default_device(None)
    assert [str(getattr(part, "device", part)) for part in found] == [
        str(getattr(part, "device", part)) for part in wanted
    ]
