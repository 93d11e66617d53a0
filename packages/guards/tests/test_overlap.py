"""Tensors in one storage, natively and in Python."""

import builtins

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weft_guards import (
    ArgumentSource,
    Guard,
    GuardSet,
    Reason,
    Scope,
    StoragesApart,
    StorageShared,
    TensorMatches,
    TensorMetadata,
    native_available,
)

REASON = Reason("model.py", 7, "x.add_(y)")
NAMES = tuple(f"t{i}" for i in range(5))
SOURCES = tuple(map(ArgumentSource, NAMES))


def checked(predicate, tensors, native=True):
    guards = [Guard(predicate.sources()[0], predicate, REASON)]
    if native:  # without metadata found to be a plain tensor's, Python decides
        guards += [
            Guard(source, TensorMatches(TensorMetadata.of(tensor)), REASON)
            for source, tensor in zip(SOURCES, tensors, strict=True)
        ]
    guard_set = GuardSet(guards)
    scope = Scope(dict(zip(NAMES, tensors, strict=True)), {}, vars(builtins), {})
    expected = guard_set.evaluate(scope)
    check = guard_set.compile(NAMES, ())
    assert check.check(tuple(tensors), {}, vars(builtins), None) is expected
    failure = guard_set.explain(scope)
    assert (failure is None) is expected
    return expected, failure


BASES = [torch.zeros(12), torch.zeros(12, dtype=torch.float64), torch.zeros(12, device="meta")]
VIEWS = st.builds(
    lambda base, start, length: BASES[base][start : start + length],
    st.integers(0, 2),
    st.integers(0, 11),
    st.integers(0, 4),
) | st.builds(torch.zeros, st.integers(0, 2))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(VIEWS, min_size=5, max_size=5),
    st.lists(st.sampled_from(SOURCES), min_size=1, unique=True),
    st.booleans(),
)
def test_native_check_agrees_with_python(tensors, written, native):
    read = tuple(source for source in SOURCES if source not in written)
    holds, _ = checked(StoragesApart(tuple(written), read), tensors, native)
    storages = [
        t.untyped_storage().data_ptr() if t.numel() and t.device.type == "cpu" else None
        for t in tensors
    ]
    by_source = dict(zip(SOURCES, storages, strict=True))
    shared = any(
        by_source[first] is not None and by_source[first] == by_source[second]
        for first in written
        for second in SOURCES
        if first != second
    )
    assert holds is not shared


def test_reading_one_storage_twice_is_fine():
    base = torch.zeros(4)
    others = [torch.zeros(1) for _ in range(3)]
    assert checked(StoragesApart(SOURCES[4:], SOURCES[:4]), [base, base[1:], *others])[0]


def test_the_explanation_names_both():
    base = torch.zeros(4)
    tensors = [base, torch.zeros(1), base[2:], torch.zeros(1), torch.zeros(1)]
    holds, failure = checked(StoragesApart(SOURCES[:1], SOURCES[1:]), tensors)
    assert not holds
    assert "L['t0'] and L['t2'] in one storage" in str(failure)
    assert "pass copies" in failure.hint


def test_what_is_no_tensor_fails():
    predicate = StoragesApart(SOURCES[:1], SOURCES[1:])
    assert not checked(predicate, [torch.zeros(1), 1, 2, 3, 4], native=False)[0]


@pytest.mark.skipif(not native_available(), reason="the extension is not built")
@pytest.mark.parametrize("count", [1, 31, 32, 33, 500])
def test_many_written_tensors(count):
    names = tuple(f"t{i}" for i in range(count + 1))
    sources = tuple(map(ArgumentSource, names))
    tensors = [torch.zeros(i % 3 + 1) for i in range(count + 1)]
    guards = [
        Guard(source, TensorMatches(TensorMetadata.of(tensor)), REASON)
        for source, tensor in zip(sources, tensors, strict=True)
    ]
    guards.append(Guard(sources[0], StoragesApart(sources[:count], sources[count:]), REASON))
    check = GuardSet(guards).compile(names, ())
    assert check.check(tuple(tensors), {}, {}, None)
    tensors[count] = torch.zeros(64)[: tensors[count].numel()]
    assert check.check(tuple(tensors), {}, {}, None)
    tensors[count] = tensors[count // 2].detach()
    matches = tensors[count].shape == torch.Size([count % 3 + 1])
    assert not check.check(tuple(tensors), {}, {}, None) or not matches


@settings(max_examples=200, deadline=None)
@given(st.lists(VIEWS, min_size=5, max_size=5), st.data())
def test_tensors_at_their_places_in_one_storage(tensors, data):
    """Of some of the tensors, with the places that they have, or one of them another place."""
    chosen = data.draw(st.lists(st.integers(0, 4), min_size=1, unique=True))
    offsets = [tensors[i].storage_offset() for i in chosen]
    offsets[0] += data.draw(st.sampled_from([0, 0, 0, 1]))
    predicate = StorageShared(tuple(SOURCES[i] for i in chosen), tuple(offsets))
    holds, failure = checked(predicate, tensors, data.draw(st.booleans()))
    storages = {
        tensors[i].untyped_storage().data_ptr() if tensors[i].numel() else 0 for i in chosen
    }
    at_place = offsets[0] == tensors[chosen[0]].storage_offset()
    assert holds is (len(storages) == 1 and 0 not in storages and at_place)
    if not holds:
        assert "in another place" in failure.found


def test_shared_storage_is_said_plainly():
    memory = torch.zeros(9)
    predicate = StorageShared(SOURCES[:2], (1, 0))
    tensors = [memory[1:], memory[:-1], *(torch.zeros(1) for _ in range(3))]
    assert checked(predicate, tensors) == (True, None)
    tensors[1] = memory.clone()[:-1]
    holds, failure = checked(predicate, tensors)
    assert not holds
    assert failure.expected == (
        "L['t0'] at 1, L['t1'] at 0 in one storage, of which one is written to"
    )
    assert failure.found == "L['t1'] in another place"
    assert "copies" in failure.hint
