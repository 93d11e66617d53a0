"""Transformed code from hand-made frame results: graphs called, sources read, objects rebuilt."""

from __future__ import annotations

import gc
import threading
import time
import types
import weakref

import pytest
import torch
from frame_stepping import Constant, Known, NoEffects
from weft_bytecode_capture import CaptureOptions, Unsupported
from weft_bytecode_capture import _frame_hook as hook
from weft_bytecode_capture.captured_graph import CapturedGraph, GraphBreak, UserLocation
from weft_bytecode_capture.code_objects.dialects import DIALECT
from weft_bytecode_capture.code_objects.instructions import decode
from weft_bytecode_capture.frame.convert_frame import make_context
from weft_bytecode_capture.symbolic.frame_result import Break, FrameResult, Raise, Return, Skip
from weft_bytecode_capture.symbolic.variables.base import Variable
from weft_guards import (
    ArgumentSource,
    AttributeSource,
    CellContentsSource,
    ClosureSource,
    ConstantSource,
    DictKeySource,
    GlobalSource,
    Guard,
    InstanceDictSource,
    ItemSource,
    Reason,
    TensorMatches,
    TensorMetadata,
    TypeIs,
    TypeSource,
)

GLOBAL_LIST = [1, 2]
PLACE = UserLocation("here.py", 3, "f")
REASON = GraphBreak("break kind", "its context", "why", ("do this",), PLACE, ())


class Computed(Variable):
    """An output of the graph."""


class Built(Variable):
    """An object that ``build(emitter)`` makes; counts how often."""

    def __init__(self, build):
        self.build = build
        self.count = 0

    def reconstruct(self, emitter):
        self.count += 1
        self.build(emitter)


class Effects:
    names = ()

    def __init__(self, emit):
        self.emit = emit

    def as_given(self, source):
        return source


def graph(function, sources, tensors):
    module = torch.fx.symbolic_trace(function)
    return CapturedGraph(module, tuple(tensors), tuple(sources), ())


def result(ending, captured=None, outputs=(), guards=(), effects=None):
    return FrameResult(captured, tuple(outputs), tuple(guards), effects or NoEffects(), ending)


def compiled(function, capture, *, options=None, backend=None, observer=None, on_error=None):
    def fail(error, location):
        raise error

    def given(frame, options):
        return capture if frame.code is function.__code__ else Skip("not under test")

    context = make_context(
        backend or (lambda module, inputs: module.forward),
        options or CaptureOptions(),
        on_error or fail,
        observer,
        capture if callable(capture) else given,
    )
    return context.wrap(function)


def guard(source, predicate):
    return Guard(source, predicate, Reason("here.py", 3, "return x + 1"))


def returning(variable, **more):
    return result(Return(variable), **more)


class Point:
    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (ArgumentSource("p"), lambda p, q, c: p),
        (ArgumentSource("q"), lambda p, q, c: q),
        (ClosureSource("captured"), lambda p, q, c: c),
        (GlobalSource("GLOBAL_LIST"), lambda p, q, c: GLOBAL_LIST),
        (GlobalSource("len"), lambda p, q, c: len),
        (ConstantSource("list", GLOBAL_LIST), lambda p, q, c: GLOBAL_LIST),
        (AttributeSource(ArgumentSource("p"), "x"), lambda p, q, c: p.x),
        (InstanceDictSource(ArgumentSource("p"), "x"), lambda p, q, c: p.x),
        (ItemSource(AttributeSource(ArgumentSource("p"), "x"), "k"), lambda p, q, c: p.x["k"]),
        (DictKeySource(AttributeSource(ArgumentSource("p"), "x"), 1), lambda p, q, c: "l"),
        (TypeSource(ArgumentSource("q")), lambda p, q, c: type(q)),
        (
            CellContentsSource(
                ItemSource(AttributeSource(ClosureSource("inner"), "__closure__"), 0)
            ),
            lambda p, q, c: 7,
        ),
    ],
    ids=lambda value: getattr(value, "name", lambda: "")(),
)
def test_sources(source, wanted):
    captured, seven = [3], 7
    inner = lambda: seven  # noqa: E731

    def f(p, q):
        return (lambda: q), captured, inner

    point, argument = Point({"k": [1], "l": 2}), (1, 2)
    function = compiled(f, returning(Known(source)))
    assert function(point, argument) is wanted(point, argument, captured) or (
        function(point, argument) == wanted(point, argument, captured)
    )


