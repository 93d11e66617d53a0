"""Steps that change lists, dicts, sets, deques and buffers."""

from __future__ import annotations

import array
import collections
import itertools
import operator
from collections.abc import Callable
from typing import Any

import torch

from .state_programs import PROGRAMS, StateProgram, program

Tensor = torch.Tensor

# Containers.


def sequence_of_changes(
    name: str, make: Callable[[], Any], change: Callable[[Any, int], Any]
) -> None:
    """Twice: with a step that uses what the change gives, and one that reads the length only."""

    def step(s: Any, y: Tensor, i: int) -> Tensor:
        got = change(s, i)
        return y * 0.5 + (got if isinstance(got, (int, float)) else 1)

    def unread(s: Any, y: Tensor, i: int) -> Tensor:
        change(s, 3)
        return y * 0.5 + 1

    PROGRAMS.append(StateProgram(name, make, step, lambda s: s))
    PROGRAMS.append(StateProgram(f"{name}_unread", make, unread, lambda s: s))


def setitem(s: Any, k: Any, v: Any) -> Any:
    s[k] = v
    return v


def delitem(s: Any, k: Any) -> None:
    if k in s:
        del s[k]


def numbers() -> list[Any]:
    return [3, 1, 2, 5, 4]


def mapping() -> dict[Any, Any]:
    return {"a": 1, "b": 2}


def iadd(s: list[Any], other: Any) -> int:
    s += other
    return len(s)


LIST_CHANGES: dict[str, Callable[[Any, int], Any]] = {
    "append": lambda s, i: s.append(i) or len(s),
    "extend": lambda s, i: s.extend([i, 2]) or s[-1],
    "insert": lambda s, i: s.insert(0, i) or s[0],
    "pop": lambda s, i: s.pop() if s else -1,
    "pop_first": lambda s, i: s.pop(0) if s else -1,
    "setitem": lambda s, i: setitem(s, 1, s[1] + 1),
    "set_negative": lambda s, i: setitem(s, -1, i),
    "set_slice": lambda s, i: setitem(s, slice(1, 3), [i]) and len(s),
    "grow_slice": lambda s, i: setitem(s, slice(1, 1), [i, i]) and len(s),
    "iadd": lambda s, i: iadd(s, [i]),
    "imul": lambda s, i: setitem(s, slice(None), s[:2] * 2) and s[0],
    "reverse": lambda s, i: s.reverse() or s[0],
    "sort": lambda s, i: s.sort(key=lambda k: (k * 7 + i) % 5) or s[0],
    "rotate": lambda s, i: s.append(s.pop(0)) or s[0],
    "remove": lambda s, i: s.remove(s[0]) if s else None,
    "clear": lambda s, i: s.clear() or len(s),
    "swap": lambda s, i: setitem(s, 0, s[1]) and setitem(s, 1, s[0] + 1),
}
for _name, _change in LIST_CHANGES.items():
    sequence_of_changes(f"list_{_name}", numbers, _change)

DICT_CHANGES: dict[str, Callable[[Any, int], Any]] = {
    "setitem": lambda s, i: setitem(s, "a", s["a"] + 1),
    "new_key": lambda s, i: setitem(s, f"k{len(s)}", 2) + len(s),
    "counter_key": lambda s, i: setitem(s, i, 2) + len(s),
    "update": lambda s, i: s.update(a=s["a"] * 2 % 7) or s["a"],
    "setdefault": lambda s, i: s.setdefault(len(s), 5) + len(s),
    "pop": lambda s, i: s.pop("b", -1),
    "popitem": lambda s, i: s.popitem()[1] if len(s) > 1 else -1,
    "del": lambda s, i: delitem(s, "b"),
    "move": lambda s, i: setitem(s, "a", s.pop("a")) + next(iter(s.values())),
    "ior": lambda s, i: operator.ior(s, {len(s): 1}) and len(s),
    "clear": lambda s, i: s.clear() or setitem(s, "a", 1),
}
for _name, _change in DICT_CHANGES.items():
    sequence_of_changes(f"dict_{_name}", mapping, _change)
    if _name != "popitem":
        sequence_of_changes(f"ordered_{_name}", lambda: collections.OrderedDict(mapping()), _change)
