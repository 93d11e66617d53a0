"""What inputs of a graph are called."""

from __future__ import annotations

import keyword
import re

import torch
from weft_guards import Source

# What says nothing in the name of a parameter: L['self'].__dict__['_modules']['fc'] is self.fc.
_NOISE = re.compile(r"__dict__|\['_(?:modules|parameters|buffers)'\]|^[LGC](?=\[)|[^A-Za-z0-9_]+")


def readable_name(source: Source) -> str:
    """An identifier that says where a tensor was found, much as the program writes it."""
    words = _NOISE.sub(" ", source.name()).split()
    name = "_".join(words).lower()
    is_name = name.isidentifier() and not keyword.iskeyword(name) and name != "self"  # of the graph
    return name if is_name else f"tensor_{name}"


def free_name(source: Source, module: torch.nn.Module) -> str:
    """The same, which ``module`` has no attribute of yet; asking the module itself makes an error's text."""
    name = readable_name(source)
    own = (module.__dict__, module._parameters, module._buffers, module._modules)
    while any(name in attributes for attributes in own) or hasattr(type(module), name):
        name += "_"
    return name
