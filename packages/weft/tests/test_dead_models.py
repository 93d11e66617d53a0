"""A compiled function lives on and its model does not: the model's parameters are freed, as in eager."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
import torch
import weft

BACKENDS = ["eager", "weft"]
X = torch.linspace(-1, 1, 8).reshape(2, 4)


def model():
    return torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)
    )


def tensors(module):
    return [weakref.ref(value) for value in (module, *module.parameters(), *module.buffers())]


def alive(references):
    gc.collect()
    return [type(reference()).__name__ for reference in references if reference() is not None]


class Holder:
    def __init__(self, module):
        self.module = module

    def run(self, x):
        return self.module(x)


def of_argument():
    return lambda module, x: module(x), lambda function, module: function(module, X), None


def of_list():
    return lambda modules, x: modules[0](x), lambda function, module: function([module], X), None


def of_dict():
    return lambda given, x: given["a"](x), lambda function, module: function({"a": module}, X), None


def of_attribute():
    return (
        lambda holder, x: holder.module(x),
        lambda function, module: function(Holder(module), X),
        None,
    )


def of_bound_method():
    return Holder.run, lambda function, module: function(Holder(module), X), None


def of_closure():
    held = None

    def function(x):
        return held(x)

    def call(compiled, module):
        nonlocal held
        held = module
        return compiled(X)

    def let_go():
        nonlocal held
        held = None

    return function, call, let_go


def of_global():
    def call(compiled, module):
        globals()["MODULE"] = module
        return compiled(X)

    def let_go():
        del globals()["MODULE"]

    return lambda x: MODULE(x), call, let_go  # noqa: F821


def of_replaced_submodule():
    outer = torch.nn.Module()

    def call(compiled, module):
        outer.inner = module
        return compiled(outer, X)

    def let_go():
        outer.inner = torch.nn.Identity()

    return lambda module, x: module.inner(x), call, let_go


def behind_a_break():
    def function(module, x):
        y = module[0](x)
        time.sleep(0)
        return module[2](module[1](y)) + module(x)

    return function, lambda compiled, module: compiled(module, X), None


def of_a_branch():
    def function(module, x):
        y = module(x)
        if y.sum() > 0:  # kept whole: what its sides save is theirs
            return module[2](y.exp() @ module[0].weight[:2, :3])
        return module[2](y.sin() @ module[0].weight[:2, :3])

    return function, lambda compiled, module: compiled(module, X), None


def of_functional_call():
    def function(module, values, x):
        return torch.func.functional_call(module, values, (x,))

    def call(compiled, module):
        values = {name: value * 2 for name, value in module.named_parameters()}
        return compiled(module, values, X)

    return function, call, None


def of_parametrized():
    """Its layer's class is its own, with a property whose closure has the layer."""

    def call(compiled, module):
        torch.nn.utils.parametrizations.weight_norm(module[0])
        return compiled(module, X)

    return lambda module, x: module(x), call, None


def of_closure_of_an_argument():
    def call(compiled, module):
        return compiled(lambda x: module(x), X)

    return lambda inner, x: inner(x), call, None


WAYS = [
    of_argument, of_list, of_dict, of_attribute, of_bound_method, of_closure, of_global,
    of_replaced_submodule, behind_a_break, of_a_branch, of_functional_call,
    of_parametrized, of_closure_of_an_argument,
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_parameters_die_with_the_model(way, training, backend):
    function, call, let_go = way()
    compiled = weft.compile(function, backend=backend)

    def once():
        module = model().train(training)
        other = model().train(training)
        other.load_state_dict(module.state_dict())
        with torch.set_grad_enabled(training):
            expected = call(function, other)
            result = call(compiled, module)
        torch.testing.assert_close(result, expected)
        if training:
            (result * result).sum().backward()
            (expected * expected).sum().backward()
            for p, q in zip(module.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)
        for p, q in zip(module.buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(p, q)
        return tensors(module)

    for _ in range(3):
        references = once()
        if let_go is not None:
            let_go()
        assert alive(references) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_model_after_another(backend, recwarn):
    compiled = weft.compile(lambda module, x: module(x), backend=backend)
    references = []
    for width in range(50):
        module = torch.nn.Sequential(torch.nn.Linear(4, 2 + width % 5), torch.nn.ReLU())
        torch.testing.assert_close(compiled(module, X), module(X))
        references += [weakref.ref(parameter) for parameter in module.parameters()]
        del module
        if width % 10 == 0:
            assert alive(references) == []
    assert not [str(warning.message) for warning in recwarn if "compiled" in str(warning.message)]


def test_models_that_live_on_keep_their_code():
    compiled = weft.compile(lambda module, x: module(x), backend="eager")
    kept, dead = model().eval(), model().eval()
    expected = compiled(kept, X)
    compiled(dead, X)
    del dead
    gc.collect()
    with weft.set_stance("fail_on_recompile"):
        torch.testing.assert_close(compiled(kept, X), expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_and_its_model(kind):
    def step(module, optimizer, x):
        module(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    compiled = weft.compile(step, backend="eager")

    def once():
        module = model()
        optimizer = kind(module.parameters(), 0.1)
        for _ in range(2):
            compiled(module, optimizer, X)
        return [*tensors(module), weakref.ref(optimizer)]

    for _ in range(2):
        assert alive(once()) == []


def test_a_model_dies_in_another_thread_while_it_runs():
    """What runs ends as it would; then the parameters are freed."""
    started, go_on = threading.Event(), threading.Event()

    def backend(graph, inputs):
        def run(*values):
            started.set()
            assert go_on.wait(60)
            return graph(*values)

        return run

    modules = [model().eval()]
    expected = modules[0](X).detach()
    references = tensors(modules[0])
    compiled = weft.compile(lambda x: modules[0](x), backend=backend)
    results = []
    thread = threading.Thread(target=lambda: results.append(compiled(X)))
    thread.start()
    assert started.wait(60)
    modules[0] = torch.nn.Identity()
    gc.collect()
    go_on.set()
    thread.join()
    (result,) = results
    torch.testing.assert_close(result.detach(), expected)
    del result
    results.clear()
    assert alive(references) == []
    torch.testing.assert_close(compiled(X), X)
