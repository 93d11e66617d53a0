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


def compiled_texts(x, n):
    out = []
    for text in ("n + FACTOR", "1 +", "x y", "def f(:", "[i for i in range(n)"):
        attempt(out, lambda text=text: eval(compile(text, "<text>", "eval"), {"n": n, "FACTOR": 2}))
        attempt(out, lambda text=text: exec(text))
    try:
        compile("a = (1", "<text>", mode="exec")
    except SyntaxError as error:
        out += [error.msg, error.lineno, error.filename, error.text, str(error), error.args]
    code = compile("made = n * 2\ngone = 1\ndel gone", "<text>", "exec", dont_inherit=True)
    names, outer = {"n": 1}, {"n": n}
    exec(code, outer, names)
    exec(code, outer)
    try:
        eval("absent", outer)
    except NameError as error:
        out += [str(error), error.name]
    return out, names, outer["made"], sorted(outer), code.co_names, x + 1


def bound_by_a_text(x, n):
    out = []
    exec(
        "def doubled(a):\n    return a * FACTOR\nclass Made:\n    part = n\nout += [doubled(n), Made.part]"
    )
    return out, x * 2


def bound_in_the_body_of_a_class(x, n):
    class Made:
        exec("part = 4")
        other = eval("part + 1")

    return Made.part, Made.other, x + n


def names_of_a_frame(x, n):
    k = n + 1

    def inner(first, *rest, last=3, **named):
        unbound = k
        del unbound
        return locals()

    found = inner(1, 2, last=4, more=5)
    found["first"] = 9
    return found, list(found), x + 1


def code_with_variables_of_others(x, n):
    out = []

    def inner():
        return n

    for function in (eval, exec):
        try:
            function(inner.__code__)
        except TypeError as error:
            out.append(str(error))
    return out, x + 1


def cells(x, n):
    def made():
        kept, later = x + n, n
        return lambda: (kept, later)

    function = made()
    first, second = function.__closure__
    second.cell_contents = 7
    return first.cell_contents, function(), function.__closure__ is function.__closure__


TEXTS = [
    compiled_texts, bound_by_a_text, bound_in_the_body_of_a_class, names_of_a_frame,
    code_with_variables_of_others, cells,
]  # fmt: skip


@pytest.mark.parametrize("program", TEXTS)
def test_texts_and_names_without_a_break(program):
    check(program, [(X, 1), (X, 2)], fullgraph=True)


def bound_and_read_again(x, n):
    exec("made = n + 1")
    return eval("made"), x + 1


def functions_in_dicts(x, n):
    names = {}
    exec("def made(a):\n    return a + 1", names)
    return names["made"](x), "__builtins__" in names


def of_no_text(x, n):
    return eval("n", {"n": x}), locals()["n"], eval(bytearray(b"n"))


@pytest.mark.parametrize("program", [bound_and_read_again, functions_in_dicts, of_no_text])
def test_texts_that_are_left_to_cpython(program):
    check(program, [(X, 1), (X, 2)], fullgraph=False)
