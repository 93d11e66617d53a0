"""Keys that are compared by identity: what a call finds, or misses, is eager's for each call's own objects.

A case is a program of a tensor, a dict, a set and a list of some objects, and one more object, which may
be among them.  Which of the objects it is, and which are in the containers, differs from call to call.
"""

import collections
import types

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, compile_frames

X = torch.ones(3)


class Sub(torch.Tensor):
    pass


class Plain:
    pass


def _function(n):
    return lambda: n


_tensors = [torch.full((3,), float(n)) for n in range(4)]
KINDS = {
    "tensor": _tensors,
    "tensor of a class": [torch.full((3,), float(n)).as_subclass(Sub) for n in range(4)],
    "tuple": [(tensor, 1) for tensor in _tensors],
    "module": [torch.nn.Linear(3, 3) for _ in range(4)],
    "instance": [Plain() for _ in range(4)],
    "function": [_function(n) for n in range(4)],
}


def get(x, mapping, members, items, key):
    return x * mapping.get(key, 7)


def contains(x, mapping, members, items, key):
    return x * 2 if key in mapping else x * 3


def set_contains(x, mapping, members, items, key):
    return x * 2 if key in members else x * 3


def subscript(x, mapping, members, items, key):
    try:
        return x * mapping[key]
    except KeyError:
        return x * 9


def pop(x, mapping, members, items, key):
    return x * mapping.pop(key, 5) + len(mapping)


def setdefault(x, mapping, members, items, key):
    return x * mapping.setdefault(key, 5) + len(mapping)


def store(x, mapping, members, items, key):
    mapping[key] = 6
    return x * sum(mapping.values())


def delete(x, mapping, members, items, key):
    try:
        del mapping[key]
    except KeyError:
        return x * 6
    return x * sum(mapping.values())


def new_dict(x, mapping, members, items, key):
    return x * {item: n for n, item in enumerate(items)}.get(key, 9)


def new_set(x, mapping, members, items, key):
    found = {*items, key}
    return x * len(found) if len(found) > 2 else x * 9


def merged(x, mapping, members, items, key):
    return x * len({**mapping, key: 4})


def counted(x, mapping, members, items, key):
    return x * collections.Counter([key, *items])[items[0]]


def defaulted(x, mapping, members, items, key):
    found = collections.defaultdict(int)
    found.update(mapping)
    return x * found[key] + len(found)


def in_tuples(x, mapping, members, items, key):
    return x * {(item, 1): n for n, item in enumerate(items)}.get((key, 1), 9)


def frozen(x, mapping, members, items, key):
    return x * 2 if key in frozenset(items) else x * 3


def set_algebra(x, mapping, members, items, key):
    return x * (len(members | {key}) + 10 * len(members - {key}) + 100 * ({key} <= members))


def keys_view(x, mapping, members, items, key):
    return x * (len(mapping.keys() & {key}) + 10 * mapping.keys().isdisjoint({key}))


def each_key(x, mapping, members, items, key):
    for n, found in enumerate(mapping):
        if found is key:
            return x * (n + 1)
    return x * 7


def each_item(x, mapping, members, items, key):
    for n, found in enumerate(items):
        if found is key:
            return x * (n + 1)
    return x * 7


def by_id(x, mapping, members, items, key):
    return x * {id(item): n for n, item in enumerate(items)}.get(id(key), 9)


def id_and_hash(x, mapping, members, items, key):
    return x + 1, id(key), hash(key)


def of_a_global(x, mapping, members, items, key):
    return x * GLOBAL.get(key, 7)  # noqa: F821


def two_keys(x, mapping, members, items, key):
    return x * (mapping.get(items[0], 5) * 10 + mapping.get(key, 7))


def pattern(x, mapping, members, items, key):
    match mapping:
        case {1: value}:
            return x * value
        case _:
            return x * mapping.get(key, 3)


PROGRAMS = [
    get, contains, set_contains, subscript, pop, setdefault, store, delete, new_dict, new_set, merged,
    counted, defaulted, in_tuples, frozen, set_algebra, keys_view, each_key, each_item, by_id, id_and_hash,
    of_a_global, two_keys, pattern,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_identities(kind, program):
    objects = KINDS[kind]
    namespace = {**globals(), "GLOBAL": {objects[0]: 1, objects[1]: 2}}
    function = types.FunctionType(program.__code__, namespace)
    graphs = []

    def backend(graph_module, inputs):
        graphs.append(graph_module)
        return graph_module.forward

    compiled = compile_frames(function, backend, CaptureOptions(recompile_limit=40))
    for key in (0, 1, 2, 3, 2, 0):
        for first in (0, 1):
            chosen = objects[first : first + 2]
            found, wanted = (
                _trace(called, chosen, objects[key]) for called in (compiled, function)
            )
            assert found == wanted, (key, first)
    assert graphs


def _trace(function, chosen, key):
    mapping = {chosen[0]: 1, chosen[1]: 2}
    try:
        result = function(X, mapping, set(chosen), list(chosen), key)
    except Exception as error:
        result = type(error), str(error)
    return repr(result), [(id(key), value) for key, value in mapping.items()]
