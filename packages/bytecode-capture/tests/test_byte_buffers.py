"""bytearray, memoryview, regular expressions and other values that captured code makes."""

import re
import time

import pytest
import torch
from differential import check

X = torch.arange(3.0)
PATTERN = re.compile(r"(?P<name>[a-z]+)(\d*)")


def changed(x, data):
    buffer = bytearray(data)
    buffer += b"zz"
    buffer.extend([1, 2])
    buffer[0:1] = b"ab"
    del buffer[-1]
    buffer.insert(1, 250)
    last = buffer.pop()
    return x + last, bytes(buffer), buffer.find(b"z"), buffer[1:3], 250 in buffer, len(buffer)


def kept(x, data):
    buffer = bytearray(data)
    again = buffer
    again.append(7)
    return x + 1, buffer, again is buffer, buffer == data, buffer > data, buffer * 2


def broken(x, data):
    buffer = bytearray(data)
    iterator = iter(buffer)
    first = next(iterator)
    time.sleep(0)
    buffer.append(9)
    return x + first, list(iterator), buffer


def grown_while_iterated(x, data):
    buffer = bytearray(data)
    seen = []
    for byte in buffer:
        seen.append(byte)
        if len(buffer) < 6:
            buffer.append(byte)
    return x + len(seen), seen


def viewed(x, data):
    buffer = bytearray(data)
    view = memoryview(buffer)
    view[0] = 65
    shape = view.shape, view.itemsize, view.readonly, view.tolist(), view.tobytes()
    try:
        buffer.append(1)
    except BufferError:
        shape += ("kept its size",)
    return x + view[0], buffer, shape, view.obj is buffer


def wrong(x, data):
    buffer = bytearray(data)
    try:
        buffer[0] = 300
    except ValueError as error:
        text = str(error)
    try:
        buffer.pop(99)
    except IndexError as error:
        return x + 1, text, str(error)


@pytest.mark.parametrize("program", [changed, kept, broken, grown_while_iterated, viewed, wrong])
def test_buffers(program):
    check(program, [(X, b"abc"), (X, b"\x00\xff"), (X, b"abc")], fullgraph=False)


def test_buffers_in_one_graph():
    for program in (changed, kept, grown_while_iterated, wrong):
        check(program, [(X, b"abc"), (X, b"hello")])


def patterns(x, text):
    match = PATTERN.match(text)
    named = match.groupdict() if match else {}
    pieces = re.split(r"[,;]\s*", text)
    numbers = [int(m.group(2)) for m in PATTERN.finditer(text) if m[2]]
    doubled = PATTERN.sub(lambda m: m.group("name") * 2, text)
    found = re.search("b+", text, re.IGNORECASE)
    span = found.span() if found is not None else None
    return x + sum(numbers), named, pieces, doubled, span, re.escape(text), PATTERN.pattern


def wrong_pattern(x, text):
    try:
        return x * 2, re.match(text, "a").span()
    except re.error as error:
        return x + 1, type(error).__name__, str(error)


def returned_match(x, text):
    match = re.fullmatch(r"\w+", text)
    return x + 1, match is None, (match and match.group())


@pytest.mark.parametrize("program", [patterns, returned_match])
def test_regular_expressions(program):
    check(program, [(X, "ab1, cd22"), (X, "B;b"), (X, "")])


def test_a_wrong_pattern():
    check(wrong_pattern, [(X, "("), (X, "(a)?")], fullgraph=False)
