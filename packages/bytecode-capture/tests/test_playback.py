"""Layers that are like one before are played back: graph, guards and results are those of evaluation."""

from __future__ import annotations

import copy
import dataclasses
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from weft_bytecode_capture import CaptureOptions, compile_frames
from weft_bytecode_capture.symbolic.playback import playback as module


@pytest.fixture
def played(monkeypatch):
    """The names of the functions whose calls were played back, in order."""
    names = []
    original = module._played

    def counted(evaluator, span, recording):
        result = original(evaluator, span, recording)
        if result is not None:
            names.append(span.function.__qualname__)
        return result

    monkeypatch.setattr(module, "_played", counted)
    return names


class Layer(nn.Module):
    """A layer of a few operators, in which a test changes one thing."""

    def __init__(self, width: int = 4, p: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(p)
        self.scale, self.index = 1.5, 0
        self.register_buffer("shift", torch.zeros(width))
        self.seen: list[int] = []
        self.extra = None

    def mixed(self, x):
        return F.gelu(self.into(self.norm(x))) * self.scale + self.norm.eps

    def forward(self, x):
        y = self.dropout(self.out(self.mixed(x)))
        if self.extra is not None:
            y = self.extra(y)
        return x + y + self.shift


class Stack(nn.Module):
    def __init__(self, count: int = 5, kind=Layer, **options) -> None:
        super().__init__()
        self.layers = nn.ModuleList([kind(**options) for _ in range(count)])
        for index, layer in enumerate(self.layers):
            layer.index = index

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def captured(model, inputs, playback, **options):
    """The graphs and the guards of a call."""
    graphs, guards = [], []

    def backend(graph_module, example_inputs):
        graphs.append(graph_module)
        return graph_module.forward

    def noted(report):
        found = [
            (g.source.name(), type(g.predicate), g.predicate.expected_text()) for g in report.guards
        ]
        guards.append({(*guard[:2], re.sub("0x[0-9a-f]+", "", guard[2])) for guard in found})

    options = CaptureOptions(playback=playback, fullgraph=False, **options)
    compiled = compile_frames(model, backend, options, observer=noted)
    torch.manual_seed(3)
    result = compiled(*inputs)
    return result, graphs, guards, compiled


def texts(graphs):
    found = []
    for graph_module in graphs:
        nodes = graph_module.graph.nodes
        found.append([(str(n), n.op, str(n.target), str(n.args), str(n.kwargs)) for n in nodes])
        for node in nodes:
            value = node.meta.get("example_value")
            if isinstance(value, torch.Tensor):
                found[-1].append((value.shape, value.stride(), value.dtype, value.requires_grad))
            lines = re.findall(r'File "(.*)", line (\d+), in', node.meta.get("stack_trace", ""))
            # How torch calls a module without hooks is evaluated once some module has one.
            found[-1].append([line for line in lines if not line[0].endswith("modules/module.py")])
    return found


def check(model, *inputs, change=None, training=None, **options):
    """Results, gradients, graphs and guards are the same with and without playback, and eager's."""
    if training is not None:
        model.train(training)
    states = []
    for playback in (None, False, True):
        own = copy.deepcopy(model)
        given = [copy.deepcopy(x) for x in inputs]
        graphs = guards = None
        called = own
        if playback is not None:
            first, graphs, guards, called = captured(own, given, playback, **options)
        else:
            torch.manual_seed(3)
            first = own(*given)
        results = [first]
        if change is not None:
            change(own)
            torch.manual_seed(4)
            results.append(called(*given))
        gradients = []
        if any(r.requires_grad for r in results):
            sum(r.square().sum() for r in results).backward()
            gradients = [p.grad for p in own.parameters()]
        lists = [list(m.seen) for m in own.modules() if isinstance(m, Layer)]
        states.append((results, gradients, list(own.buffers()), lists, graphs, guards))
    eager, plain, played = states
    for found in (plain, played):
        torch.testing.assert_close(found[:3], eager[:3], equal_nan=True)
        assert found[3] == eager[3]
    assert texts(plain[4]) == texts(played[4])
    if not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
        assert (
            plain[5][0] == played[5][0]
        )  # once some module has a hook the others are called otherwise


def x():
    return torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_layers_alike(training, grad, played):
    with torch.set_grad_enabled(grad):
        check(Stack(p=0.5), x(), training=training)
    assert played.count("Layer.forward") >= 3


def test_inference_mode(played):
    with torch.inference_mode():
        check(Stack(), x())
    assert "Layer.forward" in played


def _set(name, value):
    def change(stack):
        owner = stack.layers[3]
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, value)

    return change


