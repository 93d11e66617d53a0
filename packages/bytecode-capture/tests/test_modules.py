"""Modules in every use: hooks, containers, registries, attributes, construction."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from differential import outcome, run_graph, same
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from weft_bytecode_capture import CaptureOptions, capture, compile_frames

CALLS = [(torch.arange(6.0).reshape(2, 3) - 2,), (torch.ones(4, 3),)]


def check_built(build, *, fullgraph=True, calls=CALLS, state=lambda function: None):
    """A function made twice, once run plainly and once compiled, gives the same in every call."""
    torch.manual_seed(0)
    plain = build()
    torch.manual_seed(0)
    other = build()
    compiled = compile_frames(other, run_graph, CaptureOptions(fullgraph=fullgraph))
    for arguments in (*calls, *calls):
        copies = [tuple(value.clone() for value in arguments) for _ in range(2)]
        torch.manual_seed(1)
        expected = outcome(plain, copies[0]), state(plain)
        torch.manual_seed(1)
        found = outcome(compiled, copies[1]), state(other)
        assert same(found, expected), f"{found} is not {expected}"


# Hooks.


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.seen = []

    def forward(self, x, *, factor=1):
        return self.inner(x) * factor


def no_result(module, inputs, output):
    return None


HOOKS = {
    "pre": lambda m: m.inner.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "pre without a tuple": lambda m: m.inner.register_forward_pre_hook(
        lambda module, args: args[0] * 2
    ),
    "pre with keywords": lambda m: m.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, "factor": 3}), with_kwargs=True
    ),
    "forward": lambda m: m.inner.register_forward_hook(lambda module, args, out: out + 1),
    "forward with keywords": lambda m: m.register_forward_hook(
        lambda module, args, kwargs, out: out + len(kwargs), with_kwargs=True
    ),
    "without a result": lambda m: m.inner.register_forward_hook(no_result),
    "always called": lambda m: m.inner.register_forward_hook(no_result, always_call=True),
    "full backward": lambda m: m.inner.register_full_backward_hook(lambda module, gin, gout: None),
    "two, one first": lambda m: (
        m.inner.register_forward_hook(lambda module, args, out: out * 2),
        m.inner.register_forward_hook(lambda module, args, out: out + 2, prepend=True),
    ),
    "that appends": lambda m: m.inner.register_forward_hook(
        lambda module, args, out: m.seen.append(out.shape)
    ),
    "wrong pre": lambda m: m.register_forward_pre_hook(lambda *args: 3, with_kwargs=True),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_in_one_graph(name):
    def build():
        module = Scaled().requires_grad_(False)
        HOOKS[name](module)
        return types.MethodType(lambda module, x: (module(x), len(module.seen)), module)

    check_built(build)


def test_hooks_called_after_an_exception():
    def build():
        seen = []

        class Raises(nn.Module):
            def forward(self, x):
                raise ValueError("inside")

        module = Raises()
        module.register_forward_hook(lambda *args: seen.append(1), always_call=True)

        def function(x):
            try:
                return module(x)
            except ValueError as error:
                return str(error), len(seen), x + 1

        return function

    check_built(build)


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_with_gradients(kind):
    results = []
    for compiling in (False, True):
        torch.manual_seed(0)
        module, seen = nn.Linear(3, 3), []
        getattr(module, kind)(lambda *found, log=seen: log.append(found[-1][0].shape))

        def function(x, module=module):
            return module(x * 2).relu().sum()

        call = compile_frames(function, run_graph) if compiling else function
        for _ in range(2):
            x = torch.ones(2, 3, requires_grad=True)
            call(x).backward()
            results.append((x.grad, module.weight.grad.clone(), list(seen)))
    assert same(results[:2], results[2:])
    assert results[-1][-1]


def test_hooks_come_and_go():
    module = nn.Linear(3, 3).requires_grad_(False)
    compiled = compile_frames(lambda x: module(x) + 1, run_graph, CaptureOptions(fullgraph=True))
    x = torch.ones(2, 3)
    plain = module(x)
    assert torch.equal(compiled(x), plain + 1)
    handle = module.register_forward_hook(lambda module, args, out: out * 2)
    assert torch.equal(compiled(x), plain * 2 + 1)
    handle.remove()
    assert torch.equal(compiled(x), plain + 1)
    everywhere = torch.nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 3)
    try:
        assert torch.equal(compiled(x), plain * 3 + 1)
    finally:
        everywhere.remove()
    assert torch.equal(compiled(x), plain + 1)


_MODULES = torch.nn.modules.module
HOOKS_OF_ALL_MODULES: dict[str, Any] = {
    "forward": lambda seen: _MODULES.register_module_forward_hook(lambda m, a, out: out * 3),
    "seen": lambda seen: _MODULES.register_module_forward_hook(
        lambda m, a, out: seen.append(type(m).__name__)
    ),
    "before": lambda seen: _MODULES.register_module_forward_pre_hook(lambda m, a: (a[0] + 1,)),
    "backward": lambda seen: _MODULES.register_module_full_backward_hook(
        lambda m, inputs, outputs: (inputs[0] * 2,)
    ),
    "before backward": lambda seen: _MODULES.register_module_full_backward_pre_hook(
        lambda m, outputs: (outputs[0] * 3,)
    ),
}


@pytest.mark.parametrize("name", HOOKS_OF_ALL_MODULES)
def test_hooks_of_all_modules_that_come_and_go_inside(name: str) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
        seen: list[str] = []
        handle = HOOKS_OF_ALL_MODULES[name](seen)
        y = module(x)
        handle.remove()
        return y, module(x), seen

    outcomes = []
    for function in (call, compile_frames(call, run_graph)):
        for _ in range(2):
            x = torch.ones(2, 3, requires_grad=True)
            y, after, seen = function(x)
            outcomes.append((y, after, *torch.autograd.grad(y.sum(), x), seen))
    assert same(outcomes[:2], outcomes[2:])
    assert not torch.nn.modules.module._has_any_global_hook()


# Containers and registries.


class Nest(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.named = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Linear(3, 3)})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)])
        self.by_name = nn.ParameterDict(
            {"w": nn.Parameter(torch.full((3,), 2.0)), "v": torch.ones(3)}
        )
        self.seq = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Identity())
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("passing", torch.ones(3), persistent=False)
        self.register_buffer("nothing", None)


def written(m, x):
    m.total = m.total + x.sum(0)
    return m.total + 1


def replaced(m, x):
    setattr(m.seq, "0", nn.Identity())
    return m.seq(x)


def forgotten(m, x):
    m.extra = 3
    del m.extra
    return hasattr(m, "extra"), x + 1


def cached(m, x):
    m.cache = [x * 2]
    return m.cache[0] + 1


def modes(m, x):
    return m.train() is m, m.training, m.eval().training, m.seq.training, x + 1


USES = {
    "named_children": lambda m, x: ([name for name, _ in m.named_children()], x + 1),
    "named_modules": lambda m, x: ([name for name, _ in m.named_modules()], x + 1),
    "named_parameters": lambda m, x: ([(n, p.shape) for n, p in m.named_parameters()], x + 1),
    "named_buffers": lambda m, x: ([name for name, _ in m.named_buffers()], x + 1),
    "sum of parameters": lambda m, x: sum(p.sum() for p in m.parameters()) + x,
    "sum of buffers": lambda m, x: sum(b.sum() for b in m.buffers()) + x,
    "first parameter": lambda m, x: (
        next(m.parameters()).dtype,
        next(m.parameters()).device,
        x + 1,
    ),
    "counts": lambda m, x: (len(list(m.children())), len(list(m.modules())), x + 1),
    "dict items": lambda m, x: [(key, module(x)) for key, module in m.named.items()],
    "dict values": lambda m, x: [module(x) for module in m.named.values()],
    "dict keys": lambda m, x: (list(m.named.keys()), list(m.named), len(m.named), x + 1),
    "dict contains": lambda m, x: ("a" in m.named, "z" in m.named, x + 1),
    "dict item": lambda m, x: m.named["b"](x),
    "dict without the key": lambda m, x: m.named["z"](x),
    "parameter list": lambda m, x: (x * m.weights[0] * m.weights[-1], len(m.weights)),
    "parameters of a list": lambda m, x: [p + x for p in m.weights],
    "parameter dict": lambda m, x: (x * m.by_name["w"], len(m.by_name), list(m.by_name.keys())),
    "parameters of a dict": lambda m, x: [(k, p + x) for k, p in m.by_name.items()],
    "list slice": lambda m, x: [layer(x) for layer in m.layers[1:]],
    "list reversed": lambda m, x: [layer(x) for layer in reversed(m.layers)],
    "list enumerated": lambda m, x: [layer(x) + i for i, layer in enumerate(m.layers)],
    "list zipped": lambda m, x: [a(x) + p for a, p in zip(m.layers, m.weights, strict=False)],
    "list from the end": lambda m, x: (m.layers[-2](x), m.layers[0] in m.layers),
    "list out of range": lambda m, x: m.layers[5](x),
    "sequential slices": lambda m, x: (m.seq[:2](x), m.seq[1:](x), len(m.seq[1:])),
    "sequential members": lambda m, x: [member(x) for member in m.seq],
    "get_submodule": lambda m, x: m.get_submodule("seq.0")(x),
    "get_parameter": lambda m, x: m.get_parameter("seq.0.weight").sum() + x,
    "get_buffer": lambda m, x: m.get_buffer("total") + x,
    "buffer written and read": written,
    "buffer changed in place": lambda m, x: (m.total.add_(x.sum(0)), m.total + 1)[1],
    "buffer copied to": lambda m, x: (m.total.copy_(x[0]), m.total * 2)[1],
    "buffer of None": lambda m, x: (m.nothing is None, x + 1),
    "buffer registered": lambda m, x: (m.register_buffer("new", x * 2), m.new + 1)[1],
    "parameter of None registered": lambda m, x: (m.register_parameter("p", None), m.p, x + 1),
    "attribute deleted": forgotten,
    "list as attribute": cached,
    "hasattr": lambda m, x: (hasattr(m, "seq"), hasattr(m, "z"), getattr(m, "z", 3), x + 1),
    "modes": modes,
    "isinstance": lambda m, x: (isinstance(m.seq[1], nn.Tanh), type(m.seq).__name__, x + 1),
    "apply": lambda m, x: (m.apply(lambda module: None) is m, x + 1),
    "names": lambda m, x: (m._get_name(), m.seq.__class__.__name__, m.seq[0].extra_repr(), x + 1),
    "zero_grad": lambda m, x: (m.zero_grad(), x + 1)[1],
    "identity": lambda m, x: (
        m.seq[0] == m.seq[0],
        m.seq[0] is m.seq[1],
        m.seq[0] in {m.seq[0]},
        x + 1,
    ),
    "as key": lambda m, x: ({m.seq[0]: 1}[m.seq[0]], x + 1),
    "data of a parameter": lambda m, x: x @ m.seq[0].weight.data.t(),
    "flags of a parameter": lambda m, x: (
        m.seq[0].weight.requires_grad,
        isinstance(m.seq[0].weight, nn.Parameter),
        isinstance(m.total, nn.Parameter),
        x + 1,
    ),
    "requires_grad_ as it is": lambda m, x: (m.requires_grad_(False), x + 1)[1],
    "made and called": lambda m, x: nn.Sequential(nn.ReLU(), nn.Tanh())(x) + nn.Softmax(-1)(x),
    "member replaced": replaced,
}


@pytest.mark.parametrize("name", USES)
def test_uses_in_one_graph(name):
    def build():
        return types.MethodType(USES[name], Nest().requires_grad_(False))

    check_built(build, state=lambda function: [b.clone() for b in function.__self__.buffers()])


# Classes of modules.


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).transpose(-1, -2)


class Passes(nn.Module):
    """Finds attributes of the wrapped module, as many wrappers do."""

    def __init__(self):
        super().__init__()
        self.wrapped = nn.Linear(3, 3)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("wrapped"), name)

    def forward(self, x):
        return self.wrapped(x) + self.weight.sum() + self.in_features


class Doubles(nn.Module):
    def __call__(self, x):
        return super().__call__(x) * 2

    def forward(self, x):
        return x + 1


class Members(nn.Module):
    bias = None

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self._parameters["shadowed"] = nn.Parameter(torch.ones(3))

    shadowed = 5

    @property
    def doubled(self):
        return self.linear.weight * 2

    @staticmethod
    def plus_one(x):
        return x + 1

    @classmethod
    def plus_two(cls, x):
        return x + 2

    def forward(self, x, *rest, other=None, **named):
        result = self.plus_one(self.plus_two(x)) @ self.doubled
        return result + len(rest) + len(named) + (0 if other is None else other) + self.shadowed


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0
        self.shapes = []
        self.sums = {}

    def forward(self, x):
        self.count += 1
        self.shapes.append(x.shape)
        self.sums[self.count] = x.sum()
        return x * self.count


def own_forward():
    module = nn.Linear(3, 3)
    module.forward = lambda x: x * 2
    return module


def parametrized():
    module = nn.Linear(3, 3)
    parametrize.register_parametrization(module, "weight", Symmetric())
    return module


def tied():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(first, second, first)


KINDS = {
    "own __getattr__": Passes,
    "own __call__": Doubles,
    "members of the class": Members,
    "state": Remembers,
    "own forward": own_forward,
    "parametrized": parametrized,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(3, 3)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(3, 3)).eval(),
    "tied weights": tied,
    "GRU cell": lambda: nn.GRUCell(3, 4),
    "LSTM": lambda: nn.LSTM(3, 4, batch_first=True),
    "batch norm": lambda: nn.BatchNorm1d(3),
    "traced symbolically": lambda: torch.fx.symbolic_trace(
        nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_in_one_graph(name):
    def build():
        return KINDS[name]().requires_grad_(False).__call__

    check_built(build, state=lambda call: [b.clone() for b in call.__self__.buffers()])


@pytest.mark.parametrize("layer", ["attention", "encoder"])
def test_transformer_layers_in_one_graph(layer):
    if layer == "encoder" and torch.__version__ < "2.13":
        pytest.skip("the fused layer of this torch does not run on fake tensors")

    def build():
        if layer == "encoder":
            module = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
            module.requires_grad_(False).eval()
            return lambda x: module(x)
        attention = nn.MultiheadAttention(4, 2, batch_first=True).requires_grad_(False).eval()
        return lambda x: attention(x, x, x)

    check_built(build, calls=[(torch.ones(2, 3, 4),), (torch.randn(1, 5, 4),)])


def test_arguments_of_a_module():
    def build():
        module = Members().requires_grad_(False)
        return lambda x: module(x, 1, 2, other=x, extra=3)

    check_built(build)


def test_tied_weight_replaced_in_one_place():
    module = tied().requires_grad_(False)
    compiled = compile_frames(lambda x: module(x), run_graph, CaptureOptions(fullgraph=True))
    x = torch.randn(2, 3)
    assert torch.equal(compiled(x), module(x))
    module[1].weight = nn.Parameter(torch.randn(3, 3), requires_grad=False)
    assert torch.equal(compiled(x), module(x))


def broken(build):
    """The breaks of a function, after checking that it gives what CPython gives."""
    check_built(build, fullgraph=False)
    torch.manual_seed(0)
    return capture(build())(*CALLS[0]).breaks


def scripted():
    module = torch.jit.script(nn.Linear(3, 3).requires_grad_(False))
    return lambda x: module(x) + 1


def lazy():
    module = nn.LazyLinear(3)
    return lambda x: module(x).detach()


def replaced_parameter():
    module = nn.Linear(3, 3).requires_grad_(False)

    def function(x):
        module.weight = nn.Parameter(module.weight * 2, requires_grad=False)
        return module(x)

    return function


@pytest.mark.parametrize("build", [scripted, lazy, replaced_parameter])
def test_breaks_behave_as_python(build):
    assert all(found.explanation for found in broken(build))


def test_a_conversion_that_changes_nothing() -> None:
    """``module.to`` sets each parameter's data to itself."""
    model = torch.nn.Linear(2, 2)

    def function(x: torch.Tensor) -> torch.Tensor:
        return model.to(torch.float32)(x) * 2

    x = torch.ones(1, 2)
    result = capture(function)(x)
    assert torch.equal(result.result, model(x) * 2)
    assert not result.breaks
