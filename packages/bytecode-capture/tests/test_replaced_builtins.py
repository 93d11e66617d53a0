"""Builtins that the program replaces, which compiling calls too: frames run as plain Python meanwhile."""

import builtins

import pytest
import torch
from differential import run_graph, same
from weft_bytecode_capture import compile_frames

X = torch.arange(3.0)
NAMES = (
    "all any callable dict enumerate filter getattr hasattr hash id isinstance iter len list map max min "
    "next range repr reversed set sorted str sum tuple type zip"
).split()


def program(x):
    a = sorted([3, 1, 2])
    return x + len(a), list(zip(a, a, strict=True)), max(a)


@pytest.mark.parametrize("name", NAMES)
def test_a_builtin_that_answers_otherwise(name):
    seen = []
    original = getattr(builtins, name)

    def mine(*args, **kwargs):
        seen.append(name)
        return "xy"

    def outcome(function):
        del seen[:]
        setattr(builtins, name, mine)
        try:
            return function(X), seen.copy()
        except Exception as error:
            return error.args, seen.copy()
        finally:
            setattr(builtins, name, original)

    compiled = compile_frames(program, run_graph)
    wanted = outcome(program)
    for _ in range(2):
        assert same(outcome(compiled), wanted)
    assert same(compiled(X), program(X))


def test_once_it_is_put_back_frames_are_compiled(monkeypatch):
    graphs = []

    def backend(graph_module, inputs):
        graphs.append(graph_module)
        return graph_module.forward

    compiled = compile_frames(program, backend)
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "sorted", lambda values: [7])
        assert same(compiled(X), (X + 1, [(7, 7)], 7))
        assert not graphs
    assert same(compiled(X), program(X))
    assert len(graphs) == 1
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "print", lambda *args: None)
        assert same(compile_frames(program, backend)(X), program(X))
        assert len(graphs) == 2
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "sorted", lambda values: [7])
        assert same(compiled(X), (X + 1, [(7, 7)], 7))
