"""Several guard sets of one frame, merged, answer as each of them does by itself."""

import builtins
import threading
import weakref
from dataclasses import dataclass

import pytest
import sympy
import torch
from generated_guards import REASON, VALUES, guards_on, places
from hypothesis import given, settings
from hypothesis import strategies as st
from weft_guards import (
    ArgumentSource,
    AttributeSource,
    DictKeysAre,
    EqualsConstant,
    Guard,
    GuardSet,
    InstanceDictSource,
    IsObject,
    ItemSource,
    NotAliased,
    Predicate,
    Quantity,
    SameObject,
    ShapeRelation,
    Source,
    StoragesApart,
    SymbolSource,
    TensorMatches,
    TensorMetadata,
    native_available,
    select,
)
from weft_guards.selection import PythonGuardSelection

X, Y = ArgumentSource("x"), ArgumentSource("y")
needs_native = pytest.mark.skipif(not native_available(), reason="the extension isn't built")


def compiled(*guard_lists, arguments=("x",)):
    return [GuardSet(guards).compile(arguments, ()) for guards in guard_lists]


def find(selection, *arguments):
    return selection.find(arguments, {}, vars(builtins), None)


class Counting:
    """Each read of ``turn`` gives the next number and may do something more."""

    def __init__(self, action=None):
        self.reads = 0
        self.mode = 0
        self.action = action

    @property
    def turn(self):
        self.reads += 1
        if self.action is not None:
            self.action(self)
        return self.reads


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_merged_lookup_agrees_with_each_set_by_itself(data):
    x, y = data.draw(VALUES), data.draw(VALUES)
    roots = [*places(X, x), *places(Y, y)]
    candidates = [guard for source, value, _ in roots for guard in guards_on(source, value)]
    sources = [source for source, _, _ in roots]
    pairs = st.tuples(st.sampled_from(sources), st.sampled_from(sources)).filter(
        lambda pair: pair[0] != pair[1]
    )
    relations = st.builds(
        lambda kind, pair: Guard(pair[0], kind(pair[1]), REASON),
        st.sampled_from([SameObject, NotAliased]),
        pairs,
    )
    kinds = st.one_of(st.sampled_from(candidates), relations)
    lists = data.draw(st.lists(st.lists(kinds, max_size=8), min_size=1, max_size=5))
    checks = compiled(*lists, arguments=("x", "y"))
    merged, oracle = select(checks), PythonGuardSelection(tuple(checks))
    calls = [(x, y), (y, x), (data.draw(VALUES), y)]
    for arguments in data.draw(st.lists(st.sampled_from(calls), min_size=1, max_size=8)):
        assert find(merged, *arguments) == find(oracle, *arguments)
        assert merged.order == oracle.order
    mutable = [where for _, _, where in roots if where is not None]
    if mutable:
        container, key = data.draw(st.sampled_from(mutable))
        if type(container) is dict or key < len(container):
            container[key] = data.draw(VALUES)
        assert find(merged, x, y) == find(oracle, x, y)


def test_the_set_found_last_is_tried_first():
    both = [Guard(X, EqualsConstant(1), REASON)]
    selection = select(compiled(both, [Guard(X, EqualsConstant(2), REASON)], both, []))
    assert selection.order == (0, 1, 2, 3)
    assert find(selection, 2) == 1 and selection.order == (1, 0, 2, 3)
    assert find(selection, 3) == 3 and selection.order == (3, 1, 0, 2)
    assert find(selection, 1) == 3  # without a condition, and first now
    other = select(compiled(both, [Guard(X, EqualsConstant(2), REASON)]))
    assert find(other, 3) is None and other.order == (0, 1)


@needs_native
def test_what_sets_share_is_checked_once():
    """A predicate of C that several sets need runs once: here a dict's key that counts comparisons."""

    class Key(str):
        compared = 0

        def __eq__(self, other):
            Key.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    values = {Key("k"): 5}
    shared = ItemSource(X, "k")
    sets = compiled(*([Guard(shared, EqualsConstant(n), REASON)] for n in range(6)))
    selection = select(sets)
    assert find(selection, values) == 5
    assert Key.compared == 1


def test_what_ran_code_of_the_user_is_forgotten():
    """A property may have changed what another set's guards have passed on."""

    def change(value):
        value.mode = 1

    mode, turn = InstanceDictSource(X, "mode"), AttributeSource(X, "turn")
    lists = [
        [Guard(mode, EqualsConstant(0), REASON), Guard(turn, EqualsConstant(-1), REASON)],
        [Guard(mode, EqualsConstant(0), REASON)],
        [Guard(mode, EqualsConstant(1), REASON), Guard(turn, EqualsConstant(2), REASON)],
    ]
    checks = compiled(*lists)
    for selection in (select(checks), PythonGuardSelection(tuple(checks))):
        value = Counting(change)
        assert find(selection, value) == 2
        assert value.reads == 2


