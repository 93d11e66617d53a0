"""``random`` drawn before the frame meets a tensor: the graph's where it is of use there, else CPython's."""

import random

import pytest
import torch
from differential import run_graph, same
from weft_bytecode_capture import CaptureOptions, capture, compile_frames

WEIGHT = torch.randn(6)


def seen(function, *arguments):
    """What a function gives, and the number that follows in the stream."""
    random.seed(5)
    return function(*arguments), random.random()


def of_a_global():
    start = random.randint(0, 3)
    return WEIGHT[start : start + 3] * random.random()


def of_an_attribute(holder):
    scale = random.uniform(1, 2)
    return holder["weight"] * scale, scale


def made_of_numbers():
    return torch.tensor([random.random(), random.gauss(0, 1)])


def made_of_drawn_places():
    places = list(range(6))
    random.shuffle(places)
    return WEIGHT[places], places


@pytest.mark.parametrize("function", [of_a_global, made_of_numbers, made_of_drawn_places])
def test_in_one_graph(function):
    compiled = compile_frames(function, run_graph, CaptureOptions(fullgraph=True))
    for _ in range(3):
        assert same(seen(compiled), seen(function))
    assert not capture(function)().breaks


def test_of_what_an_argument_holds():
    holder = {"weight": WEIGHT}
    assert not capture(of_an_attribute)(holder).breaks
    compiled = compile_frames(of_an_attribute, run_graph, CaptureOptions(fullgraph=True))
    assert same(seen(compiled, holder), seen(of_an_attribute, holder))


def choose(names):
    number = random.random()
    if number < 0.5:
        return names[0], number
    return names[1], number + random.random()


def only_numbers():
    return random.random() * 2 + random.randint(1, 3)


def seed_alone():
    random.seed(3)
    return 4


def many_numbers():
    total = 0.0
    for _ in range(300):
        total += random.random()
    return total


@pytest.mark.parametrize("function", [only_numbers, seed_alone, many_numbers])
def test_python_alone_is_no_graph(function):
    captured = capture(function)()
    assert not captured.graphs
    compiled = compile_frames(function, run_graph)
    for _ in range(3):
        assert seen(compiled) == seen(function)


def test_a_decision_before_any_tensor():
    reports = []
    compiled = compile_frames(choose, run_graph, None, None, reports.append)
    for _ in range(4):
        assert seen(compiled, ["a", "b"]) == seen(choose, ["a", "b"])
    assert all(report.graph is None for report in reports)


def test_numbers_alone_under_fullgraph():
    compiled = compile_frames(only_numbers, run_graph, CaptureOptions(fullgraph=True))
    for _ in range(3):
        assert seen(compiled) == seen(only_numbers)


def test_a_break_before_any_tensor():
    def program(x):
        number = random.random()
        text = f"{number:.3f} {sorted([number, 0.5])}"
        return x * number, text

    compiled = compile_frames(program, run_graph)
    for _ in range(3):
        assert same(seen(compiled, torch.ones(2)), seen(program, torch.ones(2)))
