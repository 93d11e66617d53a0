"""What ``torch.compiler`` has a program say of functions, tensors and guards: torch's marks and weft's."""

from __future__ import annotations

import binascii
import copy
import io
import math
import operator
import pickle
import time

import pytest
import torch
import torch._dynamo
import weft


def reports(function, *calls, **options) -> list:
    """The frames compiled for the calls, whose results are eager's."""
    compiled = weft.compile(function, backend="eager", **options)
    log = weft.CompileLog()
    with weft.observe(log):
        for arguments in calls:
            torch.testing.assert_close(compiled(*arguments), function(*arguments))
    return log.conversions


X = torch.arange(6.0).reshape(2, 3)

DISABLE = [torch.compiler.disable, weft.disable]
ALLOW = [torch.compiler.allow_in_graph, weft.allow_in_graph]
CONSTANT = [torch.compiler.assume_constant_result, weft.assume_constant_result]
WHOSE = ["torch's", "weft's"]


@pytest.mark.parametrize("mark", DISABLE, ids=WHOSE)
def test_disabled_functions_run_as_they_are(mark) -> None:
    seen = []

    @mark
    def aside(x):
        seen.append(type(x))
        return x + 1

    found = reports(lambda x: aside(x * 2) * 3, (X,))
    assert [r.graph_break.kind for r in found if r.graph_break] == ["call of a disabled function"]
    assert seen == [torch.Tensor] * 2  # never a fake


@pytest.mark.parametrize("mark", ALLOW, ids=WHOSE)
def test_allowed_functions_are_nodes_of_the_graph(mark) -> None:
    def opaque(x, factor):
        time.sleep(0)
        return x * factor

    mark(opaque)
    (report,) = reports(lambda x: opaque(x + 1, 3.0) - 1, (X,))
    assert report.graph_break is None
    assert opaque in {node.target for node in report.graph.graph_module.graph.nodes}


def test_functions_traced_loosely_are_inlined() -> None:
    """Containers of any kind go in and come out; gradients flow."""
    mark = getattr(torch.compiler, "nonstrict_trace", torch._dynamo.nonstrict_trace)

    @mark
    def parts(given, factor):
        return {"a": given["x"].sin() * factor, "b": [given["x"].cos()]}

    def program(x):
        made = parts({"x": x}, 2.0)
        return made["a"] + made["b"][0]

    (report,) = reports(program, (X,), fullgraph=True)
    assert report.graph_break is None
    x = X.clone().requires_grad_()
    weft.compile(program, fullgraph=True)(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * X.cos() - X.sin())


@pytest.mark.parametrize("mark", CONSTANT, ids=WHOSE)
@pytest.mark.parametrize("result", [5, 2.5, (2, 3), "ab", None])
def test_constant_results_are_computed_once(mark, result) -> None:
    calls = []

    def setting(*arguments):
        calls.append(arguments)
        return result

    mark(setting)

    def program(x):
        value = setting("name", 3)
        return x * len(value) if isinstance(value, (tuple, str)) else x * (value or 1)

    compiled = weft.compile(program, backend="eager", fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), program(X))
    assert len(calls) == 1 + 3  # capture's, and eager's three


def test_constant_results_of_other_arguments_break(monkeypatch) -> None:
    @weft.assume_constant_result
    def size(x):
        return x.shape[0]

    found = reports(lambda x: x * size(x), (X,))
    assert any(report.graph_break for report in found)


def test_errors_of_constant_functions_are_the_programs() -> None:
    @weft.assume_constant_result
    def failing():
        raise KeyError("no such setting")

    with pytest.raises(KeyError, match="no such setting"):
        weft.compile(lambda x: x * failing(), backend="eager", fullgraph=True)(X)


def test_substitutes_are_evaluated_in_place_of_c_functions() -> None:
    """``math.comb`` has no model of capture's own; a call elsewhere still goes to C."""
    used = []

    @weft.substitute_in_graph(math.comb)
    def comb(n, k, /):
        used.append(1)
        result = 1
        for i in range(k):
            result = result * (n - i) // (i + 1)
        return result

    def program(x):
        return x * math.comb(5, 2)

    compiled = weft.compile(program, backend="eager")
    torch.testing.assert_close(compiled(X), X * 10)
    assert math.comb(6, 3) == 20
    assert weft.substitute_in_graph(math.comb)(comb) is comb