def test_a_guard_that_raises_fails_for_all_sets_that_need_it():
    def refuse(value):
        raise RuntimeError("not now")

    turn = AttributeSource(X, "turn")
    checks = compiled(
        [Guard(turn, EqualsConstant(1), REASON)],
        [Guard(ItemSource(X, "missing"), EqualsConstant(1), REASON)],
        [Guard(InstanceDictSource(X, "mode"), EqualsConstant(0), REASON)],
    )
    for selection in (select(checks), PythonGuardSelection(tuple(checks))):
        assert find(selection, Counting(refuse)) == 2
        assert find(selection, 3) is None


def test_sources_and_predicates_in_python():
    class Doubled(Source):
        def name(self):
            return "2x"

        def evaluate(self, scope):
            return scope.arguments["x"] * 2

    class IsEven(Predicate):
        def holds(self, value, scope):
            return value % 2 == 0

        def identity(self):
            return ()

    doubled = Doubled()
    checks = compiled(
        [Guard(doubled, EqualsConstant(4), REASON)],
        [Guard(doubled, EqualsConstant(6), REASON), Guard(X, IsEven(), REASON)],
        [Guard(X, IsEven(), REASON)],
    )
    selection = select(checks)
    assert [find(selection, x) for x in (2, 3, 8)] == [0, None, 2]


def test_relations_on_equal_sources_in_python():
    """Equal sources are one place for all sets; a relation reads it where its own set has loaded it."""

    @dataclass(frozen=True)
    class Copied(Source):
        base: Source

        def name(self):
            return f"copy of {self.base.name()}"

        def evaluate(self, scope):
            return dict(self.base.evaluate(scope))

    number = sympy.Symbol("number", integer=True)

    def guards(key):
        copied = Copied(X)
        value = ItemSource(copied, "a")
        symbol_sources = ((number, SymbolSource(value, Quantity.VALUE)),)
        return [
            Guard(copied, DictKeysAre(("a", key)), REASON),
            Guard(value, ShapeRelation(number < 5, symbol_sources), REASON),
        ]

    selection = select(compiled(guards("b"), guards("c"), guards("d")))
    found = [find(selection, {"a": a, key: 0}) for key in "bdc" for a in (7, 3, 7)]
    assert found == [None, 0, None, None, 2, None, None, 1, None]


def test_relations_of_one_set_do_not_rely_on_another_sets_tensors():
    """A relation is native only where the very set has found its tensors to be plain."""
    rows = sympy.Symbol("rows", integer=True)
    relation = Guard(
        X, ShapeRelation(rows > 2, ((rows, SymbolSource(X, Quantity.SIZE, 0)),)), REASON
    )
    x = torch.ones(3, 2)
    matrix = Guard(X, TensorMatches(TensorMetadata.of(x)), REASON)
    apart = Guard(X, StoragesApart((X,), (Y,)), REASON)
    selection = select(compiled([matrix, relation], [relation], [apart], arguments=("x", "y")))
    assert find(selection, x, x) == 0
    assert find(selection, torch.ones(3), 1) == 1
    assert find(selection, torch.ones(1), torch.ones(1)) == 2
    assert find(selection, "text", 1) is None  # would be read as a tensor's memory


def test_objects_that_have_died_hold_for_no_set():
    class Thing:
        pass

    things = [Thing(), Thing()]
    checks = compiled(*([Guard(X, IsObject(thing, weak=True), REASON)] for thing in things))
    del things[0]
    selection = select(checks)
    assert find(selection, things[0]) == 1
    survivor = weakref.ref(things.pop())
    assert survivor() is None
    assert find(selection, Thing()) is None


def test_more_sets_and_steps_than_fit_on_the_stack():
    items = list(range(300))
    common = [Guard(ItemSource(X, i), EqualsConstant(i), REASON) for i in items[:-1]]
    last = ItemSource(X, 299)
    lists = [[*common, Guard(last, EqualsConstant(n), REASON)] for n in range(70)]
    selection = select(compiled(*lists))
    for n in (69, 0, 33):
        assert find(selection, [*items[:-1], n]) == n
    assert find(selection, [*items[:-1], 70]) is None
    assert find(selection, [7, *items[1:-1], 33]) is None
    assert selection.order[:3] == (33, 0, 69)


def test_threads_look_up_at_once():
    """Properties let another thread in between the steps of a lookup."""
    turn = InstanceDictSource(AttributeSource(X, "self"), "mode")

    class Slow:
        def __init__(self, mode):
            self.mode = mode

        @property
        def self(self):
            threading.Event().wait(0.0002)
            return self

    selection = select(
        compiled(*([Guard(turn, EqualsConstant(number), REASON)] for number in range(4)))
    )
    found = {number: set() for number in range(4)}

    def look_up(number):
        for _ in range(30):
            found[number].add(find(selection, Slow(number)))

    threads = [threading.Thread(target=look_up, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: {number} for number in range(4)}
    assert sorted(selection.order) == [0, 1, 2, 3]


def test_checks_of_other_frames_are_refused():
    guards = GuardSet([Guard(X, EqualsConstant(1), REASON)])
    checks = [guards.compile(("x",), ()), guards.compile(("x", "y"), ())]
    if native_available():
        with pytest.raises(ValueError, match="not of one frame"):
            select(checks)
    with pytest.raises(ValueError, match="expects 1 arguments"):
        find(select(checks[:1]), 1, 2)
    assert find(select([]), 1) is None
