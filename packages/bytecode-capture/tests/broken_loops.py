"""Loops over layers that break in each turn, for counting what is compiled; see test_broken_loops.py."""

# The programs below are written as people write them, not as linters like them.
# ruff: noqa: B007, B905, C417, UP028

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import weft_bytecode_capture
from torch import nn

logger = logging.getLogger("broken_loops")
SEEN: list[float] = []


@weft_bytecode_capture.disable
def foreign(x: torch.Tensor) -> torch.Tensor:
    """A library's call that capture does not look into."""
    SEEN.append(round(float(x.detach().sum()), 3))
    return x


class Layer(nn.Module):
    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.breaks:
            foreign(y)
        return x + self.norm(y).relu()


@dataclass
class Output:
    last: torch.Tensor
    all_hidden_states: Any = None


class Model(nn.Module):
    """Layers that are alike, and lists and dicts as a model has them beside its layers."""

    def __init__(
        self, run: Callable[..., Any], count: int, breaks: bool = False, pause: Any = foreign
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(breaks) for _ in range(count))
        self.head = nn.Linear(4, 4)
        self.run = run
        self.pause = pause

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


def plain(model, x):
    for layer in model.layers:
        x = layer(x)
        model.pause(x)
    return model.head(x)


def tuple_growth(model, x):
    states = ()
    for layer in model.layers:
        states = states + (x,)
        x = layer(x)
        model.pause(x)
    states = states + (x,)
    return Output(model.head(x), states)


def tuple_growth_in_place(model, x, output_states=True):
    states = () if output_states else None
    for i, layer in enumerate(model.layers):
        if output_states:
            states += (x,)
        x = layer(x)
        model.pause(x)
    if output_states:
        states += (x,)
    return tuple(v for v in (model.head(x), states) if v is not None)


def list_growth(model, x):
    states = []
    for layer in model.layers:
        states.append(x)
        x = layer(x)
        model.pause(x)
    return model.head(x), states


def counted_growth(model, x):
    states = []
    for layer in model.layers:
        if len(states) == 0:
            states.append(x)
        x = layer(x)
        states.append(x if len(states) != 1000 else None)
        model.pause(x)
    return model.head(x), states, len(states)


def enumerated(model, x):
    taken = []
    for i, layer in enumerate(model.layers):
        x = layer(x)
        model.pause(x)
        if i % 2 == 0:
            taken.append(x)
    return model.head(x), taken


def enumerated_use(model, x):
    for i, layer in enumerate(model.layers):
        x = layer(x) * (i + 1)
        model.pause(x)
    return model.head(x)


def by_index(model, x):
    for i in range(len(model.layers)):
        x = model.layers[i](x)
        model.pause(x)
    return model.head(x)


def zipped(model, x):
    masks = [x.sign() for _ in model.layers]
    for layer, mask in zip(model.layers, masks):
        x = layer(x) * mask
        model.pause(x)
    return model.head(x)


def zipped_range(model, x):
    for i, layer in zip(range(len(model.layers)), model.layers):
        x = layer(x)
        model.pause(x)
    return model.head(x)


def reversed_layers(model, x):
    for layer in reversed(model.layers):
        x = layer(x)
        model.pause(x)
    return model.head(x)


def counter(model, x):
    i = 0
    while i < len(model.layers):
        x = model.layers[i](x)
        model.pause(x)
        i += 1
    return model.head(x)


def dict_cache(model, x):
    cache = {}
    for i, layer in enumerate(model.layers):
        cache[i] = x
        x = layer(x)
        model.pause(x)
    return model.head(x), cache


def past_values(model, x):
    past = [torch.full_like(x, 0.5) for _ in model.layers]
    for i, layer in enumerate(model.layers):
        x = layer(x) + past[i]
        model.pause(x)
    return model.head(x)


def past_values_tuple(model, x):
    past = tuple((x + 1, x - 1) for _ in model.layers)
    present = ()
    for i, layer in enumerate(model.layers):
        key, value = past[i]
        x = layer(x) + key * value
        present = present + ((key, value),)
        model.pause(x)
    return model.head(x), present


def layers_of(model) -> Iterator[nn.Module]:
    for layer in model.layers:
        yield layer


def generated(model, x):
    for layer in layers_of(model):
        x = layer(x)
        model.pause(x)
    return model.head(x)


def comprehension_generator(model, x):
    for layer in (layer for layer in model.layers if layer is not None):
        x = layer(x)
        model.pause(x)
    return model.head(x)


def mapped(model, x):
    for i, layer in map(lambda i: (i, model.layers[i]), range(len(model.layers))):
        x = layer(x)
        model.pause(x)
    return model.head(x)


def dict_items(model, x):
    for name, layer in model.layers.named_children():
        x = layer(x)
        model.pause(x)
    return model.head(x)


def module_items(model, x):
    for layer in model.layers._modules.values():
        x = layer(x)
        model.pause(x)
    return model.head(x)


def next_of_zip(model, x):
    pairs = zip(model.layers, range(100))
    for _ in range(len(model.layers)):
        layer, i = next(pairs)
        x = layer(x)
        model.pause(x)
    return model.head(x), i


def next_of_range(model, x):
    numbers = iter(range(len(model.layers)))
    for layer in model.layers:
        number = next(numbers)
        x = layer(x)
        model.pause(x)
    return model.head(x), number


def sliced(model, x):
    for layer in model.layers[1:]:
        x = layer(x)
        model.pause(x)
    return model.head(x)


def deberta_like(model, x, output_states=True):
    """The loop of DeBERTa's encoder."""
    states = (x,) if output_states else None
    next_kv = x
    for i, layer in enumerate(model.layers):
        output_states_ = layer(next_kv)
        model.pause(output_states_)
        if output_states:
            states = states + (output_states_,)
        if isinstance(x, (tuple, list)):
            next_kv = x[i + 1] if i + 1 < len(model.layers) else None
        else:
            next_kv = output_states_
    return Output(next_kv, states)


def inside_layer(model, x):
    """Only the layers themselves break."""
    states = ()
    for layer in model.layers:
        states += (x,)
        x = layer(x)
    return model.head(x), states


def inside_layer_enumerated(model, x):
    states = []
    for i, layer in enumerate(model.layers):
        states.append(x)
        x = layer(x)
    return model.head(x), states


def item_branch(model, x):
    for layer in model.layers:
        x = layer(x)
        if x.sum().item() > 1000:
            warnings.warn("large", stacklevel=2)
    return model.head(x)


def logged(model, x):
    for i, layer in enumerate(model.layers):
        x = layer(x)
        logger.warning("layer %s of %s: %s", i, len(model.layers), x.shape)
    return model.head(x)


def sleeps(model, x):
    for i, layer in enumerate(model.layers):
        x = layer(x)
        time.sleep(0 * abs(x.mean().item()))
    return model.head(x)


PROGRAMS = [
    plain, tuple_growth, tuple_growth_in_place, list_growth, counted_growth, enumerated, enumerated_use,
    by_index, zipped, zipped_range, reversed_layers, counter, past_values, past_values_tuple, generated,
    comprehension_generator, mapped, dict_items, module_items, next_of_zip, next_of_range, sliced,
    deberta_like, item_branch, logged,
]  # fmt: skip
INSIDE = [inside_layer, inside_layer_enumerated]
GROWING = [dict_cache, sleeps]
"""Those of which some of what is compiled is for one layer alone."""
