"""``torch.inference_mode``: results are inference tensors exactly where those of eager are."""

from __future__ import annotations

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import CaptureOptions, capture, compile_frames

WEIGHT = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
CALLS = [(torch.arange(6.0).reshape(2, 3) - 2,), (torch.ones(4, 3),)]


def kinds(*tensors):
    """What is to be seen of tensors beside their values."""
    return [(t.is_inference(), t.requires_grad, torch.is_inference_mode_enabled()) for t in tensors]


@torch.inference_mode()
def decorated(x):
    y = x @ WEIGHT.t()
    return y, y.relu(), torch.is_inference_mode_enabled(), torch.is_grad_enabled(), y.is_inference()


@torch.inference_mode
def decorated_without_parentheses(x):
    return x * 2, x[1:], x


@torch.inference_mode(mode=False)
def decorated_to_be_outside(x):
    return x * WEIGHT.sum(), torch.is_inference_mode_enabled()


def whole_block(x):
    with torch.inference_mode():
        y = x @ WEIGHT.t()
        return y, x.view(-1), x[1:].relu()


def block_at_the_end(x):
    scale = x.shape[0] + 1
    with torch.inference_mode():
        with torch.enable_grad():
            y = x * WEIGHT.sum()
        result = {"y": y * scale, "modes": (torch.is_grad_enabled(), y.requires_grad)}
    return result, torch.is_inference_mode_enabled(), torch.is_grad_enabled()


def writes_inside(x):
    with torch.inference_mode():
        x.mul_(2)
        x[0] = 1
        return x, x.sum(0)


def gradients_off_around(x):
    with torch.no_grad():
        with torch.inference_mode():
            y = x + WEIGHT.sum()
        inside = torch.is_grad_enabled()
    return y, inside, torch.is_grad_enabled()


def outside_of_no_grad(x):
    with torch.no_grad(), torch.inference_mode(False):
        return x * WEIGHT.sum(), torch.is_grad_enabled()


def raises_inside(x):
    try:
        with torch.inference_mode():
            y = x + 1
            raise KeyError("inside")
    except KeyError:
        return y, torch.is_inference_mode_enabled()


def autocast_inside(x):
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ WEIGHT.t()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.layer = torch.nn.Linear(3, 3)

    @torch.inference_mode()
    def forward(self, x):
        self.seen += 1
        return self.layer(x)


ONE_GRAPH = {
    f.__name__: f
    for f in (
        *(decorated, decorated_without_parentheses, decorated_to_be_outside, whole_block),
        *(block_at_the_end, writes_inside, gradients_off_around, outside_of_no_grad),
        *(raises_inside, autocast_inside),
    )
}


def before_and_inside(x):
    y = x * WEIGHT.sum()
    with torch.inference_mode():
        z = y + 1
    return y, z


def inside_and_behind(x):
    with torch.inference_mode():
        y = x * WEIGHT.sum()
    return y, x * WEIGHT.sum(), torch.is_inference_mode_enabled()


def break_inside(x):
    with torch.inference_mode():
        y = x * WEIGHT.sum()
        total = float(y.sum())
        z = y * total
    return y, z, x * WEIGHT.sum(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def break_inside_two(x):
    with torch.no_grad(), torch.inference_mode():
        with torch.inference_mode(False), torch.enable_grad():
            y = x * WEIGHT.sum()
            total = float(y.detach().sum())
            z = y * total
        u = x * total
    return y, z, u, torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def write_behind(x):
    with torch.inference_mode():
        y = x * 2
    y.add_(1)
    return y


def gradients_of_inference_tensors(x):
    with torch.inference_mode():
        y = x * 2
    return y * WEIGHT.sum()


SPLIT = {
    f.__name__: f
    for f in (
        *(before_and_inside, inside_and_behind, break_inside, break_inside_two, write_behind),
        gradients_of_inference_tensors,
    )
}


@pytest.mark.parametrize("name", ONE_GRAPH)
@pytest.mark.parametrize("around", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_one_graph(name, around):
    x = torch.ones(2, 3)
    with around():
        check(ONE_GRAPH[name], CALLS)
        (graph,) = capture(ONE_GRAPH[name])(x).graphs
    if around is not torch.inference_mode and graph.inference_mode is not None:
        assert graph.inference_mode


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("around", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_split(name, around):
    with around():
        check(SPLIT[name], CALLS, fullgraph=False)


def test_what_two_graphs_are_split_by():
    found = capture(before_and_inside)(torch.ones(2, 3))
    assert [graph.inference_mode for graph in found.graphs] == [None, None]
    assert found.breaks[0].kind == "inference mode switched between operators"
    assert found.breaks[0].hints
    assert len(capture(inside_and_behind)(torch.ones(2, 3)).graphs) == 2


def test_inputs_made_inside_and_outside():
    with torch.inference_mode():
        inside = torch.ones(2, 3)
    outside = torch.ones(2, 3)

    def function(x, y):
        with torch.inference_mode():
            x.add_(y)
            return x, y[0], x * y

    compiled = compile_frames(function, run_graph, CaptureOptions(fullgraph=True))
    for pair in ((outside, inside), (inside, outside), (outside, outside.clone())):
        plain = function(*(t.clone() for t in pair))
        found = compiled(*(t.clone() for t in pair))
        assert kinds(*found) == kinds(*plain)
        torch.testing.assert_close(found, plain)


def test_a_module_counts_its_calls_inside():
    module = Model()
    compiled = compile_frames(module, run_graph, CaptureOptions(fullgraph=True))
    x = torch.ones(2, 3)
    for calls in (1, 2, 3):
        assert kinds(compiled(x)) == [(True, False, False)]
        assert module.seen.item() == calls


def test_a_mode_that_the_caller_leaves():
    def enters(context, x):
        context.__enter__()
        return x * 2

    compiled = compile_frames(enters, run_graph)
    for function in (enters, compiled, compiled):
        context = torch.inference_mode()
        y = function(context, torch.ones(3))
        assert torch.is_inference_mode_enabled() and y.is_inference()
        context.__exit__(None, None, None)
        assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
