"""The native check answers as the Python evaluation does, on generated values and guards."""

import builtins

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weft_guards import (
    ArgumentSource,
    AttributeSource,
    DictContains,
    DictKeysAre,
    DictKeySource,
    EqualsConstant,
    Guard,
    GuardSet,
    HasAttribute,
    InstanceDictSource,
    IsNotObject,
    IsObject,
    ItemSource,
    LengthIs,
    NotAliased,
    Reason,
    SameObject,
    Scope,
    TensorMatches,
    TensorMetadata,
    TypeIs,
    TypeSource,
    is_constant,
)

REASON = Reason("model.py", 7, "x + 1")


class Thing:
    pass


class OtherThing(Thing):
    pass


def make_thing(kind, attributes):
    thing = kind()
    vars(thing).update(attributes)
    return thing


KEYS = st.sampled_from(["a", "b", "c", 0, 1, True, 1.0, None, ("a", 1)])
NAMES = st.sampled_from(["a", "b", "c"])
CONSTANTS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.floats(allow_nan=True, width=16),
    st.sampled_from([0.0, -0.0, float("nan"), 2**65, "a", "b", b"a", ..., torch.float32, int]),
    st.frozensets(st.sampled_from([1, True, 1.0, "a"])),
    st.complex_numbers(max_magnitude=1),
)
TENSORS = st.builds(
    lambda size, dtype, device, transpose: (
        torch.empty(size, dtype=dtype, device=device).transpose(0, -1)
        if transpose and size
        else torch.empty(size, dtype=dtype, device=device)
    ),
    st.lists(st.integers(0, 2), max_size=3),
    st.sampled_from([torch.float32, torch.int64, torch.complex64]),
    st.sampled_from(["cpu", "meta"]),
    st.booleans(),
)
VALUES = st.recursive(
    CONSTANTS | TENSORS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.builds(
            make_thing,
            st.sampled_from([Thing, OtherThing]),
            st.dictionaries(NAMES, inner, max_size=3),
        ),
    ),
    max_leaves=8,
)


def places(source, value):
    """(source, value, container and key or None) of the value and all below it."""
    yield source, value, None
    below = []
    if type(value) in (list, tuple):
        below = [(ItemSource(source, i), item, (value, i)) for i, item in enumerate(value)]
    elif type(value) is dict:
        below = [(ItemSource(source, key), item, (value, key)) for key, item in value.items()]
        for index, key in enumerate(value):
            yield DictKeySource(source, index), key, None
    elif isinstance(value, Thing):
        for name, item in vars(value).items():
            below.append((InstanceDictSource(source, name), item, (vars(value), name)))
            yield AttributeSource(source, name), item, None
    for inner, item, where in below:
        yield inner, item, where if type(where[0]) is not tuple else None
        yield from ((s, v, w) for s, v, w in places(inner, item) if s is not inner)
    yield TypeSource(source), type(value), None


def guards_on(source, value):
    yield Guard(source, TypeIs(type(value)), REASON)
    yield Guard(source, IsObject(value), REASON)
    yield Guard(source, IsNotObject(None), REASON)
    if isinstance(value, torch.Tensor):
        yield Guard(source, TensorMatches(TensorMetadata.of(value)), REASON)
    if is_constant(value):
        yield Guard(source, EqualsConstant(value), REASON)
    for length in (0, 1, 2):
        yield Guard(source, LengthIs(length), REASON)
    if type(value) is dict:
        yield Guard(source, DictKeysAre(tuple(value)), REASON)
    for key in ("a", 1):
        yield Guard(source, DictContains(key, True), REASON)
        yield Guard(source, DictContains(key, False), REASON)
    yield Guard(source, HasAttribute("a", True), REASON)
    yield Guard(source, HasAttribute("a", False), REASON)


def answers(guard_set, check, x, y):
    scope = Scope({"x": x, "y": y}, {}, vars(builtins), {})
    expected = guard_set.evaluate(scope)
    assert (guard_set.explain(scope) is None) is expected
    assert check.check((x, y), {}, vars(builtins), None) is expected
    return expected


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_native_check_agrees_with_the_oracle(data):
    x, y = data.draw(VALUES), data.draw(VALUES)
    roots = [*places(ArgumentSource("x"), x), *places(ArgumentSource("y"), y)]
    candidates = [guard for source, value, _ in roots for guard in guards_on(source, value)]
    sources = [source for source, _, _ in roots]
    guards = data.draw(st.lists(st.sampled_from(candidates), max_size=10))
    scope = Scope({"x": x, "y": y}, {}, {}, {})
    if data.draw(st.booleans()):  # mostly such sets pass before the mutation
        guards = [guard for guard in guards if GuardSet([guard]).evaluate(scope)]
    for relation in data.draw(st.lists(st.sampled_from([SameObject, NotAliased]), max_size=2)):
        first, second = (data.draw(st.sampled_from(sources)) for _ in range(2))
        if first != second:  # read once natively: a tensor's item is another object each time
            guards.append(Guard(first, relation(second), REASON))
    guard_set = GuardSet(guards)
    check = guard_set.compile(("x", "y"), ())
    answers(guard_set, check, x, y)
    answers(guard_set, check, y, x)
    answers(guard_set, check, data.draw(VALUES), y)
    for _ in range(3):
        mutable = [where for _, _, where in roots if where is not None]
        if not mutable:
            break
        container, key = data.draw(st.sampled_from(mutable))
        if type(container) is dict and data.draw(st.booleans()):
            container.pop(key, None)
        elif type(container) is dict or key < len(container):
            container[key] = data.draw(VALUES)
        answers(guard_set, check, x, y)
