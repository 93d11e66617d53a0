"""What ``raise`` makes of each kind of value, and exceptions of classes that keep state in C."""

import time
import typing
import unittest

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import CaptureOptions, GraphBreakError, compile_frames

X = torch.arange(3.0)


class MakesOther(Exception):
    def __new__(cls, *args):
        return 5


class Refuses(Exception):
    def __init__(self):
        raise KeyError("no")


class Needy(Exception):
    def __init__(self, needed):
        super().__init__(needed)


class NotFound(FileNotFoundError):
    """Derived without a constructor."""


RAISED = [typing.Any, int, 3, "text", None, MakesOther, Refuses, Needy, ValueError, [1]]


def _kind(value):
    return value.__name__ if isinstance(value, type) else type(value).__name__


@pytest.mark.parametrize("value", RAISED, ids=_kind)
def test_what_raise_makes_of_a_value(value):
    def caught(x):
        try:
            raise value
        except Exception as error:
            return x + 1, type(error).__name__, str(error)

    check(caught, [(X,), (X,)])


@pytest.mark.parametrize("value", [*RAISED[:5], ValueError, [1]], ids=_kind)
def test_what_raise_makes_of_a_cause(value):
    def caught(x):
        try:
            raise KeyError(1) from value
        except Exception as error:
            return x + 1, type(error).__name__, str(error), type(error.__cause__).__name__

    check(caught, [(X,), (X,)])


@pytest.mark.parametrize("value", [int, 3, "text", [1]], ids=_kind)
def test_what_throw_makes_of_a_value(value):
    def numbers():
        yield 1
        yield 2

    def caught(x):
        made = numbers()
        next(made)
        try:
            made.throw(value)
        except Exception as error:
            return x + 1, type(error).__name__, str(error)

    check(caught, [(X,), (X,)])


def outside(x):
    raise typing.Any


def test_a_refused_raise_leaves_the_function():
    check(outside, [(X,), (X,)])


# Classes that keep more than the arguments.


def _told(error):
    return type(error).__name__, str(error), repr(error), error.args


STATEFUL = [
    (lambda: OSError(), ("errno", "strerror", "filename", "filename2")),
    (lambda: OSError("only"), ("errno", "strerror", "filename")),
    (lambda: OSError(2, "gone"), ("errno", "strerror", "filename")),
    (lambda: OSError(2, "gone", "file"), ("errno", "strerror", "filename", "filename2")),
    (lambda: OSError(2, "gone", "file", None, "other"), ("filename", "filename2")),
    (lambda: OSError(1, 2, 3, 4, 5, 6), ("errno", "filename")),
    (lambda: OSError(99999, "unknown"), ("errno",)),
    (lambda: FileNotFoundError("nope"), ("errno",)),
    (lambda: PermissionError(13, "p", "f"), ("errno", "filename")),
    (lambda: TimeoutError("t"), ("errno",)),
    (lambda: BlockingIOError(11, "b", 7), ("errno", "characters_written")),
    (lambda: NotFound(2, "gone"), ("errno", "strerror")),
    (lambda: ImportError("no module", name="m", path="p"), ("name", "path", "msg")),
    (lambda: ImportError("a", "b"), ("name", "msg")),
    (lambda: ModuleNotFoundError("none"), ("name", "msg")),
    (lambda: UnicodeDecodeError("utf-8", b"ab", 0, 1, "why"), ("encoding", "object", "start", "reason")),
    (lambda: UnicodeEncodeError("ascii", "ab", 0, 1, "why"), ("encoding", "object", "end")),
    (lambda: SyntaxError("bad"), ("msg", "lineno")),
    (lambda: SyntaxError("bad", ("f", 1, 2, "text")), ("msg", "lineno", "filename")),
    (lambda: ImportError("a", unknown=1), ()),
    (lambda: UnicodeDecodeError("utf-8"), ()),
    (lambda: OSError("a", x=1), ()),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(STATEFUL)))
def test_exceptions_that_keep_state(place):
    make, names = STATEFUL[place]

    def caught(x):
        try:
            raise make()
        except Exception as error:
            held = [getattr(error, name, "none") for name in names]
            return x + 1, _told(error), held, isinstance(error, OSError)

    def left(x):
        raise make()

    check(caught, [(X,), (X,)])
    check(left, [(X,), (X,)])


@pytest.mark.parametrize("place", range(len(STATEFUL) - 3))
def test_exceptions_that_keep_state_are_made_again(place):
    make, names = STATEFUL[place]

    def given(x):
        error = make()
        error.note = "kept"
        return x + 1, error

    compiled_error, error = (f(X)[1] for f in (compile_frames(given, run_graph), given))
    assert _told(compiled_error) == _told(error)
    assert vars(compiled_error) == vars(error)
    for name in names:
        assert getattr(compiled_error, name, "none") == getattr(error, name, "none")


def handled(x, number):
    try:
        raise OSError(number, "text")
    except FileNotFoundError as error:
        return x + error.errno, "first"
    except OSError as error:
        return x - error.errno, type(error).__name__


def test_the_class_depends_on_the_number():
    check(handled, [(X, 2), (X, 13), (X, 2), (X, 4)])


def initialised_again(x):
    error = OSError(2, "gone")
    error.__init__(3, "other")
    error.filename = "f"
    return x + 1, _told(error)


def test_what_is_changed_afterwards_breaks():
    check(initialised_again, [(X,), (X,)], fullgraph=False)


class GivesItself(Exception):
    def __new__(cls, *args):
        return cls


def throws(x, kind):
    def waiting():
        try:
            yield
        except TypeError as error:
            yield str(error)

    waits = waiting()
    next(waits)
    told = waits.throw(kind)
    waits.close()
    return x + 1, told


def test_a_generator_is_thrown_what_making_the_exception_raised():
    check(throws, [(X, GivesItself), (X, MakesOther)])


def without_a_traceback(x):
    def fails():
        raise ValueError("no")

    with unittest.TestCase().assertRaises(ValueError) as caught:  # noqa: PT027
        fails()
    held = caught.exception
    before = held.__traceback__ is None
    try:
        raise held
    except ValueError as error:
        after = error.__traceback__ is None
        error.__traceback__ = None
        return x + 1, before, after, error.__traceback__ is None, error


def test_errors_leave_without_their_traceback():
    check(without_a_traceback, [(X,), (X,)])


def breaks_behind_a_class(x):
    class Kept:
        pass

    time.sleep(0)
    return Kept, x + 1


def test_the_error_names_the_first_break():
    compiled = compile_frames(breaks_behind_a_class, run_graph, CaptureOptions(fullgraph=True))
    with pytest.raises(GraphBreakError, match="call of a builtin function"):
        compiled(X)
