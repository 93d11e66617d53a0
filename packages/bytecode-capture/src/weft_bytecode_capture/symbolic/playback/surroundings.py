"""The state of a capture that a call's evaluation may read or change besides its arguments and objects."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import torch

from ..graph.symbolic_results import ambient
from ..protocol import Evaluator

# What evaluation adds to and finds by keys, or playing back does as well.
_GROWING = frozenset(
    {
        "instruction_count", "element_count", "candidate_count", "current", "guards", "identified",
        "_reasons", "_globals", "_cells", "_type_lookups", "global_hooks_guarded", "playback", "recorder",
        "given", "_given", "made_at", "inlined_at", "first_versions", "in_handled_code", "_inputs",
        "_sources", "_examples", "_numbers", "_last_placeholder", "_last_attribute", "aliases",
        "taken_as_data", "fake_mode", "_repeated", "builder", "frame", "options", "cache", "root", "shapes",
        "generators", "_effects", "_seen", "count",
    }
)  # fmt: skip
_CONTAINERS = frozenset({list, dict, set, collections.Counter, collections.defaultdict})
_SIMPLE = frozenset({bool, int, str, type(None)})
_DEVICES = ("cpu", "cuda")


class Surroundings:
    """Reads that state; which attributes there are is found once for a capture."""

    def __init__(self) -> None:
        self._read: list[tuple[dict[str, Any], int, tuple[str, ...]]] = []

    def now(self, evaluator: Evaluator) -> list[Any]:
        """What has to be as it was for a call to be played back, and may not change while it runs."""
        parts: list[Any] = [torch.is_grad_enabled(), *ambient()]
        for device in _DEVICES:
            parts += (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        parts += (torch.is_autocast_cache_enabled(), evaluator.graph.library_settings.calls())
        if any(len(attributes) != count for attributes, count, _ in self._read):
            self._read.clear()
        if not self._read:
            for owner in _owners(evaluator.state):
                attributes = vars(owner)
                names = tuple(name for name in attributes if name not in _GROWING)
                self._read.append((attributes, len(attributes), names))
        for attributes, _, names in self._read:
            for name in names:
                value = attributes[name]
                kind = type(value)
                if kind in _CONTAINERS:
                    parts.append(len(value))
                else:
                    parts.append(value if kind in _SIMPLE else id(value))
        return parts


def _owners(state: Any) -> Iterator[Any]:
    yield state
    yield state.graph
    for holder in (state, state.graph):
        for name, value in vars(holder).items():
            is_ours = type(value).__module__.startswith(_PACKAGE) and hasattr(value, "__dict__")
            if is_ours and name not in _GROWING and name != "graph":
                yield value


_PACKAGE = __name__.partition(".")[0]
