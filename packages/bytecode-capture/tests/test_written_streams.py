"""Texts written to streams from outside: ``io.StringIO``, and classes of the program's that write on."""

import contextlib
import io
import sys

import pytest
import torch
from differential import run_graph, same
from weft_bytecode_capture import CaptureOptions, compile_frames


class Tee:
    """Writes to several streams, and counts."""

    def __init__(self, *streams):
        self.streams = streams
        self.parts = []
        self.flushed = 0

    def write(self, text):
        self.parts.append(text)
        for stream in self.streams:
            stream.write(text)
        return len(text)

    def flush(self):
        self.flushed += 1


def written(x, file, tee):
    file.write(f"rows {x.shape[0]}\n")
    length = file.write(f"{x.sum().item():.2f} ")
    print("then", x.shape, file=file, sep="|")
    file.flush()
    return x * 2, length


def printed_to_a_class(x, file, tee):
    print("rows", x.shape[0], sep="-", file=tee, flush=True)
    print(file=tee)
    return x + len(tee.parts), tee.flushed


def redirected(x, file, tee):
    with contextlib.redirect_stdout(file):
        print("inside", x.shape[0])
    with contextlib.redirect_stdout(tee):
        print("twice")
    return x + len(tee.parts)


def in_the_place_of_standard_output(x, file, tee):
    before, sys.stdout = sys.stdout, tee
    try:
        print("now", len(tee.parts))
    finally:
        sys.stdout = before
    return x * len(tee.parts)


def to_one_made_inside(x, file, tee):
    made = Tee(file)
    print("made", x.shape[0], file=made)
    return x + len(made.parts), made.parts


PROGRAMS = [
    written, printed_to_a_class, redirected, in_the_place_of_standard_output, to_one_made_inside,
]  # fmt: skip


def seen(function, sizes):
    file = io.StringIO()
    tee = Tee(file, io.StringIO())
    results = [function(torch.arange(float(size)), file, tee) for size in sizes]
    return results, file.getvalue(), tee.parts, tee.flushed


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program):
    compiled = compile_frames(program, run_graph, CaptureOptions(fullgraph=True))
    for sizes in ((2, 2, 3), (3, 4)):
        assert same(seen(compiled, sizes), seen(program, sizes))


def test_what_is_read_back():
    def program(x, file, tee):
        file.write("some")
        count = len(file.getvalue())
        print("more", file=file)
        return x * count, file.getvalue(), file.tell()

    compiled = compile_frames(program, run_graph)
    assert same(seen(compiled, (2, 2, 3)), seen(program, (2, 2, 3)))


def test_streams_of_a_builtin_base_that_keep_what_is_written():
    class Kept(io.TextIOBase):
        def __init__(self):
            self.parts = []

        def write(self, text):
            self.parts.append(text)
            return len(text)

    def program(x, file):
        print("a", x.shape[0], file=file)
        return x + len(file.parts)

    plain, other = Kept(), Kept()
    compiled = compile_frames(program, run_graph)
    for _ in range(3):
        assert same(compiled(torch.ones(2), other), program(torch.ones(2), plain))
    assert other.parts == plain.parts


def test_a_closed_file():
    def program(x, file):
        try:
            print("a", file=file)
        except ValueError as error:
            return x, str(error)
        return x * 2, ""

    compiled = compile_frames(program, run_graph)
    for close in (False, True, False):
        file = io.StringIO()
        if close:
            file.close()
        assert same(compiled(torch.ones(2), file), program(torch.ones(2), file))
