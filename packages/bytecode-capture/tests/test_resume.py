"""Functions broken at every instruction behave as CPython runs them: results, effects, exceptions."""

# The programs below are written for their bytecode.
# ruff: noqa: B007, B023, C416, F821, F841, PIE800, RUF015, RUF021

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
import types
import weakref

import pytest
from frame_stepping import SteppingEvaluator, stepped


def arithmetic(x, y=3, *rest, z=4, **more):
    total = x + y * z
    total += sum(rest)
    return total, more, [total] * 2


def loops(n):
    out = []
    for i in range(n):
        if i % 3 == 0:
            continue
        j = i
        while j > 0:
            j -= 2
            if j == 3:
                break
        else:
            out.append(-1)
        out.append(j)
    return out


def comprehensions(n):
    k = 2
    a = [i * k for i in range(n) if i % 2]
    b = {i: [j for j in range(i)] for i in a}
    c = {i % 3 for i in range(n)}
    i = sum(i for i in range(n))
    return a, b, c, i


def captured_in_comprehension(n):
    for i in range(n):
        pass
    values = [i for i in range(n) if not any(i == j for j in (1, 2))]
    return values, i, [lambda: i for i in range(2)][0]()


def handlers(n):
    log = []
    for i in range(n):
        try:
            if i == 1:
                raise ValueError(i)
            if i == 2:
                raise KeyError("k")
            log.append(1 / (i - 3))
        except ValueError as error:
            log.append(("value", error.args))
            try:
                raise RuntimeError("inner") from error
            except RuntimeError as inner:
                log.append(
                    (type(inner.__cause__), type(inner.__context__), sys.exc_info()[1] is inner)
                )
            log.append(sys.exc_info()[1] is not None)
        except (KeyError, ZeroDivisionError) as error:
            log.append(type(error).__name__)
        else:
            log.append("else")
        finally:
            log.append("finally")
    log.append(sys.exc_info())
    return log


def nested_finally(n):
    log = []
    try:
        try:
            log.append(n)
            return log[n]
        finally:
            log.append("a")
    except IndexError:
        log.append(str(sys.exc_info()[1]))
        try:
            raise
        except IndexError as again:
            log.append(repr(again))
        return log
    finally:
        log.append("b")


class Manager:
    def __init__(self, log, swallow):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, trace):
        self.log.append(("exit", kind, str(value)))
        return self.swallow


def with_blocks(fail, swallow):
    log = []
    with Manager(log, False) as outer, Manager(log, swallow):
        log.append(outer.swallow)
        if fail:
            raise ValueError("in with")
        log.append("body")
    log.append("after")
    return log


def loops_in_with_blocks(n):
    """What lies under a loop that ends, and under the instruction behind it, is what ``with`` left there."""
    log = []
    with Manager(log, False):
        for i in range(n):
            log.append(i)
        with Manager(log, False):
            log += [i for i in range(n) for _ in [None]]
        for i in range(n):
            if i > 1:
                break
        else:
            log.append("none left")
    return log


def context_stack(n):
    log = []
    with contextlib.ExitStack() as stack:
        for i in range(n):
            stack.callback(log.append, i)
        with contextlib.suppress(KeyError):
            {}["x"]
        log.append("done")
    return log


def closures(x):
    count = 0

    def add(y):
        nonlocal count
        count += y
        return count + x

    values = [add(1), add(2)]
    x = 10
    values.append(add(3))
    count = 50
    return values, add(1), count


def argument_cell(x, *rest):
    x = x + 1
    f = lambda: (x, rest)  # noqa: E731
    x += 1
    return f(), (lambda: x)()


class Base:
    def __init__(self, a):
        self.a = a

    def value(self, b):
        return self.a + b


class Derived(Base):
    def __init__(self, a, scale):
        super().__init__(a)
        self.scale = scale

    def value(self, b):
        first = super().value(b)
        return first * self.scale, __class__.__name__

    def captured(self, b):
        return [(lambda: self.a)(), super().value(b)]


def objects(a):
    item = Derived(a, 3)
    return item.value(2), item.captured(4), type(item).__mro__[1].__name__


