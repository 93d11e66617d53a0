"""What is asked of arguments of classes derived from Tensor that is theirs alone, not their memory's."""

import copy
import types
import weakref

import pytest
import torch
from weft_bytecode_capture import compile_frames


class Derived(torch.Tensor):
    pass


class Noted(torch.Tensor):
    asked: list[str] = []

    @classmethod
    def __torch_function__(cls, function, kinds, arguments=(), keywords=None):
        cls.asked.append(function.__name__)
        return super().__torch_function__(function, kinds, arguments, keywords or {})


class Plain(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


def _set(x, name, value):
    setattr(x, name, value)
    return x * 2


def _hooked(x):
    x.register_hook(lambda g: g * 3)
    return x * 2


def _backward(x):
    (x * 2).sum().backward()
    return x.grad


USES = {
    "grad": lambda x: (x.grad, x * 2),
    "is_leaf": lambda x: (x.is_leaf, x * 2),
    "grad_fn": lambda x: (x.grad_fn, x * 2),
    "requires_grad": lambda x: (x.requires_grad, x * 2),
    "requires_grad_": lambda x: (x.requires_grad_(), x * 2),
    "requires_grad_ off": lambda x: (x.requires_grad_(False), x * 2),
    "requires_grad set": lambda x: _set(x, "requires_grad", True),
    "grad set": lambda x: _set(x, "grad", torch.ones(3)),
    "data set": lambda x: _set(x, "data", torch.ones(3)),
    "data": lambda x: x.data * 2,
    "hook": _hooked,
    "hook of a result": lambda x: (_hooked(x * 2), x),
    "retain_grad": lambda x: (x.retain_grad(), x * 2)[1],
    "detach_": lambda x: (x.detach_(), x * 2),
    "backward": _backward,
    "autograd": lambda x: torch.autograd.grad((x * 2).sum(), x),
    "tensor": lambda x: torch.tensor(x) * 2,
    "as_tensor": lambda x: torch.as_tensor(x) * 2,
    "as_tensor of a dtype": lambda x: torch.as_tensor(x, dtype=torch.float64) * 2,
    "asarray": lambda x: torch.asarray(x, copy=True) * 2,
    "parameter": lambda x: torch.nn.Parameter(x) * 2,
    "iteration": lambda x: [row * 2 for row in x],
    "copy": lambda x: copy.copy(x) * 2,
    "deepcopy": lambda x: copy.deepcopy(x) * 2,
    "weak reference": lambda x: (weakref.ref(x)() is x, x * 2),
    "write": lambda x: x.detach().add_(1),
    "as_subclass": lambda x: x.as_subclass(torch.Tensor) * 2,
    "as_subclass and back": lambda x: (x.as_subclass(torch.Tensor) + 1).as_subclass(Derived),
    "as_subclass of a function": lambda x: torch.Tensor.as_subclass(x * 2, torch.Tensor) + 1,
    "as_subclass written": lambda x: ((x * 2).as_subclass(torch.Tensor).add_(1), x),
    "as_subclass of a plain tensor": lambda x: torch.ones(3).as_subclass(torch.Tensor) * 2,
    "as_subclass is another": lambda x: (x.as_subclass(torch.Tensor) is x, x * 2),
    "as_subclass of the argument": lambda x: x.detach().as_subclass(torch.Tensor).add_(1),
    "version": lambda x: (x._version, x * 2),
}


def _told(value):
    with torch._C.DisableTorchFunctionSubclass():
        if isinstance(value, torch.Tensor):
            plain = value.detach().as_subclass(torch.Tensor)
            return (
                type(value).__name__,
                value.requires_grad,
                value.is_leaf,
                plain.dtype,
                plain.tolist(),
            )
    return [_told(part) for part in value] if isinstance(value, (tuple, list)) else repr(value)


def _outcome(function, kind, requires_grad):
    x = torch.arange(1.0, 4.0).as_subclass(kind).requires_grad_(requires_grad)
    Noted.asked.clear()
    try:
        result = _told(function(x))
    except Exception as error:
        result = type(error).__name__, str(error)
    asked = list(Noted.asked)
    with torch._C.DisableTorchFunctionSubclass():
        return result, asked, _told(x), _told(x.grad)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [Derived, Noted, Plain])
@pytest.mark.parametrize("use", USES)
def test_what_is_an_arguments_own(use, kind):
    plain = USES[use]
    for requires_grad in (False, True):
        function = types.FunctionType(plain.__code__, plain.__globals__, "f")
        compiled = compile_frames(function, lambda graph_module, inputs: graph_module.forward)
        for _ in range(2):
            assert _outcome(compiled, kind, requires_grad) == _outcome(plain, kind, requires_grad)


@pytest.mark.parametrize("kind", [Derived, Noted])
def test_iteration_over_a_number(kind):
    def f(x):
        return [row * 2 for row in x]

    compiled = compile_frames(f, lambda graph_module, inputs: graph_module.forward)
    for _ in range(2):
        with pytest.raises(TypeError, match="iteration over a 0-d tensor"):
            compiled(torch.tensor(1.0).as_subclass(kind))
