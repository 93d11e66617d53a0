"""explain, disable, allow_in_graph, reset, nested compilation, the limit of recompilations."""

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
    print("here")  # noqa: T201 - a print is what breaks the graph
    return y.sum() + 1


def test_explain_prints_graphs_breaks_guards_and_times(capsys) -> None:
    with torch.no_grad():
        explanation = weft.explain(breaks)(torch.ones(3))
    assert explanation.result.item() == 7
    assert len(explanation.graphs) == 2
    assert len(explanation.breaks) == 1
    assert len(explanation.compiled_graphs) == 2
    printed = capsys.readouterr().out
    assert "2 graphs, 1 graph break" in printed
    text = str(explanation)
    for part in (
        "call of a builtin function",
        'print("here")',
        "explanation: the evaluator does not know what it does",
        "hint: do it outside the compiled function",
        "test_user_surface.py",
        "Tensor torch.float32 (3,)",
        "functionalize",
        "codegen",
    ):
        assert part in text, part


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
    with pytest.raises(Exception, match=r"(?s)print.*test_user_surface"):
        weft.explain(breaks, backend=backend, fullgraph=True)(x)


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
    print("not captured")  # noqa: T201 - would break the graph if it were looked into
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
