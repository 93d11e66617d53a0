"""What a sort asks of its elements and of the list, and values of classes in C, against plain Python."""

import types

import pytest
import torch
from differential import check

LOG = []
X = torch.arange(3.0)


class Logged:
    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        LOG.append((self.value, other.value))
        if self.value == 7 or other.value == 7:
            raise ValueError("seven")
        return self.value < other.value


def sorted_objects(x, values, reverse):
    items = [Logged(value) for value in values]
    LOG.clear()
    try:
        items.sort(reverse=reverse)
    except ValueError as error:
        return x - 1, [item.value for item in items], str(error), list(LOG)
    ordered = sorted(items, key=lambda item: -item.value)
    return x + items[0].value, [item.value for item in items], [o.value for o in ordered], list(LOG)


def test_comparisons_of_a_sort():
    values = [(3, 1, 2), (1, 1, 2, 2, 1), tuple(range(9, -1, -1)), (2, 5, 7, 1, 4), ()]
    check(
        sorted_objects,
        [(X, v, reverse) for v in values[:-1] for reverse in (False, True)],
        fullgraph=False,
        reset=LOG.clear,
    )


def seen_while_sorted(x, values):
    items = list(values)
    lengths = []

    def key(value):
        lengths.append(len(items))
        return -value

    items.sort(key=key)
    return x + len(lengths), items, lengths


def changed_while_sorted(x, values):
    items = list(values)

    def key(value):
        items.append(value)
        items.pop()
        return -value

    try:
        items.sort(key=key)
    except ValueError as error:
        return x + 1, items, str(error)
    return x, items


def fails_in_a_key(x, values):
    items = list(values)
    try:
        items.sort(key=lambda value: 1 / value)
    except ZeroDivisionError:
        return x + 1, items
    return x, items


@pytest.mark.parametrize("program", [seen_while_sorted, changed_while_sorted, fails_in_a_key])
def test_lists_while_they_are_sorted(program):
    check(program, [(X, [3, 1, 2]), (X, [5, 0, 4])])


def lists_from_outside(x, items):
    items.sort(key=lambda value: value % 3)
    return x + items[0]


def test_a_list_from_outside():
    check(lists_from_outside, [(X, [3, 1, 2]), (X, [5, 0, 4, 4])])


def methods_in_c(x):
    made = object()
    found = [made.__init__, (42).__lt__, [].append, made.__str__]
    wrappers = [isinstance(m, types.MethodWrapperType) for m in found]
    return x + 1, wrappers, [type(method).__name__ for method in found]


def outliving_method(x):
    return x + 1, type(object().__init__), X.__class__.__name__


def cells(x):
    def make(value):
        return (lambda: value).__closure__[0]

    return x + 1, make(1) == make(1), make(1) == make(2)


def copy_of_a_proxy(x):
    original = {"a": 1}
    proxy = types.MappingProxyType(original)
    copied = proxy.copy()
    original["a"] = 2
    return x + proxy["a"], type(copied), copied


@pytest.mark.parametrize("program", [methods_in_c, outliving_method, cells, copy_of_a_proxy])
def test_values_of_classes_in_c(program):
    check(program, [(X,)], fullgraph=False)


class Shown:
    @property
    def __class__(self):
        return list


class BadMeta(type):
    @property
    def __module__(cls):
        raise ZeroDivisionError


class Bad(metaclass=BadMeta):
    number = 3


SHOWN = {"shown": Shown(), "list": [], "number": 1}


def test_a_class_that_an_instance_shows():
    def program(x, name):
        value = SHOWN[name]
        kinds = (list, (int, list), dict)
        return x + 1, [isinstance(value, kind) for kind in kinds]

    check(program, [(X, name) for name in SHOWN])


def test_a_metaclass_with_a_module_of_its_own():
    def program(x):
        return x + Bad.number + Bad().number

    check(program, [(X,)], fullgraph=False)
