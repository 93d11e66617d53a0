"""A compiled module is the original in all but its forward."""

import copy
import functools
import inspect
import pickle
import types
from collections.abc import Callable

import pytest
import torch
import weft
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            return self.linear(x)
        return self.linear(x) * self.scale

    def other(self) -> str:
        return "other"


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@torch.no_grad()
def test_result_and_attributes(net: Net) -> None:
    compiled = weft.compile(net)
    x = torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), net(x))
    assert compiled.scale == 2.0
    assert compiled.other() == "other"
    assert compiled.linear is net.linear
    assert compiled._orig_mod is net
    assert len(list(compiled.parameters())) == 2
    with pytest.raises(AttributeError, match="nothing"):
        _ = compiled.nothing


@torch.no_grad()
def test_train_and_attribute_changes_recompile(net: Net) -> None:
    compiled = weft.compile(net)
    x = torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), net(x))
    compiled.scale = 3.0
    assert net.scale == 3.0
    torch.testing.assert_close(compiled(x), net(x))
    compiled.train()
    assert net.training
    torch.testing.assert_close(compiled(x), net(x))
    net.eval()
    torch.testing.assert_close(compiled(x), net(x))


@torch.no_grad()
def test_parameters_changed_in_place_and_replaced(net: Net) -> None:
    compiled = weft.compile(net)
    x = torch.randn(2, 4)
    compiled(x)
    net.linear.weight.add_(1.0)
    torch.testing.assert_close(compiled(x), net(x))
    net.linear.weight.data = torch.randn(4, 4)
    torch.testing.assert_close(compiled(x), net(x))
    net.linear.weight = nn.Parameter(torch.randn(4, 4))
    torch.testing.assert_close(compiled(x), net(x))
    net.load_state_dict(Net().state_dict())
    torch.testing.assert_close(compiled(x), net(x))


@torch.no_grad()
def test_hooks_run(net: Net) -> None:
    compiled = weft.compile(net)
    x = torch.randn(2, 4)
    plain = compiled(x)
    calls = []
    handle = net.register_forward_hook(lambda module, args, out: calls.append(1) or out + 1)
    torch.testing.assert_close(compiled(x), plain + 1)
    assert calls == [1]
    handle.remove()
    torch.testing.assert_close(compiled(x), plain)


def test_another_forward_of_the_module_or_its_class(net: Net) -> None:
    class Other(Net):
        pass

    net.__class__ = Other
    compiled, x = weft.compile(net), torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), net(x))
    net.forward = lambda x: x * 3  # as accelerate's hooks do
    assert torch.equal(compiled(x), x * 3)
    del net.forward
    torch.testing.assert_close(compiled(x), net(x))
    Other.forward = lambda self, x: x * self.scale
    assert torch.equal(compiled(x), x * 2)


def test_a_class_that_calls_in_its_own_way() -> None:
    class Tripled(Net):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return super().__call__(x) * 3

    net, x = Tripled(), torch.randn(2, 4)
    torch.testing.assert_close(weft.compile(net)(x), net(x))


@torch.no_grad()
def test_hooks_of_all_modules_run(net: Net) -> None:
    compiled, x = weft.compile(net), torch.randn(2, 4)
    compiled(x)
    seen: list[str] = []

    def hook(module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        seen.append(type(module).__name__)
        return output + 1

    expected = net(x)
    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        found = compiled(x)
        names = list(seen)
        plain = net(x)
    finally:
        handle.remove()
    torch.testing.assert_close(found, plain)
    assert names == seen[: len(names)] == ["Linear", "Net"]
    torch.testing.assert_close(compiled(x), expected)


def test_state_dict_round_trip(net: Net) -> None:
    compiled = weft.compile(net)
    state = {name: value * 2 for name, value in compiled.state_dict().items()}
    assert set(state) == {"_orig_mod.linear.weight", "_orig_mod.linear.bias"}  # as torch.compile's
    compiled.load_state_dict(state)
    assert torch.equal(net.linear.bias, state["_orig_mod.linear.bias"])


@torch.no_grad()
def test_dropping_it_frees_the_model() -> None:
    import gc
    import weakref

    net = Net().eval()
    compiled = weft.compile(net)
    compiled(torch.randn(2, 4))
    alive = weakref.ref(net)
    del net, compiled
    gc.collect()
    assert alive() is None


@torch.no_grad()
@pytest.mark.parametrize(
    "copying", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))]
)
def test_copies_and_pickles_compile_anew(net: Net, copying) -> None:
    compiled = weft.compile(net, fullgraph=True)
    x = torch.randn(2, 4)
    compiled(x)
    copied = copying(compiled)
    assert type(copied) is type(compiled)
    assert copied._orig_mod is not net
    assert not copied.training
    torch.testing.assert_close(copied(x), net(x))
    net.linear.weight.add_(1.0)
    assert not torch.equal(copied.linear.weight, net.linear.weight)
    copied.train()
    assert not net.training


