"""Objects with finalizers in containers from outside: they die when the program lets go of them."""

import gc
import itertools
import time
import weakref
from collections import OrderedDict, deque

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import compile_frames

LOG = []


class Noted:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        LOG.append(f"{self.name} died")


class Holder:
    pass


def replace_in_dict(x, held):
    held["a"] = None
    LOG.append("then")
    return x + len(LOG)


def take_out_of_dict(x, held):
    del held["a"]
    LOG.append("then")
    return x + len(LOG)


def clear_dict(x, held):
    held.clear()
    LOG.append("then")
    return x + len(LOG)


def pop_of_dict(x, held):
    held.pop("a")
    LOG.append("then")
    return x + len(LOG)


@pytest.mark.parametrize("program", [replace_in_dict, take_out_of_dict, clear_dict, pop_of_dict])
def test_values_of_dicts(program):
    assert_same(program, lambda: {"a": Noted("a"), "b": 1})


def replace_in_list(x, held):
    held[0] = None
    LOG.append("then")
    return x + len(LOG)


def delete_from_list(x, held):
    del held[:]
    LOG.append("then")
    return x + len(LOG)


@pytest.mark.parametrize("program", [replace_in_list, delete_from_list])
def test_elements_of_lists(program):
    assert_same(program, lambda: [Noted("a"), 1])


def replace_attribute(x, held):
    held.value = None
    LOG.append("then")
    return x + len(LOG)


def delete_attribute(x, held):
    del held.value
    LOG.append("then")
    return x + len(LOG)


@pytest.mark.parametrize("program", [replace_attribute, delete_attribute])
def test_attributes(program):
    def make():
        made = Holder()
        made.value = Noted("a")
        return made

    assert_same(program, make)


def assert_same(program, make):
    x = torch.ones(2)
    LOG.clear()
    expected, log = program(x, make()), list(LOG)
    compiled = compile_frames(program, run_graph)
    for _ in range(3):
        LOG.clear()
        assert torch.equal(compiled(x, make()), expected)
        assert log == LOG


def test_an_iterator_over_a_deque_whose_elements_are_replaced():
    def program(x, items):
        iterator = iter(items)
        first = next(iterator)
        time.sleep(0)
        for position, item in enumerate(items):
            items[position] = item * 2
        items.reverse()
        return x + first, list(iterator)

    check(
        program,
        [(torch.ones(2), deque([1, 2, 3])), (torch.ones(2), deque([5, 6]))],
        fullgraph=False,
    )


def test_an_ordered_dict_with_attributes():
    def program(x, mapping):
        name = getattr(mapping, "name", "none")
        return x + len(mapping), name

    named = OrderedDict(a=1)
    named.name = "named"
    x = torch.ones(2)
    compiled = compile_frames(program, run_graph)
    for mapping in (OrderedDict(a=1), named, OrderedDict(a=1), named):
        found, expected = compiled(x, mapping), program(x, mapping)
        assert torch.equal(found[0], expected[0])
        assert found[1] == expected[1]


def test_an_entry_written_behind_an_ordered_dicts_back():
    def program(x, mapping):
        dict.__setitem__(mapping, "new", 1)
        return x + dict.__len__(mapping), list(mapping)

    check(program, [(torch.ones(2), OrderedDict(a=1, b=2))], fullgraph=False)


def test_an_iterator_that_asks_pairwise_for_the_next_pair():
    class Reentrant:
        def __init__(self, x):
            self.count = 0
            self.x = x

        def __iter__(self):
            return self

        def __next__(self):
            self.count += 1
            if self.count == 2:
                return next(self.pairs)
            return self.x + self.count

    def program(x):
        source = Reentrant(x)
        source.pairs = itertools.pairwise(source)
        return [next(source.pairs) for _ in range(3)]

    check(program, [(torch.ones(2),)], fullgraph=False)


def cleaning(log):
    try:
        yield 1
        yield 2
    finally:
        log.append("cleaned")