def exception_groups(n):
    log = []
    try:
        raise ExceptionGroup("g", [ValueError(n), TypeError("t"), KeyError("k")])
    except* ValueError as group:
        log.append(group.exceptions[0].args)
    except* TypeError:
        log.append("type")
    except* KeyError as group:
        log.append(len(group.exceptions))
    return log


def matching(value):
    match value:
        case [int(a), *rest] if a > 1:
            return "list", a, rest
        case {"k": inner, **others}:
            return inner, others
        case Base(a=a):
            return "base", a
        case str() | None:
            return "text"
        case _:
            return "else"


def unpacking(values):
    first, *middle, last = values
    (a, b), c = (first, last), {**{"x": 1}, "y": middle}
    return f"{a!r:>5}{b}" + "".join(map(str, middle)), c, [*values, *middle], max(*values, 0)


def conditional(t, a, b):
    return dict(zip("ab", (a if t else b, b and a or t), strict=True)), not t, a < b < 5


def deletes(n):
    x = [n]
    del x[0]
    y = x
    del x
    try:
        return x
    except UnboundLocalError as error:
        return str(error), y


def unbound_cell(n):
    if n:
        x = n
    f = lambda: x  # noqa: E731
    try:
        return x, f()
    except NameError:
        return "unbound"


def imports(n):
    import math as m
    from os.path import join

    return m.floor(n), join("a", "b")


def walrus(items):
    y = None
    return [y for x in items if (y := x * 2) > 2], y


def slices(items):
    items[1:2] = [9, 9]
    del items[0]
    return items[::-1], items[:1]


def with_return(n):
    for i in range(n):
        with contextlib.suppress(ValueError):
            if i == 2:
                return i
    return None


def assertion(n):
    assert n > 0, "n is small"
    return n


CASES = [
    (arithmetic, [(1,), (1, 2, 3, 4)]),
    (loops, [(12,), (0,), (3,)]),
    (comprehensions, [(7,), (0,)]),
    (captured_in_comprehension, [(4,)]),
    (handlers, [(5,), (1,)]),
    (nested_finally, [(0,), (5,)]),
    (with_blocks, [(False, False), (True, True), (True, False)]),
    (loops_in_with_blocks, [(0,), (1,), (3,)]),
    (context_stack, [(3,)]),
    (closures, [(1,), (2,)]),
    (argument_cell, [(1,), (1, 2, 3)]),
    (objects, [(1,), (5,)]),
    (exception_groups, [(3,)]),
    (matching, [([2, 3],), ({"k": 1, "l": 2},), (Base(3),), (None,), (4.0,), ([1],)]),
    (unpacking, [([1, 2, 3, 4],), ((1,),), ([1, 2],)]),
    (conditional, [(True, 1, 2), (False, 1, 2), (0, 0, 9)]),
    (deletes, [(3,)]),
    (unbound_cell, [(0,), (1,)]),
    (imports, [(3.5,)]),
    (walrus, [([1, 2, 3],), ([],)]),
    (slices, [([1, 2, 3],)]),
    (with_return, [(5,), (1,)]),
    (assertion, [(1,), (0,)]),
]


def outcome(function, arguments):
    """What a call gives, with the exception's type, text, context and lines if it raises."""
    copied = [list(a) if isinstance(a, list) else a for a in arguments]
    try:
        return "returned", function(*copied), copied
    except Exception as error:
        chain = []
        link: BaseException | None = error
        while link is not None:
            frames = traceback.extract_tb(link.__traceback__)
            lines = [(f.name, f.lineno) for f in frames if f.filename == __file__]
            chain.append((type(link), str(link), lines[1:] if link is error else lines))
            link = link.__cause__ or link.__context__
        return "raised", chain, copied


@pytest.mark.parametrize(("function", "calls"), CASES, ids=[c[0].__name__ for c in CASES])
def test_stepped_function_equals_plain_one(function, calls):
    evaluator = SteppingEvaluator()
    compiled = stepped(function, evaluator, recompile_limit=1000)
    for _ in range(2):
        for arguments in calls:
            assert outcome(compiled, arguments) == outcome(function, arguments)
    assert sys.exc_info() == (None, None, None)
    assert len(evaluator.frames) > 1


