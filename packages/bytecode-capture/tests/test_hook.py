"""The C extension: entries, guards, scoping of the hook, threads, references."""

from __future__ import annotations

import gc
import sys
import threading
import types
import weakref

import pytest
from rebuilt_code import rebuild
from weft_bytecode_capture import _frame_hook as hook
from weft_bytecode_capture.code_objects.code_builder import CodeBuilder
from weft_bytecode_capture.code_objects.instructions import decode


def with_objects(code: types.CodeType) -> types.CodeType:
    """The code with one local more, behind its own."""
    builder = CodeBuilder(code)
    builder.instructions = decode(code).instructions
    names = (*code.co_varnames, "__weft_objects")
    return builder.finish(code, names, code.co_cellvars, code.co_freevars)


def swapping(guard=None):
    """A callback that gives every frame its own code again, rebuilt; and the frames it saw."""
    seen = []

    def callback(code, arguments, globals_, builtins, closure):
        seen.append((code.co_name, arguments, closure))
        return hook.Entry(guard, with_objects(code), (code.co_name,), len(code.co_varnames))

    return callback, seen


class Check:
    """A guard check in Python: holds for what ``predicate(arguments)`` says."""

    def __init__(self, predicate):
        self.predicate = predicate
        self.calls = []

    def check(self, arguments, globals_, builtins, closure):
        self.calls.append(arguments)
        return self.predicate(arguments)


def kinds(a, /, b, c=3, *args, d, e=5, **more):
    return a, b, c, args, d, e, more


def test_argument_kinds():
    callback, seen = swapping()
    compiled = hook.Context(callback).wrap(kinds)
    for _ in range(2):
        assert compiled(1, 2, 7, 8, d=4, z=9) == kinds(1, 2, 7, 8, d=4, z=9)
        assert compiled(1, b=2, d=4) == kinds(1, b=2, d=4)
    assert len(seen) == 1
    assert seen[0][1] == {
        "a": 1, "b": 2, "c": 7, "args": (8,), "d": 4, "e": 5, "more": {"z": 9},
    }  # fmt: skip
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'd'"):
        compiled(1, 2)


def test_closures_and_cells():
    def outer(x):
        def inner(y):
            nonlocal x
            x += y
            return lambda: (x, y)

        return inner

    callback, seen = swapping()
    context = hook.Context(callback)
    inner = outer(1)
    assert context.wrap(inner)(2)() == (3, 2)
    assert inner(3)() == (6, 3)
    assert seen[0][0] == "inner"
    assert seen[0][2]["x"] is inner.__closure__[0]


def test_objects_reach_their_slot():
    def f(x):
        return x

    builder = CodeBuilder(f.__code__)
    builder.prologue((), 0)
    builder.load_local("__weft_objects")
    builder.add("RETURN_VALUE")
    code = builder.finish(f.__code__, ("x", "__weft_objects"), (), ())
    marker = object()
    context = hook.Context(lambda *frame: hook.Entry(None, code, (marker,), 1))
    assert context.wrap(f)(0) == (marker,)
    (entry,) = context.entries(f.__code__)
    assert (entry.hits, entry.objects, entry.objects_slot) == (1, (marker,), 1)


def test_super_and_frames():
    class Base:
        def name(self):
            return "base"

    class Derived(Base):
        def name(self):
            return super().name() + sys._getframe().f_code.co_name

    callback, seen = swapping()
    assert hook.Context(callback).wrap(Derived().name)() == "basename"
    assert [name for name, _, _ in seen if name == "name"] == ["name", "name"]


def test_exception_and_traceback():
    def fails(x):
        y = x + 1
        raise ValueError(y)

    callback, _ = swapping()
    with pytest.raises(ValueError, match="2") as error:
        hook.Context(callback).wrap(fails)(1)
    frame = error.traceback[-1]
    assert frame.name == "fails"
    assert frame.lineno == fails.__code__.co_firstlineno + 1
    assert frame.locals["y"] == 2
    assert hook.installed_depth() == 0
    assert hook.current_context() is None


def test_settrace_sees_the_users_lines():
    def traced(x):
        y = x + 1
        return [y]

    def lines(function):
        seen = []

        def trace(frame, event, argument):
            if frame.f_code.co_name == "traced":
                seen.append((event, frame.f_lineno))
            return trace

        sys.settrace(trace)
        try:
            function(1)
        finally:
            sys.settrace(None)
        return seen

    callback, _ = swapping()
    compiled = hook.Context(callback).wrap(traced)
    assert lines(compiled) == lines(traced)
    assert lines(compiled) == lines(traced)


