"""Compiling one function or module again, with the same arguments, compiles no code again."""

import gc
import weakref

import torch
import weft

X = torch.randn(4, 3)


def scaled(x, factor=2.0):
    return x * factor


def test_a_function_shares_its_compiled_code():
    contexts = set()
    for _ in range(3):
        compiled = weft.compile(scaled)
        torch.testing.assert_close(compiled(X), X * 2)
        contexts.add(compiled.context)
    (context,) = contexts
    assert len(context.entries(scaled.__code__)) == 1


def test_other_arguments_have_their_own():
    one = weft.compile(scaled)
    others = [
        weft.compile(scaled, fullgraph=True),
        weft.compile(scaled, dynamic=True),
        weft.compile(scaled, mode="max-autotune"),
        weft.compile(scaled, options={"recompile_limit": 3}),
        weft.compile(scaled, backend="eager"),
        weft.compile(scaled, backend=lambda graph, inputs: graph.forward),
        weft.compile(lambda x: x * 2),
    ]
    assert len({compiled.context for compiled in (one, *others)}) == len(others) + 1
    for compiled in others:
        torch.testing.assert_close(compiled(X), X * 2)


def test_a_backend_is_called_once():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    for _ in range(3):
        torch.testing.assert_close(weft.compile(scaled, backend=backend)(X), X * 2)
    assert len(graphs) == 1


def test_a_module_shares_its_compiled_code():
    model, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    for _ in range(2):
        for module in (model, other):
            torch.testing.assert_close(weft.compile(module)(X), module(X))
    context = weft.compile(model)._compiled_forward.context
    assert len(context.entries(torch.nn.Linear.forward.__code__)) == 1
    assert weft.compile(other)._compiled_forward.context is not context


def test_what_a_later_call_finds_changed_is_seen():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    torch.testing.assert_close(weft.compile(model)(X), model(X))
    model.append(torch.nn.ReLU())
    torch.testing.assert_close(weft.compile(model)(X), model(X))


def test_compiled_code_dies_with_what_it_is_of():
    model = torch.nn.Linear(3, 3)

    def applied(x):
        return model(x) + 1

    def recursive(x, depth):
        return x if depth == 0 else recursive(x * 2, depth - 1)

    contexts = [
        weakref.ref(weft.compile(applied).context),
        weakref.ref(weft.compile(recursive).context),
        weakref.ref(weft.compile(model)._compiled_forward.context),
    ]
    torch.testing.assert_close(weft.compile(applied)(X), applied(X))
    torch.testing.assert_close(weft.compile(recursive)(X, 3), X * 8)
    torch.testing.assert_close(weft.compile(model)(X), model(X))
    alive = weakref.ref(model)
    assert all(context() is not None for context in contexts)
    model = applied = recursive = None
    gc.collect()
    assert alive() is None
    assert [context() for context in contexts] == [None, None, None]