def test_shared_paths_are_read_once():
    class Counting:
        def __init__(self):
            self.reads = 0

        @property
        def part(self):
            self.reads += 1
            return [10, 20]

    part = AttributeSource(ArgumentSource("x"), "part")
    both = Built(
        lambda emitter: (
            emitter.load_source(ItemSource(part, 0)),
            emitter.load_source(ItemSource(part, 1)),
            emitter.load_source(part),
            emitter.load_source(part),
            emitter.build("tuple", 4),
        )
    )

    def f(x):
        pass

    value = Counting()
    first, second, one, two = compiled(f, returning(both))(value)
    assert (first, second, value.reads) == (10, 20, 1)
    assert one is two


def test_sources_are_read_before_effects():
    def f(x):
        pass

    def effect(emitter):
        emitter.load_constant("new")
        emitter.load_source(ArgumentSource("x"))
        emitter.store_attribute("x")

    old = Known(AttributeSource(ArgumentSource("x"), "x"))
    point = Point("old")
    assert compiled(f, returning(old, effects=Effects(effect)))(point) == "old"
    assert point.x == "new"


def test_graph_call_and_outputs():
    total, double = Computed(), Computed()
    x, y = torch.randn(3), torch.randn(3)
    captured = graph(
        lambda a, b: (a + b, a * 2),
        [ArgumentSource("x"), ItemSource(ArgumentSource("y"), 0)],
        [x, y],
    )
    pair = Built(
        lambda e: (
            e.load_variable(double),
            e.load_variable(total),
            e.load_variable(total),
            e.build("list", 3),
        )
    )

    def f(x, *y):
        pass

    found = compiled(f, returning(pair, captured=captured, outputs=(total, double)))(x, y)
    torch.testing.assert_close(found, [x * 2, x + y, x + y])
    assert found[1] is found[2]


def test_compiled_graph_runs_without_context():
    seen = []

    def backend(module, inputs):
        def run(x):
            seen.append(hook.current_context())
            return (x + 1,)

        return run

    def f(x):
        pass

    out = Computed()
    captured = graph(lambda a: (a + 1,), [ArgumentSource("x")], [torch.ones(2)])
    function = compiled(f, returning(out, captured=captured, outputs=[out]), backend=backend)
    assert torch.equal(function(torch.ones(2)), torch.full((2,), 2.0))
    assert seen == [None]


def test_objects_are_rebuilt_once():
    inner = Built(lambda e: e.build("list", 0))
    outer = Built(
        lambda e: (
            e.load_constant("a"),
            e.load_variable(inner),
            e.load_constant("b"),
            e.load_variable(inner),
            e.build("map", 2),
        )
    )

    def f():
        pass

    function = compiled(f, returning(outer))
    first, second = function(), function()
    assert first == {"a": [], "b": []}
    assert first["a"] is first["b"]
    assert first is not second
    assert first["a"] is not second["a"]
    assert (inner.count, outer.count) == (1, 1)


def test_cyclic_objects_are_refused():
    cyclic = Built(lambda e: (e.load_variable(cyclic), e.build("list", 1)))
    reports = []

    def f():
        return "plain"

    assert compiled(f, returning(cyclic), observer=reports.append)() == "plain"
    assert "contains itself" in reports[0].skip_reason