def test_guards_choose_the_entry():
    def f(x):
        return x

    made = []

    def callback(code, arguments, *rest):
        kind = type(arguments["x"])
        made.append(kind)
        check = Check(lambda given: type(given[0]) is kind)
        return hook.Entry(check, rebuild(code), ())

    context = hook.Context(callback)
    compiled = context.wrap(f)
    for value in (1, "a", 2, "b", 3.0, 1):
        assert compiled(value) == value
    assert made == [int, str, float]
    assert len(context.entries(f.__code__)) == 3
    # The one used last comes first.
    assert context.entries(f.__code__)[0].guard_check.predicate((7,))


def test_guard_that_raises_does_not_hold():
    def f(x):
        return x

    def fails(arguments):
        raise RuntimeError("in guard")

    callback, seen = swapping(Check(fails))
    compiled = hook.Context(callback).wrap(f)
    assert compiled(1) == 1
    assert compiled(2) == 2
    assert len(seen) == 2


def test_python_code_in_guards_is_not_hooked():
    def f(x):
        return x

    def predicate(arguments):
        return arguments[0] == 1

    callback, seen = swapping(Check(predicate))
    compiled = hook.Context(callback).wrap(f)
    compiled(1)
    compiled(1)
    assert [name for name, _, _ in seen] == ["f"]


@pytest.mark.parametrize(
    ("answer", "calls"), [("SKIP", 1), ("FROZEN", 1), ("PASS", 3), ("DISABLE", 1)]
)
def test_answers(answer, calls):
    seen = []

    def callback(code, *rest):
        seen.append(code.co_name)
        return getattr(hook, answer)

    def inner():
        return 1

    def f():
        return inner()

    context = hook.Context(callback)
    compiled = context.wrap(f)
    assert [compiled() for _ in range(3)] == [1, 1, 1]
    assert seen.count("f") == calls
    assert ("inner" in seen) is (answer != "DISABLE")


def test_retry_looks_again():
    def f():
        return 1

    answers = [hook.RETRY, hook.RETRY, hook.SKIP]
    assert hook.Context(lambda *frame: answers.pop(0)).wrap(f)() == 1
    assert not answers


@pytest.mark.parametrize("answer", [None, 77, "text"])
def test_wrong_answers_are_errors(answer):
    with pytest.raises((TypeError, ValueError)):
        hook.Context(lambda *frame: answer).wrap(lambda: 1)()
    assert hook.installed_depth() == 0


def test_error_of_the_callback_is_raised_from_the_frame():
    def f(x):
        return x

    def callback(code, *rest):
        raise KeyError(code.co_name)

    compiled = hook.Context(callback).wrap(f)
    for _ in range(3):
        with pytest.raises(KeyError, match="f"):
            compiled(object())
    assert hook.installed_depth() == 0


def test_generators_and_coroutines_are_left_alone():
    def numbers():
        yield 1

    async def answer():
        return 2

    class Await:
        def __await__(self):
            return (yield from numbers())

    async def outer():
        await Await()
        return await answer()

    callback, seen = swapping()
    context = hook.Context(callback)

    def f():
        coroutine = outer()
        first = coroutine.send(None)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return list(numbers()), first, stop.value
        return None

    assert context.wrap(f)() == ([1], 1, 2)
    assert "numbers" not in [name for name, _, _ in seen]
    assert "outer" not in [name for name, _, _ in seen]


def test_recursion():
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    callback, seen = swapping()
    context = hook.Context(callback)
    assert context.wrap(fibonacci)(15) == 610
    assert len(seen) == 1
    assert context.counts()["hits"] > 1000

    def endless(n):
        return endless(n + 1)

    with pytest.raises(RecursionError):
        context.wrap(endless)(0)
    assert hook.installed_depth() == 0


def test_large_frames_fit_or_run_as_they_are():
    def f(n, g):
        return 0 if n == 0 else g(n - 1, g) + 1

    def callback(code, *rest):
        builder = CodeBuilder(code)
        builder.instructions = decode(code).instructions
        names = (*code.co_varnames, *(f"extra{i}" for i in range(300)))
        return hook.Entry(None, builder.finish(code, names, (), ()), ())

    compiled = hook.Context(callback).wrap(f)
    assert compiled(200, f) == 200


def test_nested_contexts_and_disabled():
    def leaf():
        return hook.current_context()

    outer_callback, outer_seen = swapping()
    inner_callback, inner_seen = swapping()
    outer, inner = hook.Context(outer_callback), hook.Context(inner_callback)
    inside = inner.wrap(leaf)
    without = hook.disabled(leaf)

    def f():
        return leaf(), inside(), without(), leaf()

    assert outer.wrap(f)() == (outer, inner, None, outer)
    assert [name for name, _, _ in outer_seen] == ["f", "leaf"]
    assert [name for name, _, _ in inner_seen] == ["leaf"]
    assert hook.installed_depth() == 0


