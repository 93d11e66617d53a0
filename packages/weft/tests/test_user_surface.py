"""explain, disable, allow_in_graph, reset, nested compilation, the limit of recompilations."""

import asyncio
import functools
import inspect
import time
import warnings

import pytest
import torch
import weft


def counting_backend(compiled: list):
    def backend(graph_module, example_inputs):
        compiled.append(graph_module)
        return graph_module.forward

    return backend


def breaks(x):
    y = torch.relu(x) * 2
    time.sleep(0)  # breaks the graph
    return y.sum() + 1


def test_explain_gives_graphs_breaks_and_times_and_shows_guards_if_asked(
    capsys, monkeypatch
) -> None:
    with torch.no_grad():
        explanation = weft.explain(breaks)(torch.ones(3))
    assert explanation.result.item() == 7
    assert len(explanation.graphs) == 2
    assert len(explanation.breaks) == 1
    assert len(explanation.compiled_graphs) == 2
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("COLUMNS", "160")
    explanation.show(guards=True)
    assert "Tensor torch.float32 (3,)" in capsys.readouterr().out
    text = str(explanation)
    assert "2 graphs, 1 graph break" in text and "Tensor torch.float32" not in text
    for part in (
        "call of a builtin function",
        "time.sleep(0)",
        "explanation: the evaluator does not know what it does",
        "hint: do it outside the compiled function",
        "test_user_surface.py",
        "functionalize",
        "codegen",
    ):
        assert part in text, part


def test_explain_says_which_branches_and_loops_are_not_kept() -> None:
    def chosen(x):
        factor = None if x.sum() > 0 else 3.0
        return x if factor is None else x * factor

    def gains_a_dim(x):
        y = x
        for _ in range(20):
            y = y[None]
        return y

    def maybe_a_view(x):
        y = x * 2
        z = y[1:] if x.sum() > 0 else y[1:] + 1
        z.add_(1)
        return y + 0, z + 0

    reasons = {
        chosen: "value that differs by branch",
        gains_a_dim: "y changes: shape",
        maybe_a_view: "write to a tensor that a region may return",
    }
    for function, reason in reasons.items():
        x = torch.ones(3)
        with torch.no_grad():
            explanation = weft.explain(function)(x)
            torch.testing.assert_close(explanation.result, function(x))
        assert any(reason in region.reason for region in explanation.unkept_regions), reason
        assert all(r.location.file == __file__ for r in explanation.unkept_regions)
        assert "Branches and loops that are not kept in the graph" in str(explanation)
    with torch.no_grad():
        kept = weft.explain(lambda x: x * 2 if x.sum() > 0 else x - 1)(torch.ones(3))
    assert not kept.unkept_regions


def test_explain_takes_modules_compiled_functions_and_options() -> None:
    compiled: list = []
    linear = torch.nn.Linear(2, 2)
    x = torch.ones(1, 2)
    backend = counting_backend(compiled)
    for function in (linear, weft.compile(linear), weft.compile(breaks), breaks):
        explanation = weft.explain(function, backend=backend)(x)
        assert len(explanation.graphs) == len(compiled) > 0
        compiled.clear()
    assert "at its end" in str(weft.explain(linear, backend=backend)(x))
    with pytest.raises(Exception, match=r"(?s)sleep.*test_user_surface"):
        weft.explain(breaks, backend=backend, fullgraph=True)(x)


@pytest.mark.parametrize("make", [lambda: scaled_by, lambda: torch.nn.Linear(3, 3)])
def test_explain_names_the_guards_of_what_was_compiled_before(make) -> None:
    """Of a function and of a module, of each version; nothing is added to what they have compiled."""
    compiled: list = []
    function = weft.compile(make(), backend=counting_backend(compiled), dynamic=False)
    x = torch.ones(2, 3)
    assert weft.explain(function, backend="eager")(x).failed_guards == ()
    for given in (x, torch.ones(4, 3)):
        function(given)
    assert weft.explain(function, backend="eager")(x).failed_guards == ()
    explanation = weft.explain(function, backend="eager")(torch.ones(7, 3))
    newest, oldest = explanation.failed_guards
    assert "size (7, 3) instead of (4, 3)" in newest.found
    assert "size (7, 3) instead of (2, 3)" in oldest.found
    text = " ".join(str(explanation).split())
    for part in ("does not fit", "needed by", "to avoid it: mark the dimension", ".py:"):
        assert part in text, part
    assert len(compiled) == 2


