"""Exceptions as instances of their classes: constructors, attributes, methods, and outliving the graph."""

import time

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import CaptureOptions, compile_frames

X = torch.arange(3.0)


class Coded(Exception):
    """Keeps a code beside its message."""

    severity = "high"

    def __init__(self, message, *, code=1):
        super().__init__(message)
        self.code = code

    @property
    def doubled(self):
        return self.code * 2

    def describe(self):
        return f"{type(self).__name__}:{self}:{self.code}"

    def __eq__(self, other):
        return isinstance(other, Coded) and self.code == other.code

    __hash__ = Exception.__hash__


class Texted(Coded):
    def __str__(self):
        return f"[{self.code}] {super().__str__()}"


class Silent(ValueError):
    def __init__(self, *parts):
        self.parts = parts


class Made(RuntimeError):
    def __new__(cls, text):
        made = super().__new__(cls, text.upper())
        made.text = text
        return made


class Slotted(KeyError):
    __slots__ = ("place",)


def constructors(x, code):
    error = Coded("bad", code=code)
    same = Coded("other", code=code)
    silent = Silent(1, code)
    made = Made("abc")
    return (
        x * error.doubled, error.args, error.describe(), str(error), repr(error), vars(error),
        error == same, error != Coded("x", code=-1), silent.args, silent.parts, made.args, made.text,
        error.severity, isinstance(made, RuntimeError),
    )  # fmt: skip


def caught(x, code):
    try:
        if code > 1:
            raise Texted("worse", code=code)
        raise Slotted("place", code)
    except Coded as error:
        error.code += 1
        return x + error.code, str(error), f"{error!s:>20}", "%s" % error, error.args  # noqa: UP031
    except LookupError as error:
        error.place = "here"
        return x - 1, str(error), repr(error), error.place, hasattr(error, "__dict__")


def attributes(x, code):
    error = ValueError("a", code)
    error.extra = x
    error.args = ("b",)
    error.__cause__ = KeyError("k")
    before = error.__suppress_context__, error.__traceback__ is None, error.__context__
    error.add_note("first")
    error.add_note(f"code {code}")
    try:
        error.add_note(5)
    except TypeError as wrong:
        text = str(wrong)
    again = error.with_traceback(None) is error
    return (
        error.extra + code,
        error.args,
        before,
        error.__notes__,
        text,
        again,
        repr(error.__cause__),
    )


def missing(x, code):
    try:
        raise Coded("m", code=code)
    except Coded as error:
        try:
            return error.nothing
        except AttributeError as absent:
            return x + code, str(absent), absent.name, absent.__context__ is error


def wrong_arguments(x, code):
    try:
        raise Coded("m", number=code)
    except TypeError as error:
        return x + code, str(error)


def collected(x, codes):
    errors = []
    for code in codes:
        try:
            raise Coded("c", code=code)
        except Coded as error:
            errors.append(error.code)
    return x + sum(errors), errors


@pytest.mark.parametrize("program", [constructors, caught, attributes, missing, wrong_arguments])
def test_programs(program):
    check(program, [(X, 1), (X, 2), (X, 5)])


def test_errors_in_a_loop():
    check(collected, [(X, [1, 2]), (X, []), (X, [3])])


def returned(x, code):
    error = Texted("kept", code=code)
    error.tensor = x * 2
    error.add_note("noted")
    return x + 1, error, Silent(code), Made("text")


def test_exceptions_that_outlive_the_graph():
    compiled = compile_frames(returned, run_graph, CaptureOptions(fullgraph=True))
    for code in (1, 2, 3):
        pair = compiled(X, code)[1:], returned(X, code)[1:]
        for found, expected in zip(*pair, strict=True):
            assert type(found) is type(expected)
            assert found.args == expected.args
            assert vars(found).keys() == vars(expected).keys()
        assert str(pair[0][0]) == str(pair[1][0])
        assert torch.equal(pair[0][0].tensor, X * 2)


def raised_out(x, code):
    y = x + 1
    if code > 1:
        raise Texted("out", code=code) from KeyError("cause")
    return y


def test_exceptions_that_leave():
    check(raised_out, [(X, 1), (X, 2), (X, 3)], fullgraph=False)
    check(raised_out, [(X, 1), (X, 2), (X, 3)])


def across_a_break(x, code):
    try:
        raise Coded("b", code=code)
    except Coded as error:
        time.sleep(0)
        y = x * error.code
        try:
            raise Texted("t", code=code + 1) from error
        except Texted as second:
            return y, str(second), second.__cause__ is error, second.__context__ is error


def test_breaks_in_handlers():
    check(across_a_break, [(X, 1), (X, 4)], fullgraph=False)


def by_keyword(x, code):
    try:
        raise ImportError("no module", name=f"m{code}")
    except ImportError as error:
        found = error.name, str(error)
    try:
        raise SystemExit(code)
    except SystemExit as error:
        found += (error.args,)
    try:
        raise OSError(2, "gone", "file")
    except OSError as error:
        return x + error.errno, found, error.filename, type(error).__name__


def test_exceptions_with_state_in_c():
    check(by_keyword, [(X, 1), (X, 2)], fullgraph=False)


def cycles(x, which):
    first, second, third = ValueError(1), TypeError(2), KeyError(3)
    first.__context__ = second
    second.__context__ = third
    third.__context__ = [first, second, third][which]
    try:
        try:
            raise third
        except KeyError:
            raise RuntimeError(4)  # noqa: B904
    except RuntimeError as error:
        chain = []
        while error is not None and len(chain) < 7:
            chain.append(type(error).__name__)
            error = error.__context__
    try:
        try:
            raise third
        except KeyError:
            raise first  # noqa: B904
    except ValueError as error:
        return x + which, chain, type(error.__context__).__name__, type(third.__context__).__name__


def test_chains_of_contexts_in_cycles():
    check(cycles, [(X, 0), (X, 1), (X, 2)], fullgraph=False)


def made_without_arguments(x):
    """``__new__`` alone takes any arguments."""
    made = [kind.__new__(kind) for kind in (UnicodeEncodeError, UnicodeDecodeError, SyntaxError)]
    found = [str(error) for error in made]
    try:
        UnicodeDecodeError("utf-8")
    except TypeError as error:
        found.append(str(error))
    return found, x + 1


def test_exceptions_that_are_not_initialised():
    check(made_without_arguments, [(torch.ones(2),)], fullgraph=False)
