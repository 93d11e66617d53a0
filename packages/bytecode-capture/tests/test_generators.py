"""Generators and context managers made and consumed in captured code behave as in CPython."""

# The programs below are written for their generators.
# ruff: noqa: UP028, SIM105

from __future__ import annotations

import collections
import collections.abc
import contextlib
import gc
import time

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import compile_frames


def numbers(n):
    for i in range(n):
        yield i
    return n * 10


def delegating(n):
    first = yield from numbers(n)
    second = yield from [first, first + 1]
    return second


def echo():
    received = []
    while True:
        try:
            value = yield len(received)
        except ValueError as error:
            value = str(error)
        if value is None:
            return received
        received.append(value)


def cleaning(log):
    try:
        yield 1
        yield 2
    finally:
        log.append("cleaned")


def loops(x):
    total = []
    for value in numbers(x):
        total.append(value)
    return total, list(numbers(x)), tuple(delegating(x)), sum(numbers(x)), {*numbers(x)}


def sends(x):
    generator = echo()
    shown = [next(generator), generator.send(x), generator.send("a")]
    shown.append(generator.throw(ValueError("thrown")))
    try:
        generator.send(None)
    except StopIteration as stop:
        shown.append(stop.value)
    return shown, next(generator, "over")


def return_value(x):
    generator = delegating(x)
    taken = []
    while True:
        try:
            taken.append(next(generator))
        except StopIteration as stop:
            return taken, stop.value, stop.args


def closes(x):
    log = []
    generator = cleaning(log)
    taken = next(generator)
    generator.close()
    generator.close()
    unstarted = cleaning(log)
    unstarted.close()
    return taken, log, list(generator), list(unstarted)


def ignores(x):
    def stubborn():
        try:
            yield x
        except GeneratorExit:
            pass
        yield x + 1

    generator = stubborn()
    next(generator)
    try:
        generator.close()
    except RuntimeError as error:
        return str(error)


def throws_through(x):
    log = []

    def inner():
        try:
            yield x
        except KeyError as error:
            log.append(error.args)
            yield "caught"
        finally:
            log.append("inner done")
        return "inner result"

    def outer():
        result = yield from inner()
        log.append(result)
        yield "after"

    generator = outer()
    return next(generator), generator.throw(KeyError(x)), next(generator), log


def throws_end(x):
    def inner():
        try:
            yield x
        except KeyError:
            return "ended"

    def outer():
        result = yield from inner()
        yield result

    generator = outer()
    next(generator)
    return generator.throw(KeyError)


def throws_into_plain(x):
    def outer():
        try:
            yield from [x, 2]
        except TypeError as error:
            yield str(error)

    generator = outer()
    next(generator)
    return generator.throw(TypeError("t")), list(generator)


def throw_unstarted(x):
    generator = numbers(x)
    try:
        generator.throw(ValueError("early"))
    except ValueError as error:
        return str(error), list(generator)


def stop_inside(x):
    def faulty():
        yield x
        raise StopIteration("inside")

    generator = faulty()
    next(generator)
    try:
        next(generator)
    except RuntimeError as error:
        return str(error), type(error.__cause__).__name__, error.__cause__.args


def just_started(x):
    generator = echo()
    try:
        generator.send(x)
    except TypeError as error:
        return str(error)


def reentrant(x):
    def f():
        yield next(g)

    g = f()
    try:
        next(g)
    except ValueError as error:
        return str(error)


def expressions(x):
    squares = (i * i for i in range(x))
    pairs = ((a, b) for a in range(x) for b in range(a) if a != b)
    return (
        sum(squares),
        list(pairs),
        list(squares),
        any(i > 1 for i in range(x)),
        max(i for i in (1, x)),
    )


def late_binding(x):
    values = [1, 2]
    generator = (v + x for v in values)
    values.append(3)
    x = 10
    return list(generator)


def handled_inside(x):
    def f():
        try:
            raise KeyError(x)
        except KeyError:
            yield "in handler"
            try:
                raise ValueError("second")
            except ValueError as error:
                yield type(error.__context__).__name__

    try:
        raise IndexError("outer")
    except IndexError:
        return list(f())


@contextlib.contextmanager
def managed(log, suppress=False):
    log.append("enter")
    try:
        yield "value"
    except ValueError as error:
        log.append(("error", str(error)))
        if not suppress:
            raise
    finally:
        log.append("leave")