def scaled_by(x, *factors, shift=1.0):
    for factor in factors:
        x = x * factor
    return x + shift


def test_reset_forgets_compiled_code() -> None:
    compiled: list = []
    function = weft.compile(lambda x: x * 2, backend=counting_backend(compiled))
    x = torch.ones(2)
    for count in (1, 1):
        assert torch.equal(function(x), x * 2)
        assert len(compiled) == count
    weft.reset()
    assert torch.equal(function(x), x * 2)
    assert len(compiled) == 2


def test_reset_inside_a_call() -> None:
    def function(x):
        weft.reset()
        return breaks(x)

    compiled = weft.compile(function, backend=counting_backend([]))
    for _ in range(3):
        assert compiled(torch.ones(3)).item() == 7


def scaled(x, factor):
    time.sleep(0)  # would break the graph if it were looked into
    return x * factor


def test_allow_in_graph_makes_one_node() -> None:
    assert weft.allow_in_graph(scaled) is scaled
    compiled: list = []
    function = weft.compile(
        lambda x: scaled(x, 3) + 1, backend=counting_backend(compiled), fullgraph=True
    )
    x = torch.arange(3.0)
    assert torch.equal(function(x), x * 3 + 1)
    (graph_module,) = compiled
    targets = [node.target for node in graph_module.graph.nodes if node.op == "call_function"]
    assert targets[0] is scaled
    for value in (3, weft):
        with pytest.raises(TypeError, match="allow_in_graph takes a function"):
            weft.allow_in_graph(value)


def test_allow_in_graph_through_the_whole_line() -> None:
    def clipped(x, low):
        return x.clamp(min=low) * 2

    weft.allow_in_graph(clipped)
    x = torch.randn(5)
    with torch.no_grad():
        result = weft.compile(lambda x: clipped(x + 1, 0.5) - 1, fullgraph=True)(x)
    torch.testing.assert_close(result, clipped(x + 1, 0.5) - 1)


def test_disabled_functions_run_as_python() -> None:
    seen = []

    @weft.disable
    def plain(x):
        seen.append(weft.is_compiling())
        return x + 1

    def function(x):
        return plain(x * 2) * (2 if weft.is_compiling() else 3)

    compiled: list = []
    result = weft.compile(function, backend=counting_backend(compiled))(torch.ones(2))
    assert torch.equal(result, torch.full((2,), 6.0))
    assert seen == [False]
    assert len(compiled) == 2
    assert not weft.is_compiling()


def test_nested_compile_is_captured_with_its_caller() -> None:
    inner: list = []
    outer: list = []
    twice = weft.compile(lambda x: x * 2, backend=counting_backend(inner))
    function = weft.compile(lambda x: twice(x) + 1, backend=counting_backend(outer), fullgraph=True)
    x = torch.ones(2)
    assert torch.equal(function(x), x * 2 + 1)
    assert len(outer) == 1
    assert not inner
    assert torch.equal(twice(x), x * 2)
    assert len(inner) == 1


def test_nested_compiled_module_is_captured_with_its_caller() -> None:
    outer: list = []
    linear = weft.compile(torch.nn.Linear(2, 2), backend=counting_backend([]))
    function = weft.compile(lambda x: linear(x) + 1, backend=counting_backend(outer))
    x = torch.ones(1, 2)
    for _ in range(2):
        assert torch.equal(function(x), linear(x) + 1)
    assert outer


def test_decorated_methods_and_functions() -> None:
    class Scale:
        factor = 3

        @weft.compile(backend=counting_backend([]))
        def __call__(self, x):
            return x * self.factor

        @staticmethod
        @weft.compile(backend=counting_backend([]))
        def shifted(x):
            return x + 1

    x = torch.ones(2)
    scale = Scale()
    assert torch.equal(scale(x), x * 3)
    scale.factor = 4
    assert torch.equal(scale(x), x * 4)
    assert torch.equal(Scale.shifted(x), x + 1)


