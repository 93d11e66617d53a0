"""Entries that watch objects: they leave their context when one dies, wherever that happens."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest
from differential import run_graph
from frame_stepping import Constant
from test_emission import guard, returning
from test_hook import with_objects
from test_several_entries import ASKED, REASON, identity
from weft_bytecode_capture import _frame_hook as hook
from weft_bytecode_capture.frame.convert_frame import make_context
from weft_bytecode_capture.symbolic.frame_result import CaptureOptions
from weft_guards import ArgumentSource, EqualsConstant, Guard, GuardSet, IsObject

VALUE = ArgumentSource("value")


class Value:
    def __init__(self, action=None):
        self.action = action

    @property
    def asked(self):
        if self.action is not None:
            self.action()
        return True


class PythonCheck:
    def __init__(self, reference):
        self.reference = reference

    def check(self, arguments, globals_, builtins, closure):
        return arguments[0] is self.reference() and arguments[0].asked


class Held:
    """What an entry holds."""


def watching_context(native=True):
    """A context whose entries are for the very value each.

    With weak references to what the entries hold, and a list in which the next answer may be put.
    """
    held, answers = [], []

    def callback(code, arguments, globals_, builtins, closure):
        if answers and answers[-1] == hook.FROZEN:
            return answers.pop()
        value = arguments["value"]
        guards = GuardSet(
            [
                Guard(VALUE, IsObject(value, weak=True), REASON),
                Guard(ASKED, EqualsConstant(True), REASON),
            ]
        )
        reference = weakref.ref(value)
        check = guards.compile(("value",), ()) if native else PythonCheck(reference)
        thing = Held()
        held.append(weakref.ref(thing))
        entry = hook.Entry(check, with_objects(code), (thing,), len(code.co_varnames))
        entry.watch(*guards.references())
        return entry

    return hook.Context(callback), held, answers


def alive(held):
    return [number for number, reference in enumerate(held) if reference() is not None]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dead", [0, 1, 2])
def test_an_entry_goes_with_its_object(native, dead):
    context, held, _ = watching_context(native)
    compiled = context.wrap(identity)
    values = [Value(), Value(), Value()]
    for value in values:
        assert compiled(value) is value
    values[dead] = value = None
    others = [number for number in range(3) if number != dead]
    assert alive(held) == others  # at once, without a collection
    assert len(context.entries(identity.__code__)) == context.counts()["entries"] == 2
    for number in others:
        assert compiled(values[number]) is values[number]
    assert context.counts()["conversions"] == 3
    values[dead] = Value()
    assert compiled(values[dead]) is values[dead]
    assert alive(held) == [*others, 3]
    hits = context.counts()["hits"]
    for value in values:
        assert compiled(value) is value
    assert context.counts()["hits"] == hits + 3


@pytest.mark.kept
def test_an_object_in_a_cycle_dies_in_a_collection():
    context, held, _ = watching_context()
    compiled = context.wrap(identity)
    value = Value()
    value.itself = value
    compiled(value)
    del value
    gc.collect()
    assert alive(held) == [] and context.entries(identity.__code__) == ()


def test_an_entry_dies_with_its_context_and_without_a_collection():
    context, held, _ = watching_context()
    value = Value()
    context.wrap(identity)(value)
    (entry,) = context.entries(identity.__code__)
    reference = weakref.ref(entry)
    del entry
    assert weakref.getweakrefcount(value) == 2
    context.clear()
    assert alive(held) == [] and reference() is None
    context.wrap(identity)(value)
    del context
    assert alive(held) == []
    gc.collect()  # guards are in cycles
    assert weakref.getweakrefcount(value) == 0


@pytest.mark.parametrize("others", [0, 2])
def test_an_entry_retires_while_its_guard_is_checked(others):
    context, held, _ = watching_context()
    compiled = context.wrap(identity)
    kept = [Value() for _ in range(others)]
    value = Value()
    for each in (*kept, value):
        compiled(each)
    value.action = lambda: [entry.retire() for entry in context.entries(identity.__code__)]
    assert compiled(value) is value
    assert len(context.entries(identity.__code__)) == 1 and alive(held) == [others + 1]
    value.action = None
    assert compiled(value) is value
    assert context.counts()["conversions"] == others + 2


def test_a_retired_answer_does_not_run():
    context = None

    def callback(code, arguments, globals_, builtins, closure):
        entry = hook.Entry(None, with_objects(code), ("never",), len(code.co_varnames))
        entry.watch(weakref.ref(Value()))
        assert entry.retired and entry.objects == ()
        return entry

    context = hook.Context(callback)
    compiled = context.wrap(identity)
    assert [compiled(1), compiled(2)] == [1, 2]
    assert context.entries(identity.__code__) == () and context.counts()["conversions"] == 2


def test_a_frozen_code_has_room_again():
    context, held, answers = watching_context()
    compiled = context.wrap(identity)
    values = [Value(), Value()]
    for value in values:
        compiled(value)
    answers.append(hook.FROZEN)
    other = Value()
    assert compiled(other) is other and compiled(other) is other
    assert context.status(identity.__code__) == hook.FROZEN and len(held) == 2
    del values[0]
    assert compiled(other) is other
    assert context.status(identity.__code__) == hook.ENTRIES and len(held) == 3


def test_only_weak_references_are_watched():
    entry = hook.Entry(None, identity.__code__, ("kept",))
    with pytest.raises(TypeError, match="takes weak references"):
        entry.watch(Value())
    assert not entry.retired and entry.objects == ("kept",)


def test_watching_leaks_nothing():
    value = Value()

    def once():
        entry = hook.Entry(None, identity.__code__, ())
        entry.watch(weakref.ref(value), weakref.ref(entry))
        entry.retire()

    once()
    before = sys.getrefcount(value), sys.getrefcount(identity.__code__), sys.getrefcount(None)
    for _ in range(100):
        once()
    after = sys.getrefcount(value), sys.getrefcount(identity.__code__), sys.getrefcount(None)
    assert after[:2] == before[:2] and abs(after[2] - before[2]) < 50


def test_objects_die_in_other_threads_meanwhile():
    context, held, _ = watching_context()
    compiled = context.wrap(identity)
    failures = []
    shared = [Value() for _ in range(4)]

    def replace(start):
        for step in range(200):
            number = (start + step) % len(shared)
            shared[number] = Value()

    def call(start):
        for step in range(200):
            value = shared[(start + step) % len(shared)]
            if compiled(value) is not value:
                failures.append(step)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=f, args=(n,)) for n in range(3) for f in (replace, call)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures
    shared.clear()
    gc.collect()
    assert alive(held) == [] and context.entries(identity.__code__) == ()


def test_dead_versions_count_for_the_limit_in_the_end():
    """Else a function that is given another object in each call would be compiled in each call."""

    def capture(frame, options):
        value = frame.arguments["value"]
        return returning(Constant(1), guards=[guard(VALUE, IsObject(value, weak=True))])

    options = CaptureOptions(recompile_limit=2)
    context = make_context(run_graph, options, capture=capture)
    compiled = context.wrap(identity)
    assert [compiled(Value()) for _ in range(64)] == [1] * 64
    value = Value()
    with pytest.warns(UserWarning, match="compiled 64 times"):
        assert compiled(value) is value
    assert compiled(value) is value
    assert context.counts() == {"codes": 1, "entries": 0, "conversions": 65, "hits": 0}
