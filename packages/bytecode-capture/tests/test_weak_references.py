"""Weak references: what they refer to is read through them, and None once it is gone."""

import gc
import time
import weakref
from typing import Any

import pytest
import torch
from differential import attempt, check, run_graph
from weft_bytecode_capture import CaptureOptions, capture, compile_frames


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


# References that captured code makes.


class Owner:
    def __init__(self):
        self.thing = Thing(2.0)


THING, OTHER = Thing(2.0), Thing(3.0)
BY_THING = weakref.WeakKeyDictionary({THING: 5.0})
LINEAR = torch.nn.Linear(2, 2)


def to_an_object_from_outside(x):
    reference = weakref.ref(THING)
    return x * reference().factor, reference() is THING, bool(reference), reference.__callback__


def to_a_tensor_made_here(x):
    y = x + 1
    reference = weakref.ref(y)
    return reference() * 2


def compared(x):
    one, two, again = weakref.ref(THING), weakref.ref(OTHER), weakref.ref(THING)
    noted = weakref.ref(THING, print)
    answers = one == two, one == again, one is again, one is two, one is noted, one == noted
    return x + 1, answers, noted.__callback__ is print


def as_keys(x):
    others = weakref.WeakSet([THING])
    return x * BY_THING[THING], OTHER in BY_THING, len(others), THING in others, OTHER in others


def returned(x):
    return x + 1, weakref.ref(THING)


def hooked(x):
    seen = []
    handle = LINEAR.register_forward_hook(lambda module, given, found: seen.append(found))
    y = LINEAR(x)
    handle.remove()
    return y.detach(), seen[0].detach(), len(LINEAR._forward_hooks)


def of_a_number(x):
    try:
        weakref.ref(3)
    except TypeError:
        return x + 1


def of_a_dead_local(x):
    y = x + 1
    reference = weakref.ref(y)
    time.sleep(0)
    return reference() * 2


def of_what_is_let_go(x):
    owner = Owner()
    reference = weakref.ref(owner.thing)
    del owner
    return x + (reference() is None)


def of_what_is_taken_out(x, owner):
    reference = weakref.ref(owner.thing)
    owner.thing = None
    return x + (reference() is None)


def with_a_function(x):
    gone = []
    owner = Owner()
    reference = weakref.ref(owner, gone.append)
    owner = None
    return x + len(gone), reference is gone[0]


IN_ONE_GRAPH = [
    to_an_object_from_outside,
    to_a_tensor_made_here,
    compared,
    as_keys,
    returned,
    hooked,
]
BREAKING = [of_a_number, of_a_dead_local, of_what_is_let_go, with_a_function]


@pytest.mark.parametrize("function", IN_ONE_GRAPH)
def test_made_in_one_graph(function):
    check(function, [(torch.ones(2),), (torch.zeros(2),)])


@pytest.mark.parametrize("function", BREAKING)
def test_made_with_a_break(function):
    check(function, [(torch.ones(2),), (torch.zeros(2),)], fullgraph=False)


def test_an_object_from_outside_that_goes():
    check(of_what_is_taken_out, [(torch.ones(2), Owner())], fullgraph=False)


def test_hooks_of_other_modules_keep_numbers_of_their_own():
    other = torch.nn.Linear(2, 2)
    compiled = capture(hooked)
    for _ in range(4):
        other.register_forward_hook(lambda *_: None)
        compiled(torch.ones(2))
    assert len(other._forward_hooks) == 4


class Trainer:
    def __init__(self, factor):
        self.factor, self.seen = factor, []

    def scaled(self, x):
        self.factor += 1
        self.seen.append(x.shape[0])
        return x * self.factor

    def __call__(self, x):
        return x - self.factor


def by_proxy(x, owner):
    owner.added = x
    owner.factor += 0.5
    try:
        owner.nothing  # noqa: B018 - what it raises
    except AttributeError as error:
        message = str(error)
    y = owner.scaled(x) + owner(x) * owner.factor
    del owner.added
    return y, message, hasattr(owner, "added"), owner.__class__.__name__


def test_what_proxies_stand_for_is_read_and_written():
    """As a trainer does in the hooks of its model; another object, and one behind a function."""
    results = []
    for compiled in (by_proxy, _compiled(by_proxy)):
        one, two = Trainer(1.0), Trainer(5.0)
        proxies = [weakref.proxy(one)] * 2 + [
            weakref.proxy(two),
            weakref.proxy(one, lambda _: None),
        ]
        found = [compiled(torch.ones(2), proxy) for proxy in proxies]
        results.append((found, one.factor, two.factor, one.seen, hasattr(one, "added")))
    assert repr(results[0]) == repr(results[1])


