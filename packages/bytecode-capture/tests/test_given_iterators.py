"""Iterators that were there before the call: how far they are when it ends, and what they gave."""

import itertools
import operator

import pytest
import torch
from differential import check, run_graph, same
from weft_bytecode_capture import CaptureOptions, capture, compile_frames, disable


def take_one(iterator, x):
    return x * 2, next(iterator, "none")


def take_three(iterator, x):
    first, *rest = itertools.islice(iterator, 3)
    return x * first, rest


def take_all(iterator, x):
    total = x
    for value in iterator:
        total = total + value
    return total, next(iterator, None)


def take_pairs(iterator, x):
    return [x + a * b for a, b in zip(iterator, iterator, strict=False)]


MAKERS = {
    "list": lambda: iter([1, 2.5, 3, 4, 5]),
    "tuple": lambda: iter((1, 2.5, 3, 4)),
    "range": lambda: iter(range(3, 30, 4)),
    "range down": lambda: iter(range(9, -3, -2)),
    "count": lambda: itertools.count(4),
    "count by": lambda: itertools.count(-1, 3),
    "tensors": lambda: iter([torch.ones(2), torch.full((2,), 3.0), torch.zeros(2)]),
    "through": lambda: advanced(iter([1, 2]), 3),
    "in the middle": lambda: advanced(iter((1, 2, 3, 4, 5)), 2),
}


def advanced(iterator, times):
    for _ in range(times):
        next(iterator, None)
    return iterator


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("function", [take_one, take_three, take_all, take_pairs])
def test_the_iterator_is_moved_on(kind, function):
    endless = kind.startswith("count") and function in (take_all, take_pairs)
    raises = kind == "through" and function is take_three
    if endless or raises:
        pytest.skip("it does not end, or breaks where it raises")

    compiled = compile_frames(function, run_graph, CaptureOptions(fullgraph=True))
    plain, other = MAKERS[kind](), MAKERS[kind]()
    for size in (2, 2, 3, 3):
        if kind == "tensors":
            size = 2
        assert same(compiled(other, torch.ones(size)), function(plain, torch.ones(size)))
        assert same(list(itertools.islice(other, 1)), list(itertools.islice(plain, 1)))
        if operator.length_hint(plain) < 4:
            plain, other = MAKERS[kind](), MAKERS[kind]()


def test_one_compilation_for_all_places():
    data = [torch.full((2,), float(i)) for i in range(9)]
    iterator, numbers, reports = iter(data), itertools.count(), []

    def step(x):
        return x + next(iterator), next(numbers)

    compiled = compile_frames(step, run_graph, CaptureOptions(fullgraph=True), None, reports.append)
    for i in range(8):
        total, number = compiled(torch.ones(2))
        assert number == i and total.tolist() == [1.0 + i] * 2
        assert operator.length_hint(iterator) == 8 - i
    assert len(reports) == 2  # then the places are numbers that vary


def test_the_end_of_a_list():
    iterator = iter([torch.ones(2), torch.zeros(2)])

    def step(x):
        found = next(iterator, None)
        return x if found is None else x + found

    compiled = compile_frames(step, run_graph, CaptureOptions(fullgraph=True))
    results = [compiled(torch.ones(2)).tolist() for _ in range(4)]
    assert results == [[2.0, 2.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]


def test_a_list_that_is_changed_meanwhile():
    def program(x):
        data = [1, 2]
        iterator = iter(data)

        def step(x):
            first = next(iterator)
            data.append(x)
            return x * first, next(iterator, None), len(data)

        return step, data, iterator

    plain, data, iterator = program(None)
    step, other_data, other_iterator = program(None)
    compiled = compile_frames(step, run_graph)
    for _ in range(2):
        x = torch.ones(2)
        assert str(compiled(x)) == str(plain(x))
        assert str(other_data) == str(data)
        assert operator.length_hint(other_iterator) == operator.length_hint(iterator)


def test_a_list_that_is_changed_between_calls():
    data = [1, 2]
    iterator = iter(data)

    def step(x):
        return x * next(iterator, 0)

    compiled = compile_frames(step, run_graph)
    results = []
    for _ in range(4):
        results.append(compiled(torch.ones(1)).item())
        data.insert(0, 7)
    assert results == [1.0, 1.0, 1.0, 1.0]


def test_the_elements_are_the_objects_themselves():
    data = [torch.zeros(2), torch.ones(2)]

    def step(iterator):
        found = next(iterator)
        found.add_(1)
        return found, next(iterator)

    first, second = compile_frames(step, run_graph, CaptureOptions(fullgraph=True))(iter(data))
    assert first is data[0] and second is data[1] and first.tolist() == [1.0, 1.0]


def test_counting_by_other_things_is_left_to_python():
    class Three(int):
        pass

    for numbers in (itertools.count(0.5), itertools.count(Three(3)), itertools.count(2**70)):
        first = next(numbers)

        def step(x, numbers=numbers):
            return x * 2, next(numbers)

        assert compile_frames(step, run_graph)(torch.ones(1))[1] == first + 1


def test_two_names_of_one_iterator():
    def step(one, other, x):
        return x + next(one) * 10 + next(other)

    iterator = iter([1, 2, 3, 4])
    compiled = compile_frames(step, run_graph, CaptureOptions(fullgraph=True))
    assert compiled(iterator, iterator, torch.zeros(1)).item() == 12
    assert next(iterator) == 3
    assert compiled(iter([5]), iter([6]), torch.zeros(1)).item() == 56


def test_a_break_behind_what_was_taken():
    @disable
    def outside(value):
        return value

    def step(iterator, x):
        first = outside(next(iterator))
        return x * first + next(iterator)

    iterator = iter([2, 3, 4])
    assert compile_frames(step, run_graph)(iterator, torch.ones(1)).item() == 5
    assert next(iterator) == 4


def test_started_where_a_size_says():
    def program(x):
        numbers = itertools.count(x.shape[0])
        return x + next(numbers), next(numbers)

    assert not capture(program)(torch.ones(3)).breaks
    check(program, [(torch.ones(n),) for n in (2, 3, 5)], fullgraph=True)
