"""Several entries of one code object, whose native guards are merged into one lookup."""

from __future__ import annotations

import gc
import threading
import weakref

from test_hook import with_objects
from weft_bytecode_capture import _frame_hook as hook
from weft_guards import (
    ArgumentSource,
    AttributeSource,
    EqualsConstant,
    Guard,
    GuardSet,
    InstanceDictSource,
    Reason,
)

REASON = Reason("test.py", 1, "value.mode")


class Value:
    def __init__(self, mode, action=None):
        self.mode = mode
        self.action = action

    @property
    def asked(self):
        if self.action is not None:
            self.action()
        return True


def identity(value):
    return value


MODE = InstanceDictSource(ArgumentSource("value"), "mode")
ASKED = AttributeSource(ArgumentSource("value"), "asked")


def counting_context():
    """A context that has an entry for each mode, and the modes in the order of conversion."""
    modes = []

    def callback(code, arguments, globals_, builtins, closure):
        mode = arguments["value"].mode
        modes.append(mode)
        guards = [
            Guard(ASKED, EqualsConstant(True), REASON),
            Guard(MODE, EqualsConstant(mode), REASON),
        ]
        check = GuardSet(guards).compile(("value",), ())
        return hook.Entry(check, with_objects(code), (mode,), len(code.co_varnames))

    return hook.Context(callback), modes


def order(context):
    return [entry.objects[0] for entry in context.entries(identity.__code__)]


def test_the_entry_used_last_comes_first():
    context, modes = counting_context()
    compiled = context.wrap(identity)
    for mode in (0, 1, 2, 3, 1, 0, 0, 2):
        assert compiled(Value(mode)).mode == mode
    assert modes == [0, 1, 2, 3]
    assert order(context) == [2, 0, 1, 3]
    assert [entry.hits for entry in context.entries(identity.__code__)] == [2, 3, 2, 1]
    compiled(Value(4))
    assert order(context) == [4, 2, 0, 1, 3]


def test_guards_may_empty_the_context_during_a_lookup():
    context, modes = counting_context()
    compiled = context.wrap(identity)
    for mode in (0, 1, 2):
        compiled(Value(mode))
    assert compiled(Value(1, context.clear)).mode == 1
    assert order(context) == [] and modes == [0, 1, 2]
    value = Value(5, context.clear)
    assert compiled(value) is value
    assert order(context) == [5]
    assert compiled(value) is value and modes == [0, 1, 2, 5]


def test_guards_may_make_another_entry_during_a_lookup():
    context, modes = counting_context()
    compiled = context.wrap(identity)
    for mode in (0, 1):
        compiled(Value(mode))
    assert compiled(Value(0, lambda: compiled(Value(7)))).mode == 0
    assert modes == [0, 1, 7] and sorted(order(context)) == [0, 1, 7]


def test_threads_add_and_look_up_at_once():
    context, modes = counting_context()
    compiled = context.wrap(identity)

    def pause():
        threading.Event().wait(0.0001)

    def call(start):
        for step in range(24):
            mode = (start + step) % 12
            assert compiled(Value(mode, pause)).mode == mode

    threads = [threading.Thread(target=call, args=(3 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(order(context)) == set(modes) == set(range(12))
    conversions = len(modes)
    for mode in range(12):
        compiled(Value(mode))
    assert len(modes) == conversions


def test_merged_guards_are_collected_with_the_context():
    context, _ = counting_context()
    compiled = context.wrap(identity)
    for mode in (0, 1):
        compiled(Value(mode))
    entries = context.entries(identity.__code__)
    died = weakref.ref(entries[0].guard_check)
    assert died() is not None
    del context, compiled, entries
    gc.collect()
    assert died() is None