@pytest.mark.parametrize("limit", [2, 8])
def test_limit_of_recompilations_warns_once_with_the_guards(limit: int) -> None:
    compiled: list = []
    function = weft.compile(
        lambda x, factor: x * factor,
        backend=counting_backend(compiled),
        dynamic=False,
        options={"recompile_limit": limit},
    )
    x = torch.ones(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for factor in range(limit + 5):
            assert torch.equal(function(x, factor), x * factor)
        for factor in range(limit + 5):
            assert torch.equal(function(x, factor), x * factor)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 1, messages
    assert f"compiled {limit} times" in messages[0]
    assert "L['factor']" in messages[0]
    assert len(compiled) == limit


class Callable:
    def __call__(self, x):
        return x * 3


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (functools.partial(torch.add, other=2), 3),
        (torch.exp2, 2),
        (Callable(), 3),
        (weft.compile(lambda x: x + 4, backend="eager"), 5),
        (torch.nn.Identity(), 1),
        (torch.nn.Identity().forward, 1),
    ],
    ids=["partial", "builtin function", "callable object", "compiled", "module", "method"],
)
def test_everything_that_can_be_called(function, expected) -> None:
    compiled = weft.compile(function, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), float(expected)))


def test_generators_and_coroutines_run_as_written() -> None:
    def rows(x):
        for factor in range(3):
            yield x * factor

    async def later(x):
        return x + 1

    x = torch.ones(2)
    assert len(list(weft.compile(rows, backend="eager")(x))) == 3
    assert torch.equal(asyncio.run(weft.compile(later, backend="eager")(x)), x + 1)


def test_methods_of_every_kind() -> None:
    class Methods:
        @weft.disable
        def plain(self, x):
            return x + 1, weft.is_compiling()

        @weft.disable()
        def also_plain(self, x):
            return x + 1, weft.is_compiling()

        @classmethod
        @weft.compile(backend="eager")
        def of_class(cls, x):
            return x + 2, cls.__name__

        @property
        @weft.compile(backend="eager")
        def computed(self):
            return torch.ones(2) * 5

    methods, x = Methods(), torch.ones(2)
    for function in (methods.plain, methods.also_plain):
        result, compiling = weft.compile(lambda x, f=function: f(x), backend="eager")(x)
        assert torch.equal(result, x + 1)
        assert not compiling
    assert torch.equal(Methods.of_class(x)[0], x + 2)
    assert methods.of_class(x)[1] == "Methods"
    assert torch.equal(methods.computed, torch.full((2,), 5.0))


def test_keyword_only_and_wrong_arguments() -> None:
    def function(x, /, *, factor=2):
        return x * factor

    compiled = weft.compile(function, backend="eager")
    x = torch.ones(2)
    assert torch.equal(compiled(x, factor=3), x * 3)
    assert torch.equal(compiled(x), x * 2)
    for arguments, keywords in (((x, x), {}), ((), {"x": x}), ((x,), {"other": 1})):
        with pytest.raises(TypeError) as expected:
            function(*arguments, **keywords)
        with pytest.raises(TypeError) as found:
            compiled(*arguments, **keywords)
        assert str(found.value) == str(expected.value)
    assert inspect.signature(compiled) == inspect.signature(function)


def test_functions_disabled_or_compiled_for_torchs_own_compiler() -> None:
    @torch.compiler.disable
    def plain(x):
        return x * 2, torch.compiler.is_compiling()

    peer = torch.compile(lambda x: x * 3, backend="eager")
    x = torch.ones(2)
    for _ in range(2):
        result, compiling = weft.compile(lambda x: plain(x + 1), backend="eager")(x)
        assert torch.equal(result, (x + 1) * 2)
        assert not compiling
        assert torch.equal(weft.compile(lambda x: peer(x) + 1, backend="eager")(x), x * 3 + 1)


def test_transforms_of_a_compiled_function() -> None:
    compiled = weft.compile(lambda x: (x * x).sum(), backend="eager")
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(torch.vmap(compiled)(x), (x * x).sum(1))
    assert torch.equal(torch.func.grad(compiled)(x), 2 * x)
    assert torch.equal(compiled(x), (x * x).sum())


def test_error_of_the_program_is_its_own() -> None:
    def function(x):
        return x[5]

    for fullgraph in (True, False):
        compiled = weft.compile(function, backend="eager", fullgraph=fullgraph)
        for _ in range(2):
            with pytest.raises(IndexError, match="index 5 is out of bounds"):
                compiled(torch.ones(2))
