"""What torch lets a layer do besides operators, played back or evaluated for each: as in eager."""

from __future__ import annotations

import pytest
import torch
from test_playback import Layer, Stack, check, x
from torch import nn
from torch.utils.checkpoint import checkpoint


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, scale):
        ctx.save_for_backward(value)
        ctx.scale = scale
        return value * value * scale

    @staticmethod
    def backward(ctx, gradient):
        (value,) = ctx.saved_tensors
        return gradient * value * ctx.scale * 3, None


class OwnGradients(Layer):
    def forward(self, x):
        return x + self.out(Scaled.apply(self.mixed(x), self.scale))


class Checkpointed(Layer):
    def forward(self, x):
        return x + self.out(checkpoint(self.mixed, x, use_reentrant=False))


class Hooked(Layer):
    def forward(self, x):
        y = self.mixed(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * 2)
        return x + self.out(y)


class Transformed(Layer):
    def forward(self, x):
        rows = torch.vmap(lambda row: (row * self.scale).sum())(x)
        return super().forward(x) * rows.unsqueeze(-1)


class Differentiated(Layer):
    def forward(self, x):
        slope = torch.func.grad(lambda value: (value.sin() * self.scale).sum())(x)
        return super().forward(x) + slope


class Autocast(Layer):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.into(x)
        return x + self.out(y.float())


class OwnAttributes(Layer):
    def forward(self, x):
        y = self.mixed(x)
        y.note = self.scale
        return x + self.out(y) * y.note


class Parameters(Layer):
    def forward(self, x):
        total = sum(parameter.sum() for parameter in self.parameters())
        return super().forward(x) + total


class Listed(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.settings = {"scales": [1.0, 2.0], "shape": (3, 4)}

    def forward(self, x):
        for scale in self.settings["scales"]:
            x = x + self.out(self.mixed(x)) * scale
        return x.reshape(self.settings["shape"])


class Detached(Layer):
    def forward(self, x):
        y = self.mixed(x)
        return x + self.out(y.detach() + y * 0.5) + y.data.mean()


class Chunked(Layer):
    def forward(self, x):
        first, second = self.mixed(x).split(4, dim=-1)
        values, indices = first.sort(dim=-1)
        return x + values * second + indices


KINDS = [
    OwnGradients, Checkpointed, Hooked, Transformed, Differentiated, Autocast, OwnAttributes, Parameters,
    Listed, Detached, Chunked,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [False, True])
def test_layers(kind, training):
    torch.manual_seed(0)
    with torch.set_grad_enabled(training):
        check(Stack(kind=kind), x().requires_grad_(training), training=training)


@pytest.mark.parametrize(
    "change",
    [
        lambda settings: settings["scales"].__setitem__(1, 5.0),
        lambda settings: settings["scales"].append(1.0),
        lambda settings: settings.update(shape=(4, 3)),
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_one_layer_has_other_settings(change, before):
    stack = Stack(kind=Listed)
    stack.layers[4].settings = {"scales": [1.0, 2.0], "shape": (3, 4)}

    def changed(model):
        change(model.layers[4].settings)

    if before:
        changed(stack)
    check(stack, x(), change=None if before else changed)


def test_settings_of_libraries():
    """What a layer finds of cuDNN's settings is what holds as it is called."""

    class Asking(Layer):
        def forward(self, x):
            return super().forward(x) * (2 if torch.backends.cudnn.enabled else 3)

    class Switching(Stack):
        def forward(self, x):
            x = self.layers[0](x)
            with torch.backends.cudnn.flags(enabled=False):
                x = self.layers[1](x)
                x = self.layers[2](x)
            return self.layers[4](self.layers[3](x))

    check(Switching(kind=Asking), x())


def test_parametrized_layers():
    stack = Stack()
    for layer in stack.layers:
        nn.utils.parametrizations.weight_norm(layer.into)
    check(stack, x())