def left_with_others(log):
    for _ in zip(cleaning(log), range(3), strict=False):
        break
    log.append("after")


def left_through_map(log):
    for _ in map(str, enumerate(cleaning(log))):
        break
    log.append("after")


def left_by_an_exception(log):
    try:
        for _ in cleaning(log):
            raise ValueError
    except ValueError:
        log.append("caught")


@pytest.mark.parametrize(
    "function", [left_with_others, left_through_map, left_by_an_exception], ids=lambda f: f.__name__
)
def test_a_generator_cleans_up_when_the_loop_over_it_is_left(function):
    wanted, got = [], []
    function(wanted)
    compile_frames(function, run_graph)(got)
    gc.collect()  # what the first capture knew of the frame's arguments
    assert got == wanted


def listed(found, held):
    return [item.name for item in held if item is not found]


def keyed(found, held):
    return {item.name: item for item in held if item is not found}.keys()


def in_turn(found, held):
    names = set()
    for item in held:
        names |= {other.name for other in item.others if other is not found}
    return names


def restored(item, held):
    names = {item.name for item in held if item.name != "a"}
    return sorted(names), item.name


@pytest.mark.parametrize("program", [listed, keyed, in_turn, restored])
def test_variables_of_comprehensions_let_go_of_objects_with_finalizers(program):
    """Behind the break there, the variable holds what it held before: nothing, or the outer one."""

    def generated(items):
        yield from items

    def function(x, items):
        time.sleep(0)  # a break
        names = list(program(items[0], generated(items)))
        return x + len(names), names

    items = [Noted("a"), Noted("b")]
    for item in items:
        item.others = items
    compiled = compile_frames(function, run_graph)
    for size in (2, 3, 2):
        x = torch.ones(size)
        found, names = compiled(x, items)
        wanted, wanted_names = function(x, items)
        assert torch.equal(found, wanted)
        assert names == wanted_names
    LOG.clear()


def given_to_a_reference(x):
    reference = weakref.ref(Noted("a"))
    return x + len(LOG), reference() is None


def in_a_list(x):
    held = [Noted("a")]
    held.clear()
    return x + len(LOG)


def in_a_dict(x):
    held = {"a": Noted("a"), "b": Noted("b")}
    held["a"] = 1
    return x + len(LOG), held.pop("b").name, len(LOG)


def _name(noted):
    return noted.name


def given_to_a_function(x):
    name = _name(Noted("a"))
    return x + len(LOG), name


def bound(x):
    noted = Noted("a")
    noted = None
    return x + len(LOG), noted


@pytest.mark.parametrize(
    "program", [given_to_a_reference, in_a_list, in_a_dict, given_to_a_function, bound]
)
def test_objects_that_the_program_makes(program):
    compiled = compile_frames(program, run_graph)
    for size in (2, 3, 2):
        x, seen = torch.ones(size), []
        for function in (compiled, program):
            LOG.clear()
            seen.append((str(function(x)), [*LOG]))
        assert seen[0] == seen[1]


def method_of(plain):
    reference = weakref.WeakMethod(plain.name)
    return reference() is None


def in_a_set(plain):
    return len(weakref.WeakSet([plain]))


def key_of(plain):
    return len(weakref.WeakKeyDictionary({plain: 1}))


class Plain:
    def name(self):
        return "a"


@pytest.mark.parametrize("observe", [method_of, in_a_set, key_of])
def test_locals_that_nothing_reads_live_as_long_as_the_frame(observe):
    def program(x):
        plain = Plain()
        found = observe(plain)
        return x + 1, found

    def read_no_more(x):
        plain = Plain()
        reference = weakref.WeakMethod(plain.name)
        known = weakref.WeakSet([plain])
        return x + 1, reference() is None, len(known)

    for function in (program, read_no_more):
        compiled = compile_frames(function, run_graph)
        for size in (2, 3):
            x = torch.ones(size)
            assert str(compiled(x)) == str(function(x))