sequence_of_changes(
    "ordered_move_to_end",
    lambda: collections.OrderedDict(mapping()),
    lambda s, i: s.move_to_end("a" if i % 2 else "b") or next(iter(s.values())),
)
sequence_of_changes(
    "defaultdict_read", lambda: collections.defaultdict(int), lambda s, i: s[len(s)] + len(s)
)
sequence_of_changes(
    "defaultdict_factory_with_state",
    lambda: collections.defaultdict(itertools.count(5).__next__),
    lambda s, i: s[len(s)],
)
sequence_of_changes(
    "counter_update", collections.Counter, lambda s, i: s.update("ab") or s["a"] + s["b"]
)
sequence_of_changes("counter_add", collections.Counter, lambda s, i: setitem(s, "a", s["a"] + 1))
SET_CHANGES: dict[str, Callable[[Any, int], Any]] = {
    "add": lambda s, i: s.add(len(s)) or len(s),
    "add_counter": lambda s, i: s.add(i) or len(s),
    "discard": lambda s, i: s.discard(100) or len(s),
    "update": lambda s, i: s.update({len(s), 100}) or len(s),
    "symmetric": lambda s, i: s.symmetric_difference_update({100}) or len(s),
    "difference": lambda s, i: s.difference_update({100}) or len(s),
    "clear": lambda s, i: s.clear() or len(s),
}
for _name, _change in SET_CHANGES.items():
    sequence_of_changes(f"set_{_name}", lambda: {100, 200}, _change)
DEQUE_CHANGES: dict[str, Callable[[Any, int], Any]] = {
    "append": lambda s, i: s.append(i) or s[0],
    "appendleft": lambda s, i: s.appendleft(i) or s[-1],
    "rotate": lambda s, i: s.rotate(1) or s[0],
    "popleft": lambda s, i: s.popleft() if s else -1,
    "setitem": lambda s, i: setitem(s, 0, s[0] + 1) if s else 0,
    "extendleft": lambda s, i: s.extendleft([i]) or s[0],
}
for _name, _change in DEQUE_CHANGES.items():
    sequence_of_changes(f"deque_{_name}", lambda: collections.deque(numbers()), _change)
    sequence_of_changes(f"bounded_deque_{_name}", lambda: collections.deque(numbers(), 5), _change)
BYTE_CHANGES: dict[str, Callable[[Any, int], Any]] = {
    "setitem": lambda s, i: setitem(s, 0, (s[0] + 1) % 200),
    "append": lambda s, i: s.append(3) or len(s),
    "pop": lambda s, i: s.pop() if s else -1,
    "reverse": lambda s, i: s.reverse() or s[0],
}
for _name, _change in BYTE_CHANGES.items():
    sequence_of_changes(f"bytearray_{_name}", lambda: bytearray(b"abcde"), _change)
    sequence_of_changes(f"array_{_name}", lambda: array.array("i", [1, 2, 3]), _change)


@program(lambda: memoryview(bytearray(b"abcde")), bytes)
def memoryview_setitem(s: Any, y: Tensor, i: int) -> Tensor:
    s[0] = (s[0] + 1) % 200
    return y * 0.5


def aliased() -> Any:
    one: list[Any] = [1, 2]
    return {"a": one, "b": one, "c": [one]}


sequence_of_changes("aliased_append", aliased, lambda s, i: s["a"].append(i) or len(s["c"][0]))
sequence_of_changes("aliased_set", aliased, lambda s, i: setitem(s["a"], 0, s["b"][0] + 1))
sequence_of_changes(
    "aliased_rebinding", aliased, lambda s, i: setitem(s, "a", [*s["b"], i]) and len(s["a"])
)
sequence_of_changes(
    "nested_dict",
    lambda: {"a": {"b": {"n": 0}}},
    lambda s, i: setitem(s["a"]["b"], "n", s["a"]["b"]["n"] + 1),
)
sequence_of_changes(
    "list_in_tuple", lambda: ([0], [1]), lambda s, i: setitem(s[0], 0, s[0][0] + s[1][0])
)
sequence_of_changes(
    "list_that_holds_itself",
    lambda: (s := [1], s.append(s))[0][:1],
    lambda s, i: setitem(s, 0, s[0] + 1),
)


@program(lambda: [torch.zeros(4), torch.ones(4)])
def list_of_tensors_rotated(s: Any, y: Tensor, i: int) -> Tensor:
    s.append(s.pop(0) + y)
    return y * 0.5 + s[0]


@program(lambda: {"h": torch.zeros(4)})
def dict_of_tensors(s: Any, y: Tensor, i: int) -> Tensor:
    s["h"] = s["h"] * 0.5 + y
    return y * 0.5 + s["h"]


@program(lambda: {"h": torch.zeros(4)})
def dict_of_tensors_in_place(s: Any, y: Tensor, i: int) -> Tensor:
    s["h"] += y
    return y * 0.5


@program(lambda: collections.deque([torch.zeros(4)] * 3, 3), list)
def deque_of_tensors(s: Any, y: Tensor, i: int) -> Tensor:
    s.append(y)
    return y * 0.5 + s[0]
