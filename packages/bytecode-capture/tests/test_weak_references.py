"""Weak references from outside: what they refer to is read through them, and None once it is gone."""

import weakref

import torch
from differential import run_graph
from weft_bytecode_capture import CaptureOptions, compile_frames


class Thing:
    def __init__(self, factor):
        self.factor = factor


def _compiled(function):
    return compile_frames(function, run_graph, CaptureOptions(fullgraph=True))


def test_what_is_known_by_the_reference_alone():
    held = [Thing(2.0)]
    reference = weakref.ref(held[0])

    def f(x):
        thing = reference()
        return x if thing is None else x * thing.factor

    compiled, x = _compiled(f), torch.ones(2)
    assert torch.equal(compiled(x), f(x))
    held[0].factor = 5.0
    assert torch.equal(compiled(x), x * 5)
    held.clear()
    assert torch.equal(compiled(x), x)


def test_references_passed():
    """Another object, a change to it, and one that is gone."""
    one, two, gone = Thing(2.0), Thing(3.0), weakref.ref(Thing(4.0))

    def f(reference, x):
        thing = reference()
        if thing is None:
            return x, None
        thing.factor += 1
        return x * thing.factor, thing is one

    compiled, x = _compiled(f), torch.ones(2)
    for reference, factor, is_one in (
        (weakref.ref(one), 3.0, True),
        (weakref.ref(two), 4.0, False),
        (weakref.ref(one), 4.0, True),
        (gone, 1.0, None),
    ):
        found = compiled(reference, x)
        assert torch.equal(found[0], x * factor)
        assert found[1] is is_one
    assert (one.factor, two.factor) == (4.0, 4.0)


def test_one_object_by_two_paths():
    thing = Thing(2.0)
    reference = weakref.ref(thing)

    def f(x):
        reference().factor += 1
        y = x * thing.factor
        thing.factor += 1
        return y * reference().factor, reference() is thing

    compiled = _compiled(f)
    found, same = compiled(torch.ones(2))
    assert torch.equal(found, torch.full((2,), 12.0))
    assert same
    assert thing.factor == 4.0


def test_values_of_a_weak_dictionary():
    thing = Thing(2.0)
    things = weakref.WeakValueDictionary(a=thing)

    def f(x):
        return x * things["a"].factor, "b" in things, things.get("z")

    compiled, x = _compiled(f), torch.ones(2)
    for factor in (2.0, 6.0):
        thing.factor = factor
        found = compiled(x)
        assert torch.equal(found[0], x * factor)
        assert found[1:] == (False, None)


def test_what_is_referred_to_is_not_kept():
    thing = Thing(2.0)
    reference = weakref.ref(thing)
    compiled = _compiled(lambda x: x * reference().factor)
    compiled(torch.ones(2))
    del thing
    assert reference() is None