@pytest.mark.parametrize(("function", "calls"), CASES, ids=[c[0].__name__ for c in CASES])
@pytest.mark.parametrize("seed", range(4))
def test_breaks_at_some_instructions_only(function, calls, seed):
    def step(code, index, instruction):
        return hash((seed, code.co_name, instruction.name, len(code.co_code))) % 3 == 0

    compiled = stepped(function, SteppingEvaluator(step), recompile_limit=1000)
    for arguments in calls:
        assert outcome(compiled, arguments) == outcome(function, arguments)


def test_many_turns_of_a_loop_do_not_nest():
    def loop(n):
        total = 0
        depths = set()
        for i in range(n):
            total += i
            depths.add(len(traceback.extract_stack()) if i % 1000 == 0 else 0)
        return total, len(depths)

    evaluator = SteppingEvaluator()
    assert stepped(loop, evaluator)(20_000) == (sum(range(20_000)), 2)
    assert 0 < evaluator.frames.count("loop") < 60


def test_traceback_shows_one_frame_with_the_users_lines():
    def fails(x):
        y = x + 1
        z = y * 2
        return z / 0

    with pytest.raises(ZeroDivisionError) as plain:
        fails(1)
    with pytest.raises(ZeroDivisionError) as compiled:
        stepped(fails)(1)
    wanted, found = ([(f.name, f.lineno) for f in e.traceback[1:]] for e in (plain, compiled))
    assert [n for n, _ in found] == [n for n, _ in wanted] == ["fails"]
    assert found == wanted
    frame = compiled.value.__traceback__.tb_next.tb_frame
    assert frame.f_code.co_qualname == fails.__qualname__
    assert frame.f_code.co_filename == __file__


def test_caller_frame_is_the_users_caller():
    def inner():
        x = len("ab")
        return sys._getframe(x - 1), x

    def outer():
        return inner()

    frame, _ = stepped(outer)()
    assert frame.f_code.co_name == "outer"


def test_locals_are_not_kept_alive_after_deletion():
    class Thing:
        pass

    def deletes_local():
        thing = Thing()
        reference = weakref.ref(thing)
        alive = reference() is thing
        del thing
        return alive, reference() is None

    assert deletes_local() == (True, True)
    assert stepped(deletes_local, recompile_limit=100)() == (True, True)


def test_unused_locals_live_as_long_as_the_frame():
    log = []

    class Thing:
        def __del__(self):
            log.append("gone")

    def keeps_local():
        thing = Thing()
        log.append("used")
        del log[:0]
        log.append("end")
        return len(log)

    assert stepped(keeps_local, recompile_limit=100)() == 2
    assert log == ["used", "end", "gone"]


def test_locals_builtin_sees_the_same_names():
    def reads():
        a = 1
        b = [a]
        c = len(b)
        return sorted(locals()), c

    assert stepped(reads, recompile_limit=100)() == reads()


def test_generators_inside_are_left_alone():
    def numbers(n):
        for i in range(n):
            received = yield i
            if received:
                yield received

    def consumer():
        generator = numbers(3)
        out = [next(generator), generator.send(7)]
        return out + list(generator)

    evaluator = SteppingEvaluator()
    assert stepped(consumer, evaluator, recompile_limit=100)() == [0, 7, 1, 2]
    assert "numbers" not in evaluator.frames


def test_resume_code_is_shared_between_conversions():
    def f(x):
        a = x + 1
        return a * 2

    evaluator = SteppingEvaluator()
    compiled = stepped(f, evaluator)
    compiled(1)
    context = compiled.context
    codes = {id(code) for code in context.codes()}
    context.set_status(f.__code__, 0)
    for entry in context.entries(f.__code__):
        resumes = [c for c in entry.code.co_consts if isinstance(c, types.CodeType)]
        assert {id(c) for c in resumes} <= codes


def test_contexts_with_entries_are_collected():
    def make():
        def f(x):
            return [x + 1, f]

        return stepped(f), weakref.ref(f)

    compiled, reference = make()
    compiled(1)
    context = weakref.ref(compiled.context)
    del compiled
    gc.collect()
    assert context() is None
    assert reference() is None
