"""``io.StringIO`` and ``io.BytesIO`` in captured code."""

import io
import time

import pytest
import torch
from differential import check

X, Y = torch.arange(4.0), torch.ones(2)


def written(x):
    out = io.StringIO()
    out.write("shape ")
    print("of", x.shape, 2.5, sep="-", end="!\n", file=out)
    print("next", file=out)
    for i in range(3):
        out.write(f"{i},")
    out.writelines(str(i) for i in range(2))
    return x + 1, out.getvalue(), out.tell()


def lines(x):
    source = io.StringIO("a\nb\nc\n")
    first = source.readline()
    rest = [line.strip() for line in source]
    source.seek(0)
    return x + len(rest), first, rest, source.read(3), list(source), next(source, "end")


def as_a_context(x):
    with io.StringIO("text") as out:
        out.seek(0, 2)
        out.write("more")
        found = out.getvalue()
    try:
        out.write("late")
    except ValueError as error:
        return x, found, out.closed, str(error)
    return None


def of_bytes(x):
    out = io.BytesIO()
    out.write(b"abc")
    out.write(bytes(2))
    out.seek(1)
    return x + 1, out.getvalue(), out.read(), isinstance(out, io.BytesIO), out.truncate(2)


def errors(x):
    try:
        io.StringIO().write(b"bytes")
    except TypeError as error:
        return x, str(error)
    return None


def behind_a_break(x):
    out, closed = io.StringIO("abc"), io.StringIO()
    out.read(1)
    closed.close()
    time.sleep(0)
    out.write("z")
    return x + 1, out.getvalue(), out.tell(), closed.closed


def returned(x):
    out = io.StringIO()
    out.write("abc")
    return x + 1, out


def of_a_tensor(x):
    out = io.StringIO()
    out.write(f"{x.sum().item()}")
    print(x, file=out)
    return x + 1, out.getvalue()


def in_a_long_loop(x):
    out = io.StringIO()
    for _ in range(20):
        x = x * 0.5
        out.write("a")
    return x, out.getvalue()


@pytest.mark.parametrize("function", [written, lines, as_a_context, of_bytes, errors])
def test_in_one_graph(function):
    check(function, [(X,), (Y,)])


@pytest.mark.parametrize("function", [behind_a_break, of_a_tensor, in_a_long_loop])
def test_as_eager(function):
    check(function, [(X,), (Y,)], fullgraph=False)


def test_one_that_is_returned():
    def function(x):
        result, out = returned(x)
        return result, out.getvalue(), out.tell()

    check(function, [(X,), (Y,)])


def test_one_that_outlives_the_graph():
    found = []
    check(
        lambda x: (found.append(returned(x)[1]), x + 1)[1],
        [(X,), (Y,)],
        state=lambda: [(out.getvalue(), out.tell()) for out in found],
        reset=found.clear,
    )
