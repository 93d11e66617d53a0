"""``eval`` of expressions that are known, and prints to streams that the frame redirects."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest
import torch
from differential import attempt, check
from weft_bytecode_capture import CaptureOptions, GraphBreakError, capture

X = torch.ones(2)
FACTOR = 5


def expressions(x, n):
    y, k = x + n, 3  # noqa: F841

    def inner():
        return eval("k + FACTOR + n if True else y"), k, n

    out = [eval("y * k"), eval("  FACTOR + n"), eval(repr({"a": [1, 2.5]})), eval(b"n"), inner()]
    out.append(eval("(lambda a: a + FACTOR)(2)"))
    for text in ("1 +", "nope", "FACTOR.x", "[n for i in range(3)]", "y.nope", "sum(range(k))"):
        attempt(out, lambda text=text: eval(text))
    attempt(out, lambda: eval("n"))
    return out


def redirected(x):
    with contextlib.redirect_stdout(io.StringIO()) as outer:
        print("a", 1)
        print("b", end="")
        sys.stdout.write("c")
        with contextlib.redirect_stdout(io.StringIO()) as inner:
            print("in")
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        print("error", file=sys.stderr)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as last:
            print("x")
            raise KeyError(1)
    except KeyError:
        pass
    return [file.getvalue() for file in (outer, inner, errors, last)], x * 2


def test_expressions_among_the_names_of_their_frame():
    check(expressions, [(X, 1), (X, 2)], fullgraph=True)


def test_streams_that_the_frame_redirects():
    check(redirected, [(X,)], fullgraph=True)


def test_prints_before_and_behind_a_redirection(capsys):
    def program(x):
        print("before")
        with contextlib.redirect_stdout(io.StringIO()) as file:
            print("inside")
        print("behind", file.getvalue())
        return x + 1

    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(stream):
        found = capture(program)(X)
        stream.flush()
    assert torch.equal(found.result, X + 1)
    assert stream.buffer.getvalue() == b"before\nbehind inside\n\n"
    assert sys.stdout is not stream


def test_a_stream_that_stays_redirected():
    file = io.StringIO()

    def program(x):
        sys.stderr = file
        return x + 1, sys.stderr is file

    before = sys.stderr
    try:
        assert capture(program)(X).result[1]
        assert sys.stderr is file
    finally:
        sys.stderr = before


@pytest.mark.parametrize("text", ["'\\d'", "1 is 1"])
def test_the_compiler_warns_in_each_call(text):
    def program(x):
        return eval(text), x + 1

    with pytest.raises(GraphBreakError, match="locals of a frame"):
        capture(program, options=CaptureOptions(fullgraph=True))(X)


def report(x, n):
    file = io.StringIO()
    print("rows", n, file=file, end=";")
    for name, value in {"min": x.min(), "max": x.max()}.items():
        print(f"{name}={value.item():.3f}", file=file)
    file.write("end")
    file.flush()
    return file.getvalue(), x.sum()


def loss_in_a_redirected_print(x):
    with contextlib.redirect_stdout(io.StringIO()) as file:
        print("loss", round(x.sum().item(), 3))
        print(x.shape)
    return file.getvalue()


def closed(x):
    with io.StringIO() as file:
        file.write(f"{x.sum().item():.2f}")
        file.writelines(["a", f"{x.mean().item():.1f}"])
        text = file.getvalue()
    return text, file.closed


def in_front(x):
    file = io.StringIO("abcdefgh")
    file.write(f"{x.sum().item():.2f}")
    return file.getvalue(), file.tell()


def with_line_ends(x):
    file = io.StringIO(newline=None)
    file.write(f"{x.sum().item():.2f}\r\n")
    return file.getvalue()


def returned(x):
    file = io.StringIO()
    file.write("a")
    count = file.write(f"{x.sum().item():.2f}")
    return file, count


THIRDS, SEVENTHS = torch.arange(4.0) / 3, torch.arange(4.0) / 7


@pytest.mark.parametrize("program", [loss_in_a_redirected_print, closed])
def test_texts_of_data_in_files_of_memory(program):
    check(program, [(THIRDS,), (SEVENTHS,)], fullgraph=True)
    check(report, [(THIRDS, 1), (SEVENTHS, 1), (THIRDS, 2)], fullgraph=True)


@pytest.mark.parametrize("program", [in_front, with_line_ends])
def test_texts_of_data_that_are_not_just_added(program):
    check(program, [(THIRDS,), (SEVENTHS,)], fullgraph=False)


def test_a_file_with_texts_of_data_outlives_the_graph():
    compiled = capture(returned, options=CaptureOptions(fullgraph=True))
    for x in (THIRDS, SEVENTHS):
        (file, count), (expected, length) = compiled(x).result, returned(x)
        assert (file.getvalue(), file.tell(), count) == (
            expected.getvalue(),
            expected.tell(),
            length,
        )
