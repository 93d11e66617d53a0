"""Capture runs none of the program's code to learn about its objects, and drops none of its effects."""

import collections
import gc
import traceback
import weakref

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import CaptureOptions, capture, compile_frames


class Asked:
    """Counts every look at an attribute."""

    count = 0

    def __getattribute__(self, name):
        Asked.count += 1
        return object.__getattribute__(self, name)


def test_objects_are_not_asked_for_their_class():
    def f(x, passed):
        return x + 1, passed

    Asked.count = 0
    compiled = compile_frames(f, run_graph, CaptureOptions(fullgraph=True))
    passed = Asked()
    assert compiled(torch.ones(2), passed)[1] is passed
    assert Asked.count == 0


class Key:
    """A key that counts how often it is hashed and compared."""

    log: list[str] = []

    def __init__(self, name):
        self.name = name

    def __hash__(self):
        Key.log.append(f"hash {self.name}")
        return hash(self.name)

    def __eq__(self, other):
        Key.log.append(f"eq {self.name}")
        return isinstance(other, Key) and self.name == other.name


def keyed(x, table, key):
    table.setdefault(key, x)
    return table[key] + len(table), key in table, {key: 1}.get("other")


def read_only(x, table, name):
    return x + table[name], name in table


def test_keys_are_hashed_and_compared_as_often_as_plainly():
    def calls():
        first = Key("a")
        return [
            (torch.ones(2), {first: torch.zeros(2)}, first),
            (torch.ones(2), {}, Key("b")),
        ]

    check(keyed, calls(), fullgraph=False, reset=Key.log.clear, state=lambda: list(Key.log))
    mixed = {Key("a"): 1, "b": torch.ones(2)}
    check(
        read_only, [(torch.ones(2), mixed, "b")],
        fullgraph=False, reset=Key.log.clear, state=lambda: list(Key.log),
    )  # fmt: skip


class Table(dict):
    pass


class Row(list):
    pass


def views_of_instances(x):
    table = Table(a=1)
    keys, row = table.keys(), Row([1])
    rows = iter(row)
    torch._dynamo.graph_break()
    table["b"] = 2
    row.append(5)
    return x + len(keys), list(keys), list(rows), type(keys.mapping), keys.mapping == table


def in_place(x):
    row, table = Row([x]), Table(a=x)
    same_row, same_table = row, table
    row += [x]
    row *= 2
    table |= {"b": x}
    return row is same_row, table is same_table, type(row), row[3] + table["b"]


def changed_dicts(x):
    table, seen = {0: x}, []
    try:
        for key in table:
            seen.append(key)
            del table[0]
            table[0] = x
    except RuntimeError as error:
        seen.append(str(error))
    return seen, x + 1


class Emptying:
    """Equal to nothing; a comparison empties the deque."""

    def __init__(self, target):
        self.target = target

    def __eq__(self, other):
        self.target.clear()
        return False


def changed_deques(x):
    found = []
    for ask in ("__contains__", "count", "remove"):
        target = collections.deque()
        target.extend((1, 2, 3))
        try:
            found.append(getattr(target, ask)(Emptying(target)))
        except (RuntimeError, IndexError) as error:
            found.append(repr(error))
        found.append(len(target))
    target = collections.deque([1, 2, 2])
    target.remove(2)
    return found, list(target), target.count(2), 7 in target, x + 1


class Hinted:
    """An iterable that notes in what order it is asked."""

    def __init__(self, log, hint):
        self.log, self.hint = log, hint

    def __iter__(self):
        self.log.append("iter")
        return iter((1, 2))

    def __length_hint__(self):
        self.log.append("hint")
        if self.hint is None:
            raise TypeError
        return self.hint


def hints(x, hint):
    log: list[str] = []
    made = []
    takes = (list, tuple, sorted, set, max, lambda h: [*h], lambda h: (*h,), lambda h: max(*h))
    for take in takes:
        try:
            made.append(take(Hinted(log, hint)))
        except (TypeError, ValueError) as error:
            made.append(repr(error))
    return log, made, x + 1


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (views_of_instances, [(torch.ones(2),)]),
        (in_place, [(torch.ones(2),)]),
        (changed_dicts, [(torch.ones(2),)]),
        (changed_deques, [(torch.ones(2),)]),
        (hints, [(torch.ones(2), hint) for hint in (2, 0, None, -1, "many", NotImplemented)]),
    ],
)
def test_as_plainly(function, calls):
    check(function, calls, fullgraph=False)


class Finalized:
    alive = 0

    def __init__(self):
        Finalized.alive += 1

    def __del__(self):
        Finalized.alive -= 1


def test_finalizers_run_where_the_last_reference_goes():
    def f(x):
        held = [Finalized(), Finalized()]
        first = Finalized.alive
        del held
        return x + 1, first, Finalized.alive

    _, first, last = compile_frames(f, run_graph)(torch.ones(2))
    assert (first, last) == (2, 0)


def test_functions_passed_in_are_not_kept_alive():
    def apply(x, function):
        return function(x)

    compiled = compile_frames(apply, run_graph, CaptureOptions(fullgraph=True))
    passed = lambda x: x + 1  # noqa: E731 - it has to die
    compiled(torch.ones(2), passed)
    reference = weakref.ref(passed)
    del passed
    gc.collect()
    assert reference() is None
    torch.testing.assert_close(compiled(torch.ones(2), lambda x: x + 2), torch.full((2,), 3.0))


def test_constants_that_are_not_read_again_show_in_tracebacks():
    def f(x):
        shown = 12  # noqa: F841 - for the traceback
        return x + 1 // (len(x) - 1)

    try:
        compile_frames(f, run_graph)(torch.ones(1))
    except ZeroDivisionError as error:
        told = traceback.TracebackException.from_exception(error, capture_locals=True)
    assert told.stack[-1].locals["shown"] == "12"


def test_long_computations_without_tensors_are_left_alone():
    def count(limit):
        total = 0
        for number in range(limit):
            total += number % 3
        return total

    result = capture(count, options=CaptureOptions(python_limit=2000))(10_000)
    assert result.result == count(10_000)
    assert [report.skip_reason for report in result.reports] == [
        "2000 instructions without a tensor"
    ]

    def with_tensor(x):
        for number in range(500):
            total = number * 2
        return x + total

    result = capture(with_tensor, options=CaptureOptions(python_limit=2000))(torch.ones(2))
    assert len(result.graphs) == 1


def test_methods_bound_twice_are_equal():
    class Base:
        pass

    def f(x, passed):
        known = Base.__init_subclass__
        return x + 1, known == Base.__init_subclass__, passed == known, passed != known

    check(f, [(torch.ones(2), Base.__init_subclass__)])