def test_torchs_substitutes_count() -> None:
    """Of C functions and of Python functions; a call elsewhere still goes to what they stand for."""

    def opaque(n):
        time.sleep(0)
        return n + 2

    @torch.compiler.substitute_in_graph(binascii.crc_hqx)
    def shifted(data, crc, /):
        return crc + len(data)

    @torch.compiler.substitute_in_graph(opaque)
    def clear(n):
        return n + 2

    def program(x):
        return x * binascii.crc_hqx(b"abc", 2) + shifted(b"", 4) + opaque(3) + clear(4)

    compiled = weft.compile(program, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), X * 5 + 4 + 5 + 6)
    assert binascii.crc_hqx(b"abc", 2) != 5


@pytest.mark.parametrize(
    "wrong", [lambda: weft.substitute_in_graph(3), lambda: weft.substitute_in_graph(math.gcd)(3)]
)
def test_substitutes_have_to_be_functions(wrong) -> None:
    with pytest.raises(TypeError):
        wrong()


def test_torchs_own_polyfills_change_nothing() -> None:
    (report,) = reports(lambda x: x * operator.indexOf([1, 2, 3], 2), (X,))
    assert report.graph_break is None


def test_regions_compiled_once_are_inlined() -> None:
    @torch.compiler.nested_compile_region
    def block(x):
        return x.sin() + 1

    (report,) = reports(lambda x: block(block(x)), (X,))
    assert report.graph_break is None


def test_steps_of_torchs_cuda_graphs_are_nothing() -> None:
    def program(x):
        torch.compiler.cudagraph_mark_step_begin()
        return x + 1

    (report,) = reports(program, (X,))
    assert report.graph_break is None


MARKS = {
    "weft.maybe_mark_dynamic": weft.maybe_mark_dynamic,
    "torch's": lambda t, d: torch._dynamo.maybe_mark_dynamic(t, d),
    "weft.mark_unbacked": weft.mark_unbacked,
    "torch's unbacked": lambda t, d: torch._dynamo.decorators.mark_unbacked(t, d),
}


@pytest.mark.parametrize("name", MARKS)
def test_marked_sizes_vary_from_the_first_call_on(name) -> None:
    first = torch.ones(4, 3)
    MARKS[name](first, 0)
    sizes = (7, 2) if "maybe" in name or name == "torch's" else (7, 1)
    found = reports(lambda x: x * 2 + x.shape[0], (first,), *((torch.ones(n, 3),) for n in sizes))
    assert len(found) == 1


@pytest.mark.parametrize("torchs", [False, True], ids=["weft's", "torch's"])
def test_bounds_of_unbacked_sizes_count(torchs) -> None:
    """As with torch a size outside of them is compiled for by itself, or refused."""
    mark = torch._dynamo.decorators.mark_unbacked if torchs else weft.mark_unbacked
    first = torch.ones(4, 3)
    try:
        mark(first, 0, min=3, max=8)
    except TypeError:
        pytest.skip("this torch has no bounds of unbacked sizes")
    compiled = weft.compile(lambda x: x * 2, backend="eager")
    log = weft.CompileLog()
    with weft.observe(log):
        for size in (4, 3, 8):
            compiled(first if size == 4 else torch.ones(size, 3))
        assert len(log.conversions) == 1
        compiled(torch.ones(9, 3))
    assert len(log.conversions) == 2


def test_strictly_unbacked_sizes_vary() -> None:
    first = torch.ones(4, 3)
    torch._dynamo.decorators.mark_unbacked(first, 0, strict=True)
    assert len(reports(lambda x: x * 2, (first,), (torch.ones(1, 3),), (torch.ones(9, 3),))) == 1


def test_a_size_that_may_vary_may_be_fixed() -> None:
    first = torch.ones(4, 3)
    weft.maybe_mark_dynamic(first, 0)
    found = reports(lambda x: x * 2 if x.shape[0] == 4 else x, (first,), (torch.ones(5, 3),))
    assert len(found) == 2
    with pytest.raises(ValueError, match="out of range"):
        weft.maybe_mark_dynamic(first, 2)


@pytest.mark.parametrize("stance", ["force_eager", "eager_on_recompile"])
def test_stances_as_decorators(stance) -> None:
    log = weft.CompileLog()
    compiled = weft.compile(lambda x: x + 1, backend="eager")

    @weft.set_stance(stance)
    def inside(x):
        """Runs what is compiled already."""
        return compiled(x)

    with weft.observe(log):
        assert torch.equal(inside(X), X + 1) and not log.conversions
        compiled(X)
        assert len(log.conversions) == 1  # outside of it the stance is the old one
        inside(X.double())
    assert len(log.conversions) == 1
    assert inside.__doc__ == "Runs what is compiled already."


