"""capture() and compile_frames() with the evaluator: breaks in loops, disabled and nested functions."""

from __future__ import annotations

import copy
import functools
import inspect
import time
import weakref

import pytest
import torch
import weft_bytecode_capture as weft_capture
from weft_bytecode_capture import CaptureOptions, Unsupported, capture, compile_frames, disable


def run_graph(graph_module, example_inputs):
    return graph_module.forward


def test_breaks_in_a_loop_with_try():
    def f(x, n):
        out = []
        for i in range(n):
            x = x.sin() + 1
            time.sleep(0)
            y = x * 2
            out.append(y.sum().item())
            try:
                z = y / (i - 1)
                time.sleep(0)
                z = z + [1, 0][i]
            except IndexError:
                z = None
        return x, out, z

    x = torch.randn(3)
    options = CaptureOptions(recompile_limit=3)
    compiled = compile_frames(f, run_graph, options)
    with pytest.warns(UserWarning, match="was compiled 3 times"):
        result = compiled(x, 5)
    torch.testing.assert_close(result, f(x, 5))
    for n in (1, 2, 5):
        torch.testing.assert_close(compiled(x, n), f(x, n))


def test_break_in_with_restores_the_mode():
    def f(x):
        with torch.no_grad():
            y = x * 2
            time.sleep(0)
            z = y + x
        return z + x, z.requires_grad

    x = torch.randn(3, requires_grad=True)
    (out, inside), (plain, plain_inside) = capture(f)(x).result, f(x)
    torch.testing.assert_close(out, plain)
    assert (out.requires_grad, inside) == (plain.requires_grad, plain_inside) == (True, False)
    assert torch.is_grad_enabled()


def test_switches_of_modes_alone_are_no_graph():
    def f(x, seen):
        with torch.no_grad():
            time.sleep(0)
            seen.append(torch.is_grad_enabled())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            time.sleep(0)
            seen.append(torch.is_autocast_enabled("cpu"))
        torch.set_grad_enabled(False)
        torch.set_grad_enabled(True)
        seen.append(torch.is_grad_enabled())
        time.sleep(0)
        return seen

    x = torch.randn(3)
    compiled = compile_frames(f, run_graph)
    for _ in range(2):
        assert compiled(x, []) == f(x, []) == [False, True, True]
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
    for graph in capture(f)(x, []).graphs:
        nodes = graph.graph_module.graph.nodes
        assert torch.clear_autocast_cache in [node.target for node in nodes]


def test_disabled_function_breaks_the_graph():
    @weft_capture.disable
    def side(x):
        return x + 1

    def f(x):
        return side(x * 2) * 3

    x = torch.randn(3)
    result = capture(f)(x)
    torch.testing.assert_close(result.result, f(x))
    assert [b.kind for b in result.breaks] == ["call of a disabled function"]
    assert len(result.graphs) == 2


def test_compiled_function_is_captured_with_its_caller():
    inner = compile_frames(lambda x: x + 2, run_graph)

    def f(x):
        return inner(x) * 2

    x = torch.randn(3)
    result = capture(f)(x)
    torch.testing.assert_close(result.result, f(x))
    assert (len(result.graphs), result.breaks) == (1, ())


def test_is_compiling():
    def f(x):
        return weft_capture.is_compiling(), x + 1

    assert capture(f)(torch.ones(1)).result[0] is True
    assert weft_capture.is_compiling() is False


def test_objects_of_unknown_kinds_pass_through():
    class Meta(type):
        pass

    marker = memoryview(b"abc")

    def f(x, thing):
        y = x + 1
        kept = thing
        if kept is None:
            return None
        return y * 2, kept

    x = torch.randn(3)
    result = capture(f)(x, marker)
    assert result.result[1] is marker
    assert len(result.graphs) == 1
    assert capture(f)(x, None).result is None


def test_dead_tensors_are_no_outputs():
    def f(x):
        y = x + 1
        z = y * 2
        time.sleep(0)
        return z + 1

    result = capture(f)(torch.randn(3))
    output = next(n for n in result.graphs[0].graph_module.graph.nodes if n.op == "output")
    assert len(output.args[0]) == 1