def test_a_proxy_of_what_is_gone_raises_as_in_eager():
    compiled, owner = compile_frames(by_proxy, run_graph), Trainer(1.0)
    proxy = weakref.proxy(owner)
    compiled(torch.ones(2), proxy)
    del owner
    with pytest.raises(ReferenceError, match="weakly-referenced object no longer exists"):
        compiled(torch.ones(2), proxy)


def test_a_proxy_keeps_its_classes():
    owner = Trainer(1.0)
    proxy = weakref.proxy(owner)

    def ask(x, given):
        return x, isinstance(given, Trainer), type(given), given

    found = compile_frames(ask, run_graph)(torch.ones(2), proxy)
    assert found[1:3] == (True, weakref.CallableProxyType)
    assert found[3] is proxy


def test_an_object_that_was_changed_holds_what_it_held() -> None:
    """As a schedule whose count is written holds its optimizer; one that lets go of it does not."""

    class Scale:
        value = 2.0

    class Holder:
        def __init__(self) -> None:
            self.held: Scale | None = Scale()
            self.count = 0

    def counted(x: torch.Tensor, holder: Holder, reference: Any) -> torch.Tensor:
        holder.count += 1
        return x * reference().value

    def released(x: torch.Tensor, holder: Holder, reference: Any) -> torch.Tensor:
        holder.held = None
        found = reference()
        return x * (3.0 if found is None else found.value)

    for function, expected in ((counted, 2.0), (released, 3.0)):
        compiled = capture(function)
        for _ in range(3):
            holder = Holder()
            result = compiled(torch.ones(2), holder, weakref.ref(holder.held))
            assert torch.equal(result.result, torch.full((2,), expected))
            assert not (function is counted and result.breaks)
            assert holder.count == (function is counted)


class Sized:
    def __init__(self, v=0):
        self.v = v

    def __len__(self):
        return 3

    def __getitem__(self, k):
        return k * self.v


def through_a_proxy(x):
    a = Sized(x)
    p = weakref.proxy(a)
    p.w = 5
    out = []
    attempt(out, lambda: p.nope)
    return (
        p.v * 2,
        a.w,
        len(p),
        p[2],
        bool(p),
        p is weakref.proxy(a),
        list(zip(p, range(2), strict=False)),
        out,
    )


def parents_by_proxies(x):
    class N:
        def __init__(self):
            self.parent = None
            self.kids = []

        def add(self, k):
            self.kids.append(k)
            k.parent = weakref.proxy(self)
            return k

    r = N()
    k = r.add(N())
    k.t = x
    r.name = "root"
    g = k.add(N())
    return g.parent.parent.name, g.parent.t * 2


def deleted(x):
    a = Sized(x)
    p = weakref.proxy(a)
    r = weakref.ref(a)
    del a
    try:
        return p.v
    except ReferenceError as e:
        return str(e), r(), x


def held_by_an_attribute(x):
    class Holder:
        pass

    h = Holder()
    h.a = Sized(x)
    r = weakref.ref(h.a)
    p = weakref.proxy(h.a)
    first = r() is h.a, p.v
    h.a = None
    return first, r(), x


def held_by_a_dict(x):
    d = {"a": Sized(x)}
    r = weakref.ref(d["a"])
    one = r() is d["a"]
    d.clear()
    return one, r() is None, x


@pytest.mark.parametrize("program", [through_a_proxy, parents_by_proxies])
def test_proxies_of_new_objects(program):
    check(program, [(torch.ones(2),)], fullgraph=True)


@pytest.mark.parametrize("program", [deleted, held_by_an_attribute, held_by_a_dict])
def test_new_objects_that_are_let_go(program):
    check(program, [(torch.ones(2),)], fullgraph=False)


def cached_by_weak_keys():
    cache = weakref.WeakKeyDictionary()

    def get(key, x):
        if key in cache:
            return cache[key]
        cache[key] = made = x * key.factor
        return made

    return cache, get


def test_dicts_with_weak_keys():
    (entries, plain), (found, get) = cached_by_weak_keys(), cached_by_weak_keys()
    compiled, x, keys = _compiled(get), torch.ones(2), [Thing(float(n)) for n in range(4)]
    for number in (0, 1, 2, 0, 1, 3, 3, 2):
        assert torch.equal(compiled(keys[number], x), plain(keys[number], x))
        assert list(found) == list(entries)
    del keys[0]
    gc.collect()
    assert len(found) == len(entries) == 3
    keys.append(Thing(9.0))
    assert torch.equal(compiled(keys[-1], x), plain(keys[-1], x))
    assert list(found) == list(entries) == keys