def test_all_emitter_operations():
    state = Point(0)
    table = {}

    def emit(e):
        e.load_constant(5)
        e.load_object(state)
        e.store_attribute("x")
        e.load_object(state)
        e.load_attribute("x")  # 5
        e.load_constant("v")
        e.duplicate()
        e.pop()
        name = e.store_temporary()
        e.load_object(table)
        e.load_local(name)
        e.store_subscript()  # table["v"] = 5

        e.load_callable(dict)
        e.load_constant([("a", 1)])
        e.load_constant(2)
        e.call(2, ("b",))
        e.load_object("ab")
        e.load_attribute("upper")
        e.prepare_call()
        e.call(0)
        e.load_constant("key")
        e.load_constant(3)
        e.build("map", 1)
        e.load_constant(1)
        e.load_constant(2)
        e.build("slice", 2)
        e.load_constant("p")
        e.load_constant("q")
        e.build("string", 2)
        e.load_constant(1)
        e.build("set", 1)
        e.load_object(table)
        e.load_constant("v")
        e.load_subscript()
        e.build("tuple", 7)

    def f():
        pass

    found = compiled(f, returning(Built(emit)))()
    assert found == ({"a": 1, "b": 2}, "AB", {"key": 3}, slice(1, 2), "pq", {1}, 5)
    assert (state.x, table) == (5, {"v": 5})


def test_cells_of_the_frame():
    def f(x):
        y = 0
        return lambda: (x, y)

    def effect(emitter):
        emitter.load_constant("set")
        emitter.load_cell("y")
        emitter.store_attribute("cell_contents")

    inner = next(c for c in f.__code__.co_consts if isinstance(c, types.CodeType))

    def build(emitter):
        emitter.load_function(inner, inner.co_freevars)

    function = compiled(f, returning(Built(build), effects=Effects(effect)))
    assert function(4)() == (4, "set")


def test_raise():
    def f():
        pass

    error = Built(lambda e: (e.load_callable(ValueError), e.load_constant("text"), e.call(1)))
    function = compiled(f, result(Raise(error)))
    for _ in range(2):
        with pytest.raises(ValueError, match="text") as caught:
            function()
        assert caught.traceback[-1].name == "f"


def test_singletons_and_constants():
    def f(x):
        pass

    for value in (None, True, Ellipsis, 3, "a", (1, 2.0), torch.float32, float("nan")):
        found = compiled(f, returning(Constant(value)))(0)
        assert found is value


def test_guards_recompile():
    def f(x):
        return x + 1

    reports = []

    def capture(frame, options):
        x = frame.arguments["x"]
        out = Computed()
        return returning(
            out,
            captured=graph(lambda a: (a + 1,), [ArgumentSource("x")], [x]),
            outputs=[out],
            guards=[guard(ArgumentSource("x"), TensorMatches(TensorMetadata.of(x)))],
        )

    function = compiled(f, capture, observer=reports.append)
    for size in (2, 3, 2, 3, 4):
        x = torch.randn(size)
        torch.testing.assert_close(function(x), x + 1)
    assert len(reports) == 3
    assert reports[0].recompile_reason is None
    assert "size" in str(reports[1].recompile_reason)
    assert reports[0].location == UserLocation(__file__, f.__code__.co_firstlineno, f.__qualname__)


def test_recompile_limit_warns_once_and_keeps_entries():
    def f(x):
        return type(x)

    def capture(frame, options):
        kind = type(frame.arguments["x"])
        return returning(Constant(kind), guards=[guard(ArgumentSource("x"), TypeIs(kind))])

    reports = []
    function = compiled(
        f, capture, options=CaptureOptions(recompile_limit=2), observer=reports.append
    )
    assert [function(1), function("a")] == [int, str]
    with pytest.warns(UserWarning, match="was compiled 2 times") as warned:
        assert function(2.0) is float
    assert "return x + 1" in str(warned[0].message)
    assert [function(b""), function(2), function("b")] == [bytes, int, str]
    assert [report.skip_reason for report in reports] == [None, None, "more than 2 entries"]


def test_guards_that_do_not_hold_after_capture_are_an_error():
    def f(x):
        return x

    bad = returning(Constant(1), guards=[guard(ArgumentSource("x"), TypeIs(str))])
    with pytest.raises(RuntimeError, match="does not hold right after capture"):
        compiled(f, bad)(1)