def test_result_prints_graphs_guards_and_breaks():
    def f(x, scale):
        y = x * scale
        time.sleep(0)
        return y + 1

    text = str(capture(f)(torch.randn(3), 2.0))
    assert "graph 1: test_result_prints" in text
    assert "graph 2: test_result_prints" in text
    assert "L['scale']: 2.0  # " in text
    assert "break: call of a builtin function" in text
    known = capture(f)
    known(torch.randn(3), 2.0)
    assert known(torch.randn(3), 2.0).reports == ()


def test_module():
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()).eval()
    x = torch.randn(2, 3)
    with torch.no_grad():
        result = capture(module)(x)
    torch.testing.assert_close(result.result, module(x))
    assert (len(result.graphs), result.breaks) == (1, ())


def test_fullgraph():
    def f(x):
        time.sleep(0)
        return x + 1

    with pytest.raises(Unsupported, match="call of a builtin function") as error:
        compile_frames(f, run_graph, CaptureOptions(fullgraph=True))(torch.ones(1))
    assert f'File "{__file__}", line' in str(error.value)
    assert "time.sleep(0)" in str(error.value)


def test_users_exceptions_are_the_users():
    def f(x):
        y = x + 1
        return {}[int(y.dim())]

    with pytest.raises(KeyError, match="1") as error:
        compile_frames(f, run_graph)(torch.ones(1))
    assert (error.traceback[-1].name, error.traceback[-1].lineno) == (
        "f",
        f.__code__.co_firstlineno + 1,
    )


def test_random_numbers_are_the_programs():
    def f(x):
        return x + torch.rand(3)

    x = torch.zeros(3)
    compiled = compile_frames(f, run_graph)
    torch.manual_seed(1)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(1)
    torch.testing.assert_close((first, second), (f(x), f(x)), rtol=0, atol=0)


def test_code_of_a_backend_is_left_alone(tmp_path):
    scope = {}
    file = str(tmp_path / "stage" / "kernels.py")
    exec(compile("def double(x):\n    return x * 2\n", file, "exec"), scope)
    reports = []
    for folders, captured in ((frozenset(), True), (frozenset({str(tmp_path / "stage")}), False)):
        reports.clear()
        options = CaptureOptions(backend_folders=folders)
        compiled = compile_frames(scope["double"], run_graph, options, None, reports.append)
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
        assert any(report.graph is not None for report in reports) is captured


class _Counter:
    def __init__(self):
        self.calls = 0

    def step(self, x, scale=2.0):
        """Counts."""
        self.calls += 1
        return x * scale


@pytest.mark.parametrize("wrap", [lambda f: compile_frames(f, run_graph), disable])
def test_a_compiled_method_has_a_methods_parts(wrap):
    counter, other = _Counter(), _Counter()
    step = wrap(counter.step)
    assert step.__self__ is counter
    assert (step.__name__, step.__doc__, step.__wrapped__) == ("step", "Counts.", counter.step)
    x = torch.ones(3)
    again = functools.wraps(step.__func__)(
        lambda *given: step.__func__.__get__(other, _Counter)(*given)
    )
    assert torch.equal(step.__func__(counter, x, 3.0), x * 3)
    assert torch.equal(again(x), x * 2)
    assert torch.equal(step(x), x * 2)
    assert (counter.calls, other.calls) == (2, 1)
    assert inspect.signature(step) == inspect.signature(counter.step)
    assert weakref.ref(step)() is step
    assert copy.copy(step) is copy.deepcopy(step) is step


def test_a_scheduler_takes_an_optimizer_whose_step_is_compiled():
    weights = []
    for compiled in (True, False):
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        if compiled:
            optimizer.step = compile_frames(optimizer.step, run_graph)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for _ in range(4):
            optimizer.zero_grad()
            (weight**2).sum().backward()
            optimizer.step()
            scheduler.step()
        weights.append(weight.detach())
    assert torch.equal(*weights)


def test_results_and_graphs_are_represented_in_a_line():
    result = capture(lambda x: x + 1)(torch.ones(2))
    assert repr(result) == "<CaptureResult: 1 graphs, 0 graph breaks>"
    assert repr(result.graphs) == "(<CapturedGraph: 3 nodes, 1 inputs>,)"
