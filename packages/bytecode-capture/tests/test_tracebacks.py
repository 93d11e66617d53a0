"""Exceptions that leave captured code: tracebacks, contexts and attributes are those of a plain run."""

import copy
import gc
import inspect
import linecache
import pickle
import time
import traceback

import pytest
import torch
from differential import run_graph
from weft_bytecode_capture import CaptureOptions, compile_frames
from weft_bytecode_capture.source_lines import linecache_unchanged, source_line

X = torch.tensor([1.0, -2.0])


def inner(x, depth):
    if depth:
        return inner(x * 2, depth - 1)
    y = x + 1
    raise ValueError(y.shape[0])


def through_calls(x):
    return inner(x, 2) + 1


def from_another(x):
    try:
        inner(x, 0)
    except ValueError as error:
        raise KeyError("key") from error


def while_handling(x):
    try:
        return {}["missing"]
    finally:
        inner(x, 1)


def of_an_attribute(x):
    return (x + 1).nothing_of_this_name


def of_a_name(x):
    return x + not_defined_anywhere  # noqa: F821


def kept(x):
    try:
        inner(x, 1)
    except ValueError as error:
        found = error
    raise found


def entries(error):
    """The exception and those that it came from, with the lines they went through, innermost last."""
    chain = []
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        places = [(frame.name, frame.lineno) for frame in frames if frame.filename == __file__]
        chain.append((type(error), error.args, places[1:], getattr(error, "name", None)))
        error = error.__cause__ or error.__context__
    return chain


@pytest.mark.parametrize(
    "function", [through_calls, from_another, while_handling, of_an_attribute, of_a_name, kept]
)
def test_equals_a_plain_run(function):
    compiled = compile_frames(function, run_graph)
    with pytest.raises(Exception) as plain:  # noqa: PT011
        function(X)
    for _ in range(2):
        with pytest.raises(plain.type) as found:
            compiled(X)
        assert entries(found.value) == entries(plain.value)


def test_an_exception_that_was_never_raised_has_no_traceback():
    def make(x):
        error = ValueError("made")
        time.sleep(0)
        return x + 1, error

    _, error = compile_frames(make, run_graph)(X)
    assert error.__traceback__ is None
    assert error.args == ("made",)


@pytest.mark.parametrize("filled", [False, True])
def test_conversions_leave_linecache_alone(filled):
    linecache.clearcache()
    if filled:
        linecache.getlines(__file__)
    before = dict(linecache.cache)

    def function(x, n):
        y = (x + n).reshape(-1)
        time.sleep(0)
        return y[y > n].sum() if n % 2 else y.view(3, -1)

    compiled = compile_frames(function, lambda graph_module, inputs: graph_module.forward)
    for n in (1, 2, 3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(3, n), n), function(torch.ones(3, n), n))
    after = {name: entry for name, entry in linecache.cache.items() if not name.startswith("<")}
    assert after == before


def test_lines_are_those_that_the_file_has_now(tmp_path):
    file = tmp_path / "module.py"
    for text in ("first", "second", "and third"):
        file.write_text(f"\n  {text}\n")
        with linecache_unchanged():
            assert source_line(str(file), 2) == text
            assert source_line(str(file), 3) == ""
    assert str(file) not in linecache.cache


def test_the_code_of_a_graph_is_generated_when_it_is_asked_for():
    modules = []

    def backend(graph_module, inputs):
        modules.append(graph_module)
        return lambda *values: torch.fx.Interpreter(graph_module).run(*values)

    compile_frames(lambda x: x.sinc() + 1, backend)(X)
    (module,) = modules
    generated = [str(entry) for name, entry in linecache.cache.items() if name.startswith("<")]
    assert not any("sinc" in text for text in generated)
    assert ".sinc()" in module.code and "sinc" in str(module)
    (found,) = copy.deepcopy(module)(X)
    torch.testing.assert_close(found, X.sinc() + 1)
    assert inspect.ismethod(module.forward)
    torch.testing.assert_close(module.forward(X)[0], X.sinc() + 1)
    (restored,) = pickle.loads(pickle.dumps(module))(X)
    torch.testing.assert_close(restored, X.sinc() + 1)
    name = module.forward.__code__.co_filename
    del module, found, restored
    modules.clear()
    gc.collect()
    assert name not in linecache.cache


def raised_again(x):
    try:
        inner(x, 0)
    except ValueError as error:
        error.add_note("noted")
        raise


def raised_again_after_finally(x):
    try:
        try:
            raise ValueError("bad")
        finally:
            x = x + 1
    except KeyError:
        return x


@pytest.mark.parametrize("function", [raised_again, raised_again_after_finally])
def test_a_line_where_breaks_are_errors(function):
    compiled = compile_frames(function, run_graph, CaptureOptions(fullgraph=True))
    lines = []
    for called in (function, compiled):
        with pytest.raises(ValueError) as found:  # noqa: PT011
            called(X)
        frames = traceback.extract_tb(found.value.__traceback__)
        lines.append([frame.lineno for frame in frames if frame.name == function.__name__])
    assert lines[0][:1] == lines[1]