def with_managed(x):
    log = []
    with managed(log) as value:
        log.append((value, x))
    with managed(log, suppress=True):
        raise ValueError("suppressed")
    try:
        with managed(log):
            raise ValueError("passed on")
    except ValueError as error:
        log.append(str(error))
    try:
        with managed(log):
            raise KeyError("other")
    except KeyError as error:
        log.append(error.args)
    return log


class Manager:
    def __init__(self, log, suppress):
        self.log, self.suppress = log, suppress

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append((kind and kind.__name__, str(error), traceback is None))
        return self.suppress


def with_class(x):
    log = []
    with Manager(log, False) as manager:
        log.append(manager.suppress)
    with Manager(log, True), Manager(log, False):
        raise ValueError(x)
    for i in range(3):
        with Manager(log, False):
            if i == 0:
                continue
            if i == x:
                break
    return log


def returns_inside(x):
    log = []

    def f():
        with Manager(log, False):
            return x

    return f(), log


def null_context(x):
    with contextlib.nullcontext(x) as value, contextlib.suppress(KeyError):
        raise KeyError(value)
    return value


def no_manager(x):
    try:
        with x:
            pass
    except TypeError as error:
        return str(error)


class Enters:
    def __enter__(self):
        return self


class Leaves:
    def __exit__(self, *error):
        return None


class EntersLater:
    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None


def incomplete_managers(x):
    found = []
    for kind in (Enters, Leaves, EntersLater):
        try:
            with kind():
                pass
        except TypeError as error:
            found.append(str(error))
    return found


class Countdown(collections.abc.Sequence):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index >= 3:
            raise IndexError(index)
        return 3 - index


def dropped_in_except(x):
    """The iterator waits in a try block whose clauses a GeneratorExit passes by."""
    return [x * a + b for a, b in zip([1, 2], Countdown(), strict=False)]


def dropped_past_handlers(x):
    """Neither the handlers of other exceptions nor `yield from` see the end of a dropped generator."""

    def others():
        try:
            try:
                yield x
                yield from range(5)
            except KeyError:
                x.clear()
        except (IndexError, ValueError) as error:
            x.append(error)

    def outer():
        yield from others()

    first = outer()
    third = others()
    return next(first), [next(third), next(third)], x in collections.UserList([x])


CASES = [
    loops, sends, return_value, closes, ignores, throws_through, throws_end, throws_into_plain,
    throw_unstarted, stop_inside, just_started, reentrant, expressions, late_binding, handled_inside,
    with_managed, with_class, returns_inside, null_context, no_manager,
    incomplete_managers, dropped_in_except, dropped_past_handlers,
]  # fmt: skip


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_one_graph(function):
    check(function, [(1,), (2,), (3,)])


def exit_stack(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(Manager(log, False))
        stack.callback(log.append, x)
        log.append("body")
    return log


def dropped(log):
    for _ in cleaning(log):
        log.append("first")
        break


def dropped_in_with(log, x):
    def f():
        with Manager(log, False):
            yield x
            yield x

    return next(f())


def alive_at_a_break(x):
    pairs = zip([1, 2, 3], "abc", strict=True)
    generator = numbers(4)
    first, second = next(pairs), next(generator)
    time.sleep(0)
    torch._C._log_api_usage_once("a call that breaks the graph")
    return first, second, list(pairs), list(generator), x


def escapes(x):
    return list(numbers(x)), next(iter(numbers(5)))


def returned_generator(x):
    return numbers(x)


@pytest.mark.parametrize(
    "function", [exit_stack, alive_at_a_break, escapes], ids=lambda f: f.__name__
)
def test_with_breaks(function):
    check(function, [(1,), (2,)], fullgraph=False)


def test_dropped_in_with():
    check(dropped_in_with, [([], 1), ([], 2)], fullgraph=False)


def test_dropped_generator_runs_its_finally_clause():
    log = []
    compile_frames(dropped, run_graph)(log)
    gc.collect()  # what the first capture knew of the frame's arguments
    assert log == ["first", "cleaned"]


def test_returned_generator_goes_on():
    assert list(compile_frames(returned_generator, run_graph)(3)) == [0, 1, 2]


def test_tensors_through_a_generator():
    def scaled(xs):
        for x in xs:
            factor = yield x * 2
            if factor:
                yield x * factor

    def f(xs):
        generator = scaled(xs)
        return [next(generator), generator.send(3), *generator]

    check(f, [([torch.ones(2), torch.arange(2.0)],)])
