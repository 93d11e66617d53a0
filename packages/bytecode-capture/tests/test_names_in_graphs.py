"""Parameters of a graph are named as the program writes them: two may read alike, or mean something else."""

import math
import types

import pytest
import torch
from differential import check

module = types.ModuleType("settings")
exec("scale = 2\ndef scaled(x):\n    return x * scale\n", module.__dict__)

X = torch.ones(3) * 5


def an_argument_and_a_global(x):
    return x + X


def keys(d):
    return d["a-b"] * 2 + d["a_b"] * 3 + d["A_b"]


def paths(d):
    return d["a"]["b"] * 2 + d["a_b"] * 3


def numbers_of_a_module(x):
    return module.scaled(x) + module.scale


ALIKE = {
    an_argument_and_a_global: torch.ones(3),
    keys: {"a-b": torch.ones(3), "a_b": torch.ones(3), "A_b": torch.ones(3)},
    paths: {"a": {"b": torch.ones(3)}, "a_b": torch.ones(3)},
}


@pytest.mark.parametrize("function", ALIKE, ids=lambda function: function.__name__)
def test_sources_that_read_alike(function):
    check(function, [(ALIKE[function],)])


def test_varying_numbers_that_read_alike():
    def changed(x, scale):
        module.scale = scale
        return numbers_of_a_module(x)

    try:
        check(changed, [(torch.ones(3), scale) for scale in (2, 5, 7)], fullgraph=False)
    finally:
        module.scale = 2


# What graphs that are printed call things of their own, and what Python or this package means by a word.
WORDS = (
    "inf nan device torch NoneType fx_pytree pytree math operator self forward args kwargs input output"
    " slice getattr len layout match type case print add mul getitem graph e é _ __x x_ Tensor"
)


@pytest.mark.parametrize("word", WORDS.split())
def test_arguments_called_what_graphs_mean_otherwise(word):
    lines = (
        f"y = (library.add({word}, 1) * {word}.shape[0]).to(library.float64, copy=True)",
        f"z = {word}[None, ..., :1] * float('inf'), {word} * float('nan'), {word}[0:2] * infinite",
        "return y.to('cpu').sum(0, keepdim=True), z",
    )
    namespace = {"library": torch, "infinite": math.inf}
    exec(f"def function({word}):\n    " + "\n    ".join(lines), namespace)
    check(namespace["function"], [(torch.ones(3),), (torch.ones(4),)])