def test_threads_convert_the_same_function():
    def f(x):
        return [type(x)]

    def capture(frame, options):
        kind = type(frame.arguments["x"])
        time.sleep(0.001)
        built = Built(lambda e: (e.load_constant(kind), e.build("list", 1)))
        return returning(built, guards=[guard(ArgumentSource("x"), TypeIs(kind))])

    function = compiled(f, capture)
    values = [1, "a", 2.0, b"", None, (), [], {}]
    wrong = []

    def run(start):
        for turn in range(200):
            value = values[(start + turn) % len(values)]
            if function(value) != [type(value)]:
                wrong.append(value)

    threads = [threading.Thread(target=run, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(function.context.entries(f.__code__)) == len(values)
    assert hook.installed_depth() == 0


def test_errors_raise_or_fall_back():
    def f(x):
        return x

    def capture(frame, options):
        raise ZeroDivisionError("inside")

    with pytest.raises(ZeroDivisionError, match="inside"):
        compiled(f, capture)(1)
    errors = []
    reports = []
    function = compiled(
        f,
        capture,
        on_error=lambda error, location: errors.append((type(error), location)),
        observer=reports.append,
    )
    assert [function(1), function(2)] == [1, 2]
    ((kind, location),) = errors
    assert kind is ZeroDivisionError
    assert f"{__file__}:{f.__code__.co_firstlineno}" in location
    assert isinstance(reports[0].error, ZeroDivisionError)
    assert hook.installed_depth() == 0


def test_fullgraph_names_the_break():
    def f(x):
        return x

    def capture(frame, options):
        return Skip("no", graph_break=REASON)

    with pytest.raises(Unsupported, match="break kind") as caught:
        compiled(f, capture, options=CaptureOptions(fullgraph=True))(1)
    assert 'File "here.py", line 3' in str(caught.value)
    assert compiled(f, capture)(1) == 1


def test_skip_for_this_call_only():
    def f(x):
        return x

    calls = []

    def capture(frame, options):
        calls.append(frame.arguments["x"])
        return Skip("not now", forever=False)

    function = compiled(f, capture)
    assert [function(1), function(2)] == [1, 2]
    assert calls == [1, 2]


def test_break_with_graph_and_closure_cell():
    """x + 1 captured; the frame breaks at the call of print; the cell is the frame's own."""
    log = []

    def f(x, say):
        y = x + 1
        g = lambda: y  # noqa: E731
        say(y)
        return g, y

    names = [i.name for i in decode(f.__code__).instructions]
    index = len(names) - 1 - names[::-1].index("CALL")
    frames = []

    def capture(frame, options):
        frames.append(tuple(frame.arguments))
        if frame.code is not f.__code__:
            return Skip("the rest")
        out, cell = Computed(), Variable()
        closure = next(c for c in f.__code__.co_consts if isinstance(c, types.CodeType))
        function = Built(
            lambda e: (e.load_variable(cell), e.pop(), e.load_function(closure, ("y",)))
        )
        x = frame.arguments["x"]
        callee = (None, Known(ArgumentSource("say")))
        return result(
            Break(
                _dis_index(f, index),
                (*(callee[::-1] if DIALECT.null_above_callee else callee), out),
                {
                    "x": Known(ArgumentSource("x")),
                    "say": Known(ArgumentSource("say")),
                    "g": function,
                },
                {"y": out},
                REASON,
                {"y": cell},
            ),
            captured=graph(lambda a: (a + 1,), [ArgumentSource("x")], [x]),
            outputs=[out],
        )

    function = compiled(f, capture)
    x = torch.randn(2)
    for _ in range(2):
        g, y = function(x, log.append)
        assert g() is y
        assert log.pop() is y
        torch.testing.assert_close(y, x + 1)
    assert frames[1][:1] == ("__stack0",)
    assert set(frames[1]) == {"__stack0", "x", "say", "g"}


def _dis_index(function, position):
    decoded = decode(function.__code__)
    return decoded.by_index.index(decoded.instructions[position])


def test_objects_of_entries_are_freed_with_the_context():
    def make():
        class Held:
            pass

        held = Held()

        def f():
            pass

        function = compiled(f, returning(Built(lambda e: e.load_object(held))))
        assert function() is held
        held.function = function
        return weakref.ref(held)

    reference = make()
    gc.collect()
    assert reference() is None