CHANGES = {
    "dropout": _set("dropout.p", 0.9),
    "epsilon": _set("norm.eps", 0.5),
    "scale": _set("scale", 3.0),
    "kind of a constant": _set("scale", 2),
    "flag": _set("dropout.training", False),
    "evaluated": lambda stack: stack.layers[3].eval(),
    "frozen": lambda stack: stack.layers[3].into.weight.requires_grad_(False),
    "hook": lambda stack: stack.layers[3].register_forward_hook(lambda m, a, r: r * 2),
    "hook of a member": lambda stack: stack.layers[3].out.register_forward_pre_hook(
        lambda m, a: (a[0] + 1,)
    ),
    "no bias": _set("into.bias", None),
    "another module": _set("norm", nn.LayerNorm(4, elementwise_affine=False)),
    "a member more": _set("extra", nn.Tanh()),
    "forward of its own": lambda stack: setattr(
        stack.layers[3], "forward", lambda value: value * 7
    ),
    "another dtype": lambda stack: setattr(
        stack.layers[3], "shift", torch.ones(4, dtype=torch.bfloat16)
    ),
    "other strides": lambda stack: setattr(
        stack.layers[3].into, "weight", nn.Parameter(torch.ones(4, 8).t())
    ),
    "width": lambda stack: (
        setattr(stack.layers[3], "into", nn.Linear(4, 6)),
        setattr(stack.layers[3], "out", nn.Linear(6, 4)),
    ),
    "a shared parameter": lambda stack: setattr(
        stack.layers[3].into, "weight", stack.layers[1].into.weight
    ),
    "a tied parameter": lambda stack: setattr(
        stack.layers[3].out, "bias", stack.layers[3].norm.bias
    ),
    "a shared layer": lambda stack: stack.layers.__setitem__(3, stack.layers[1]),
    "one layer for all": lambda stack: [
        stack.layers.__setitem__(index, stack.layers[0]) for index in range(5)
    ],
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("training", [False, True])
def test_one_layer_differs(name, training):
    torch.manual_seed(0)
    stack = Stack(p=0.3)
    CHANGES[name](stack)
    check(stack, x(), training=None if name in ("evaluated", "flag") else training)


@pytest.mark.parametrize("name", CHANGES)
def test_a_layer_changes_between_calls(name):
    torch.manual_seed(0)
    check(Stack(p=0.3), x(), change=CHANGES[name])


class Counting(Layer):
    def forward(self, x):
        self.scale += 1
        return super().forward(x) * self.scale


class Appending(Layer):
    def forward(self, x):
        self.seen.append(self.index)
        return super().forward(x) * len(self.seen)


class Indexed(Layer):
    def forward(self, x):
        y = self.mixed(x)
        return x + self.out(y) * (self.index + 1)


class Updating(Layer):
    def forward(self, x):
        self.shift += x.detach().mean(0)
        return super().forward(x)


class WritingArgument(Layer):
    def forward(self, x):
        y = super().forward(x)
        x.mul_(2)
        return x + y


class InPlace(Layer):
    def forward(self, x):
        y = self.mixed(x)
        y += 1
        y[:, 0] = 0
        return x + self.out(y.relu_())


class WithoutItems(Layer):
    def forward(self, x):
        y = self.mixed(x)
        y += 1
        return x + self.out(y.relu_())


class Noisy(Layer):
    def forward(self, x):
        return super().forward(x) + torch.rand_like(x)


class Deciding(Layer):
    def forward(self, x):
        y = super().forward(x)
        return y * 2 if y.sum() > 0 else y - 1


class Keyed(Layer):
    names: dict = {}

    def forward(self, x):
        return super().forward(x) * self.names.get(self, 1.0)


class Views(Layer):
    def forward(self, x):
        first, second = self.mixed(x).chunk(2, -1)
        y = torch.stack((first.t(), second.t())).sum(0).t()
        return x + y.unflatten(-1, (2, 2)).flatten(-2)


class Normalising(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)


class NoGradients(Layer):
    def forward(self, x):
        with torch.no_grad():
            scale = self.mixed(x).mean()
        return super().forward(x) * scale


class Catching(Layer):
    def forward(self, x):
        try:
            y = self.mixed(x)
            raise KeyError(self.index // 9)
        except KeyError as error:
            return x + self.out(y) + error.args[0]


class Generating(Layer):
    def forward(self, x):
        return super().forward(x) + sum(v for v in (self.scale, self.norm.eps))


class Sized(Layer):
    def forward(self, x):
        y = self.mixed(x)
        return (x + self.out(y)).reshape(x.shape[0], -1) / x.size(0)


class Registered(Layer):
    def forward(self, x):
        y = self.mixed(x) * getattr(self, "missing", 0.5)
        return x + self.out(y) * (2 if any(p.dim() == 2 for p in self._parameters.values()) else 3)


KINDS = [
    Counting, Appending, Indexed, Updating, WritingArgument, InPlace, WithoutItems, Noisy, Deciding, Views,
    Normalising, Registered, NoGradients, Catching, Generating, Sized,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [False, True])
def test_layers_that_do_more(kind, training):
    torch.manual_seed(0)
    with torch.set_grad_enabled(training and kind is not WritingArgument):  # eager refuses it
        check(Stack(kind=kind), x() * 1, training=training)


@pytest.mark.parametrize("kind", [WithoutItems, Views, Noisy, Sized])
def test_played_back(kind, played):
    check(Stack(kind=kind), x())
    assert f"{kind.__name__}.forward" in played


@pytest.mark.parametrize("kind", [Counting, Appending, Updating, WritingArgument])
def test_evaluated_each_time(kind, played):
    with torch.no_grad():
        check(Stack(kind=kind), x())
    assert f"{kind.__name__}.forward" not in played


class Blocks(nn.Module):
    def __init__(self, norm) -> None:
        super().__init__()
        self.norm, self.into = norm, nn.Linear(4, 4)

    def forward(self, x):
        return x + self.norm(self.into(x)).relu()


NORMS = {
    "training": lambda: nn.BatchNorm1d(4),
    "momentum": lambda: nn.BatchNorm1d(4, momentum=None),
    "without statistics": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "instances": lambda: nn.InstanceNorm1d(3, track_running_stats=True),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_statistics_are_written(name, shared, grad, played):
    """Each layer's statistics are, in training; where one norm is all layers', once by each."""
    norm = NORMS[name]()
    blocks = nn.Sequential(*(Blocks(norm if shared else NORMS[name]()) for _ in range(5)))
    blocks.add_module("evaluated", Blocks(nn.BatchNorm1d(4).eval()))
    given = torch.randn(3, 4) if name != "instances" else torch.randn(2, 3, 4)
    if name == "instances":
        blocks = blocks[:5]
    with torch.set_grad_enabled(grad):
        check(blocks, given)
    if name == "training" and not shared:
        assert "Blocks.forward" in played


def test_layers_as_keys():
    """What a dict has for a layer is that layer's."""
    stack = Stack(kind=Keyed)
    Keyed.names = {stack.layers[1]: 3.0, stack.layers[3]: 5.0}
    called = compile_frames(stack, lambda graph_module, inputs: graph_module.forward)
    for _ in range(2):
        torch.testing.assert_close(called(x()), stack(x()))


def test_parts_of_a_layer_are_played_back(played):
    check(Stack(kind=Indexed), x())
    assert set(played) == {"Layer.mixed"}


def test_symbolic_sizes(played):
    model = Stack(kind=Sized)
    graphs = []

    def backend(graph_module, inputs):
        graphs.append(graph_module)
        return graph_module.forward

    compiled = compile_frames(model, backend, CaptureOptions(dynamic=True))
    for rows in (3, 5, 2, 9):
        given = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(given), model(given))
    assert len(graphs) == 1
    assert "Sized.forward" in played


def test_state_that_captured_code_changed(played):
    """What was written in the frame before a call is read by it, whatever the real object holds."""

    class Written(Stack):
        def forward(self, x):
            x = self.layers[0](x)
            x = self.layers[1](x)
            self.layers[2].scale = 9.0
            x = self.layers[2](x)
            self.layers[3].norm.eps = 0.25
            x = self.layers[3](x)
            self.layers[4].register_buffer("shift", torch.ones(4))
            return self.layers[4](x)

    check(Written(), x())


def test_globals_and_dicts_that_change():
    settings = {"scale": 1.0, "seen": []}

    class Reads(Layer):
        def forward(self, x):
            y = self.mixed(x) * settings["scale"] + len(settings["seen"])
            return x + self.out(y)

    class Writes(Stack):
        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
                settings["scale"] = settings["scale"] + 1.0
                settings["seen"].append(1)
            return x

    def run(call, given):
        settings.update(scale=1.0, seen=[])
        return call(given), copy.deepcopy(settings)

    model = Writes(kind=Reads)
    compiled = compile_frames(model, lambda graph_module, inputs: graph_module.forward)
    expected, found = run(model, x()), run(compiled, x())
    torch.testing.assert_close(found[0], expected[0])
    assert found[1] == expected[1]


def test_an_object_that_changes_between_layers():
    @dataclasses.dataclass
    class Settings:
        scale: float = 1.0

    settings = Settings()

    class Reads(Layer):
        def forward(self, x):
            return x + self.out(self.mixed(x) * settings.scale)

    class Writes(Stack):
        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
                settings.scale += 1.0
            return x

    model = Writes(kind=Reads)
    compiled = compile_frames(model, lambda graph_module, inputs: graph_module.forward)
    for _ in range(2):
        settings.scale = 1.0
        expected = model(x())
        settings.scale = 1.0
        torch.testing.assert_close(compiled(x()), expected)
        assert settings.scale == 6.0


def test_containers_in_another_order():
    """Members of the same names and number, in another order."""
    from collections import OrderedDict

    def layers(*names):
        made = {"a": nn.Linear(4, 4), "b": nn.Tanh(), "c": nn.Linear(4, 4)}
        return nn.Sequential(OrderedDict((name, made[name]) for name in names))

    class Block(nn.Module):
        def __init__(self, *names) -> None:
            super().__init__()
            self.inner = layers(*names)

        def forward(self, x):
            for member in self.inner:
                x = member(x) + 1
            return x

    names = [("a", "b", "c")] * 3 + [("b", "a", "c"), ("a", "c", "b")]
    model = nn.Sequential(*(Block(*order) for order in names))
    check(model, x())


def test_autocast_and_modes_of_gradients():
    class Modes(Stack):
        def forward(self, x):
            x = self.layers[0](x)
            x = self.layers[1](x)
            with torch.no_grad():
                x = self.layers[2](x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.layers[3](x)
            return self.layers[4](x) + y.float()

    check(Modes(), x())


def test_tensors_that_lie_otherwise():
    class Transposing(Stack):
        def forward(self, x):
            for index, layer in enumerate(self.layers):
                x = layer(x)
                if index == 2:
                    x = x.t().contiguous().t()
            return x

    check(Transposing(kind=Views), torch.randn(4, 4))


def test_arguments_by_identity():
    def both(layer, x, y):
        y = layer(y) if x is not y else layer(y) * 2
        return x + y

    class Pairs(Stack):
        def forward(self, x):
            other = x * 2
            for layer in self.layers[:3]:
                x = both(layer, x, other)
            return both(self.layers[3], x, x) + both(self.layers[4], x, other)

    check(Pairs(), x())
