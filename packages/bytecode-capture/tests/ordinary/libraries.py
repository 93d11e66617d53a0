"""Programs that use what libraries give: state dicts of modules, dictionaries with attributes."""

from __future__ import annotations

import collections
import copy

import torch
from torch import nn

from . import Programs, X, Y

PROGRAMS = Programs()


MODEL = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
AVERAGE = copy.deepcopy(MODEL)
FIRST = copy.deepcopy(MODEL.state_dict())


def average_state():
    return {name: value.clone() for name, value in AVERAGE.state_dict().items()}


def reset_average():
    with torch.no_grad():
        for name, value in AVERAGE.state_dict().items():
            value.copy_(FIRST[name])


@PROGRAMS((X,), (Y,))
def state_read(x):
    state = MODEL.state_dict(prefix="m.")
    return x @ state["m.0.weight"] + state["m.0.bias"], list(state), state._metadata["m.1"]


@PROGRAMS((X,), (Y,))
def state_returned(x):
    state = MODEL[0].state_dict()
    return x + state["bias"], list(state.items()), state._metadata


@PROGRAMS((X,), (Y,), state=average_state, reset=reset_average)
def averaged(x):
    with torch.no_grad():
        new = MODEL.state_dict()
        for name, value in AVERAGE.state_dict().items():
            if value.is_floating_point():
                value.mul_(0.9).add_(new[name], alpha=0.1)
    return x + AVERAGE[0].bias.detach()


@PROGRAMS((X,), (Y,), state=average_state, reset=reset_average)
def loaded(x):
    AVERAGE.load_state_dict(MODEL.state_dict())
    return x + AVERAGE[0].bias.detach()


@PROGRAMS((X, FIRST), (Y, FIRST), state=average_state, reset=reset_average)
def loaded_in_part(x, state):
    kept = {name: value for name, value in state.items() if "bias" in name}
    missing, unexpected = AVERAGE.load_state_dict({**kept, "more": x}, strict=False)
    return x + AVERAGE[0].bias.detach(), missing, unexpected


@PROGRAMS((X, FIRST), (Y, FIRST))
def loaded_from_an_argument(x, state):
    twin = collections.OrderedDict(state)
    twin._metadata = state._metadata
    return x + 1, state._metadata[""], twin._metadata is state._metadata, hasattr(twin, "none")


class Marked(collections.OrderedDict):
    pass


def with_mark():
    made = collections.OrderedDict(a=1)
    made.mark = [1]
    return made


@PROGRAMS((X, collections.OrderedDict(a=1), Marked(a=2)), (Y, with_mark(), Marked()))
def marks(x, table, other):
    before = getattr(table, "mark", None)
    table.mark = x + 1
    table["b"] = 2
    other.mark = 3
    made = collections.OrderedDict(other, c=4)
    made.mark = table.mark
    copied = table.copy()
    return before, table, table.mark, other, other.mark, made, made.mark, hasattr(copied, "mark")
