"""Generated values, the places in them, and guards that may hold of them."""

import torch
from hypothesis import strategies as st
from weft_guards import (
    AttributeSource,
    DictContains,
    DictKeysAre,
    DictKeySource,
    EqualsConstant,
    Guard,
    HasAttribute,
    InstanceDictSource,
    IsNotObject,
    IsObject,
    ItemSource,
    LengthIs,
    Reason,
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
