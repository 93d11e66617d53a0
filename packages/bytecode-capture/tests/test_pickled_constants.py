"""``pickle.dumps`` of constants as keys of caches."""

import functools
import pickle

import pytest
import torch
from differential import check
from weft_bytecode_capture import CaptureOptions, capture
from weft_bytecode_capture.captured_graph import GraphBreakError


class Cached:
    def __init__(self):
        self.memory = {}

    def __call__(self, x, **options):
        key = "scaled", pickle.dumps(options)
        if key not in self.memory:
            self.memory[key] = x * options.get("scale", 2)
        return self.memory[key] + 1


def cached(x):
    kept = Cached()
    return kept(x), kept(x * 3), kept(x, scale=3, name="a"), kept(x, scale=3.0), len(kept.memory)


def texts(x):
    return x + 1, [
        pickle.dumps({}),
        pickle.dumps({"upper": False, "size": 3}),
        pickle.dumps((1, 2.5, None, b"a")),
        pickle.dumps([True, "b"], 2),
        pickle.dumps(1 << 80),
    ]


@pytest.mark.parametrize("function", [cached, texts])
def test_in_one_graph(function):
    check(function, [(torch.arange(3.0),)] * 2)


def tensors(x):
    return len(pickle.dumps({"x": x})) > 3


def functions(x):
    return x + len(pickle.dumps({"f": functools.reduce}))


@pytest.mark.parametrize("function", [tensors, functions])
def test_of_other_things_breaks(function):
    with pytest.raises(GraphBreakError):
        capture(function, options=CaptureOptions(fullgraph=True))(torch.arange(3.0))