@torch.no_grad()
def test_copies_that_compiled_code_makes(net: Net) -> None:
    compiled = weft.compile(net)
    x = torch.randn(2, 4)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return copy.deepcopy(compiled)(x), copy.copy(compiled)(x), weft.compile(nn.ReLU())(x)

    torch.testing.assert_close(weft.compile(program)(x), (net(x), net(x), x.relu()))


def test_in_a_module_that_is_copied(net: Net) -> None:
    outer = nn.Sequential(weft.compile(net), nn.ReLU())
    x = torch.randn(2, 4)
    copied = copy.deepcopy(outer)
    torch.testing.assert_close(copied(x), outer(x))
    assert copied[0]._orig_mod is not net
    assert set(outer.state_dict()) == {"0._orig_mod.linear.weight", "0._orig_mod.linear.bias"}


@weft.compile
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_compiled_functions_are_copied_as_functions_are() -> None:
    holder = nn.Module()
    holder.function = doubled
    assert copy.deepcopy(holder).function is doubled
    assert copy.copy(doubled) is doubled
    assert pickle.loads(pickle.dumps(doubled)) is doubled


@torch.no_grad()
def test_what_modules_are_asked(net: Net) -> None:
    compiled = weft.compile(net)
    assert isinstance(compiled, nn.Module)
    assert "Linear" in repr(compiled)
    assert compiled.double() is compiled
    assert net.linear.weight.dtype == torch.float64
    x = torch.randn(2, 4, dtype=torch.float64)
    torch.testing.assert_close(compiled(x), net(x))
    assert [name for name, _ in compiled.named_modules()][:2] == ["", "_orig_mod"]
    compiled.eval().requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    compiled.extra = 3
    assert net.extra == 3
    del compiled.extra
    assert not hasattr(net, "extra")
    assert "linear" in dir(compiled)


def assign(compiled: nn.Module) -> None:
    compiled.forward = lambda x: x + 5


def wrap_forward(compiled: nn.Module) -> None:
    """As accelerate and Trainer do for mixed precision."""
    forward = compiled._original_forward = compiled.forward
    autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    is_method = hasattr(forward, "__func__")
    function = autocast(forward.__func__ if is_method else forward)
    compiled.forward = types.MethodType(function, compiled) if is_method else function
    compiled.forward = functools.partial(lambda f, x: f(x).float() + 1, compiled.forward)


@pytest.mark.parametrize("change", [assign, wrap_forward])
@torch.no_grad()
def test_a_forward_of_the_wrapper(net: Net, change: Callable[[nn.Module], None]) -> None:
    """It is the wrapper's alone, also where captured code calls the wrapper, before and after."""
    compiled = weft.compile(net, backend="eager")
    x = torch.randn(2, 4)
    plain = net(x)
    calls = weft.compile(lambda x: compiled(x) * 1, backend="eager")
    torch.testing.assert_close(calls(x), plain)
    reference = torch.compile(net, backend="eager")
    change(compiled)
    change(reference)
    expected = reference(x)
    assert not torch.equal(expected, plain)
    torch.testing.assert_close(compiled(x), expected)
    torch.testing.assert_close(calls(x), expected)
    torch.testing.assert_close(weft.compile(lambda x: compiled(x), backend="eager")(x), expected)
    assert "forward" not in vars(net)
    torch.testing.assert_close(net(x), plain)
    handle = compiled.register_forward_hook(lambda m, a, result: result * 2)
    torch.testing.assert_close(calls(x), expected * 2)
    handle.remove()
    del compiled.forward
    torch.testing.assert_close(compiled(x), plain)
    torch.testing.assert_close(calls(x), plain)
    assert compiled._orig_mod is net


def test_training_is_the_original_modules(net: Net) -> None:
    compiled = weft.compile(net)
    compiled.training = True
    assert net.training
    net.eval()
    assert not compiled.training
    assert "_orig_mod" in dir(compiled)


def test_forward_has_the_signature_of_the_originals() -> None:
    """Frameworks look at it: with ``**kwargs`` they pass more than a model takes."""

    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, scale: float = 2.0) -> torch.Tensor:
            return x * scale

    compiled = weft.compile(Scaled(), backend="eager")
    assert inspect.signature(compiled.forward) == inspect.signature(Scaled().forward)
    x = torch.ones(2)
    assert torch.equal(compiled.forward(x, scale=3.0), x * 3)
    assert torch.equal(compiled(x), x * 2)
    with pytest.raises(TypeError):
        compiled.forward(x, other=1)