def test_recompilation_may_be_an_error() -> None:
    compiled = weft.compile(
        lambda x: x + 1, backend="eager", options={"error_on_recompile": True, "strict": True}
    )
    compiled(X)
    compiled(X)
    with pytest.raises(weft.RecompileError, match=r"error_on_recompile is set.*"):
        compiled(X.double())
    torch.testing.assert_close(compiled(X), X + 1)


def test_a_filter_chooses_the_guards() -> None:
    seen: list[weft.GuardEntry] = []

    def keep(entries):
        seen.extend(entries)
        return [entry.name != "G['FACTOR']" for entry in entries]

    global FACTOR
    compiled = weft.compile(scaled, backend="eager", options={"guard_filter_fn": keep})
    try:
        assert torch.equal(compiled(X), X * 2)
        FACTOR = 3.0
        assert torch.equal(compiled(X), X * 2)  # it was told to
        assert torch.equal(compiled(X.double()), X.double() * 3)  # others are checked
    finally:
        FACTOR = 2.0
    (factor,) = [entry for entry in seen if entry.name == "G['FACTOR']"][:1]
    assert factor.is_global and not factor.is_argument and ".py:" in factor.location
    assert any(entry.is_argument and "float32" in entry.expected for entry in seen)


FACTOR = 2.0


def scaled(x):
    return x * FACTOR


@pytest.mark.parametrize("value", [3, lambda entries: [True]])
def test_wrong_filters_are_told(value) -> None:
    with pytest.raises((RuntimeError, weft.StageError), match="guard_filter_fn"):
        weft.compile(scaled, options={"guard_filter_fn": value, "strict": True})(X)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_torchs_backends_compile_what_weft_captures(backend) -> None:
    log = weft.CompileLog()
    layer = torch.nn.Linear(3, 3)
    compiled = weft.compile(lambda x: layer(x).relu(), backend=backend)
    x = X.clone().requires_grad_()
    with weft.observe(log):
        result = compiled(x)
        result.sum().backward()
    (report,) = log.conversions
    assert report.error is None and report.graph is not None
    torch.testing.assert_close(result, layer(X).relu())
    assert x.grad is not None


def test_unknown_backends_name_those_there_are() -> None:
    with pytest.raises(RuntimeError, match=r"'nobody'.*'weft'.*'inductor'"):
        weft.compile(scaled, backend="nobody")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.layers(x) * scale


def test_modules_compiled_in_place_are_the_same_objects() -> None:
    model = Model()
    expected, names = model(X, scale=2.0), list(model.state_dict())
    log = weft.CompileLog()
    assert weft.compile_module(model, backend="eager") is model
    with weft.observe(log):
        torch.testing.assert_close(model(X, scale=2.0), expected)
    assert sum(report.graph is not None for report in log.conversions) == 1
    assert list(model.state_dict()) == names and type(model) is Model
    with weft.observe(again := weft.CompileLog()):
        model(X, scale=2.0)
    assert not again.conversions


def test_hooks_of_modules_compiled_in_place_run() -> None:
    model = weft.compile_module(Model(), backend="eager")
    expected = model(X)
    model.register_forward_hook(lambda module, arguments, result: result + 1)
    torch.testing.assert_close(model(X), expected + 1)


def test_copies_of_modules_compiled_in_place_are_plain() -> None:
    model = weft.compile_module(Model(), backend="eager")
    expected = model(X)
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert made._compiled_call_impl is None
        torch.testing.assert_close(made(X), expected)
    torch.save(model.state_dict(), file := io.BytesIO())
    file.seek(0)
    Model().load_state_dict(torch.load(file))


def test_in_place_compilation_is_taken_back() -> None:
    model = weft.compile_module(Model(), backend="eager")
    model(X)
    weft.compile_module(model, disable=True)
    with weft.observe(log := weft.CompileLog()):
        model(X.double().float())
    assert not log.conversions and model._compiled_call_impl is None
    with pytest.raises(TypeError, match=r"takes an nn\.Module"):
        weft.compile_module(weft.compile(Model()))


def test_parts_compiled_in_place_join_what_is_compiled_around_them() -> None:
    model = Model()
    weft.compile_module(model.layers, backend="eager")
    whole = weft.compile(model, backend="eager")
    with weft.observe(log := weft.CompileLog()):
        torch.testing.assert_close(whole(X), model.layers[1](model.layers[0](X)))
    assert not log.graph_breaks
    assert sum(report.graph is not None for report in log.conversions) == 1


def test_in_place_compiled_modules_train() -> None:
    torch.manual_seed(0)
    models = [Model(), Model()]
    models[1].load_state_dict(models[0].state_dict())
    weft.compile_module(models[1])
    for model in models:
        model(X).square().sum().backward()
    for plain, compiled in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(plain.grad, compiled.grad)