def test_disabled_restores_on_errors():
    def fails():
        raise ValueError

    without = hook.disabled(fails)

    def f():
        try:
            without()
        except ValueError:
            return hook.current_context()

    callback, _ = swapping()
    context = hook.Context(callback)
    assert context.wrap(f)() is context


def test_wrapper_is_a_method_in_a_class():
    callback, seen = swapping()
    context = hook.Context(callback)

    class Thing:
        @context.wrap
        def method(self, x):
            return self, x

    thing = Thing()
    assert thing.method(1) == (thing, 1)
    assert Thing.method(thing, x=2) == (thing, 2)
    assert seen


def test_threads_share_a_context():
    def work(n):
        return sum(range(n)) + n

    callback, _ = swapping(Check(lambda arguments: True))
    context = hook.Context(callback)
    compiled = context.wrap(work)
    wrong = []

    def run():
        for n in range(400):
            if compiled(n) != sum(range(n)) + n:
                wrong.append(n)
            if hook.current_context() is not None:
                wrong.append("context")

    threads = [threading.Thread(target=run) for _ in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert hook.installed_depth() == 0


def test_another_thread_is_not_hooked():
    seen_in_thread = []

    def other():
        seen_in_thread.append(hook.current_context())

    def f():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    callback, seen = swapping()
    hook.Context(callback).wrap(f)()
    assert seen_in_thread == [None]
    assert "other" not in [name for name, _, _ in seen]


def test_clear_while_running():
    def f(x):
        context.clear()
        return x

    callback, seen = swapping(Check(lambda arguments: context.clear() or True))
    context = hook.Context(callback)
    compiled = context.wrap(f)
    assert [compiled(i) for i in range(3)] == [0, 1, 2]
    assert context.counts()["entries"] == 0
    assert len(seen) == 3


def test_resumption_goes_on_in_place_of_the_frame():
    def rest(a, b):
        return a, b, sys._getframe(1).f_code.co_name

    def f(x):
        return x

    builder = CodeBuilder(f.__code__)
    builder.prologue((), 0)
    with builder.callee():
        builder.load_constant(hook.Resumption)
    builder.load_constant(rest)
    builder.load_local("x")
    builder.load_constant(2)
    builder.call(3)
    builder.add("RETURN_VALUE")
    code = builder.finish(f.__code__, ("x",), (), ())

    def callback(original, *frame):
        return hook.Entry(None, code, (), -1, True) if original is f.__code__ else hook.SKIP

    def caller():
        return compiled(1)

    compiled = hook.Context(callback).wrap(f)
    assert caller() == (1, 2, "caller")
    with pytest.raises(TypeError, match="a function"):
        hook.Resumption(1)


def test_bound_takes_what_a_method_is_on_the_stack():
    assert hook.bound(len) is len
    assert hook.bound("a", str.upper)() == "A"
    with pytest.raises(TypeError, match="takes a function"):
        hook.bound()


def test_references_and_collection():
    class Thing:
        pass

    def make():
        thing = Thing()

        def f(x):
            return thing, compiled

        callback, _ = swapping()
        context = hook.Context(callback)
        compiled = context.wrap(f)
        compiled.attribute = compiled
        compiled(1)
        return weakref.ref(thing), weakref.ref(context), weakref.ref(compiled)

    references = make()
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


def test_many_calls_keep_references_flat():
    value = object()

    def f(x, *rest, **more):
        return lambda: x

    callback, _ = swapping(Check(lambda arguments: True))
    context = hook.Context(callback)
    compiled = context.wrap(f)
    compiled(value)
    (entry,) = context.entries(f.__code__)
    watched = (value, entry, entry.code, entry.objects, f.__code__, f, context)
    del entry.guard_check.calls[:]

    def counts():
        del entry.guard_check.calls[:]
        return [sys.getrefcount(thing) for thing in watched]

    before = counts()
    for _ in range(100_000):
        compiled(value)
        entry.guard_check.calls.clear()
    assert counts() == before


def test_code_made_in_every_call_does_not_pile_up():
    def f(i):
        namespace = {}
        exec(f"def g(): return {i}", namespace)
        return namespace.pop("g")()

    context = hook.Context(lambda *frame: hook.SKIP)
    compiled = context.wrap(f)
    assert [compiled(i) for i in range(500)] == list(range(500))
    assert context.counts()["codes"] < 100


def test_bad_arguments():
    with pytest.raises(TypeError):
        hook.Context(1)
    with pytest.raises(TypeError):
        hook.disabled(1)
    context = hook.Context(print)
    with pytest.raises(TypeError):
        context.wrap(1)
    with pytest.raises(TypeError):
        context.entries(1)
    with pytest.raises(ValueError, match="no local after the arguments"):
        hook.Entry(None, kinds.__code__, (), 2)
    with pytest.raises(ValueError, match="status"):
        context.set_status(kinds.__code__, 99)
