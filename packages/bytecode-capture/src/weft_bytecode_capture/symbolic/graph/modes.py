"""The modes of torch that a captured program switches: gradients and autocast.

A switch is made at once, so that what follows is evaluated in the new mode, and recorded as a call in the
graph.  A graph ends in the modes that it began with; the frame's own code sets those that it leaves changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ..._torch import set_grad_enabled

if TYPE_CHECKING:
    from ...frame.emitter import Emitter

Getter = Callable[..., Any]
_DEVICES = ("cpu", "cuda")

# The function that sets a mode, by what reads it; both take the device type where there are several.
MODES: dict[Any, tuple[Getter, tuple[tuple[str, ...], ...]]] = {
    set_grad_enabled: (torch.is_grad_enabled, ((),)),
    torch.set_autocast_enabled: (torch.is_autocast_enabled, tuple((d,) for d in _DEVICES)),
    torch.set_autocast_dtype: (torch.get_autocast_dtype, tuple((d,) for d in _DEVICES)),
    torch.set_autocast_cache_enabled: (torch.is_autocast_cache_enabled, ((),)),
}
"""Each setter's getter, and the arguments before the value that it is called with."""

Key = tuple[Any, tuple[str, ...]]  # a setter and its arguments before the value


def _current() -> dict[Key, Any]:
    return {
        (setter, place): getter(*place)
        for setter, (getter, places) in MODES.items()
        for place in places
    }


class ModeSwitches:
    """The switches of one evaluation, recorded in ``graph``."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._graph = graph
        self._entry = _current()
        self._nesting = 0  # of autocast, above that of the frame's entry

    def switch(self, setter: Any, place: tuple[str, ...], value: Any) -> None:
        """Call ``setter(*place, value)`` now and in the graph, if that changes anything."""
        if MODES[setter][0](*place) != value:
            self._graph.call_function(setter, (*place, value))
            setter(*place, value)

    def nest(self, step: int) -> int:
        """Enter (1) or leave (-1) a nesting level of autocast; gives the level."""
        change = torch.autocast_increment_nesting if step > 0 else torch.autocast_decrement_nesting
        self._graph.call_function(change)
        self._nesting += step
        level: int = change()
        return level

    def changed(self) -> list[tuple[Any, tuple[Any, ...]]]:
        """The calls that bring the modes of the frame's entry to the present ones."""
        calls: list[tuple[Any, tuple[Any, ...]]] = [
            (setter, (*place, value))
            for (setter, place), value in _current().items()
            if value != self._entry[setter, place]
        ]
        change = (
            torch.autocast_increment_nesting
            if self._nesting > 0
            else torch.autocast_decrement_nesting
        )
        return calls + [(change, ())] * abs(self._nesting)

    def restore(self) -> None:
        """End with the modes of the frame's entry."""
        for (setter, place), value in self._entry.items():
            self.switch(setter, place, value)
        while self._nesting:
            self.nest(-1 if self._nesting > 0 else 1)


MODE_CALLS = frozenset(
    {
        *MODES,
        torch.autocast_increment_nesting,
        torch.autocast_decrement_nesting,
        torch.clear_autocast_cache,
    }
)
"""All functions by whose calls a graph switches modes."""


def restoring_modes(
    graph_module: torch.fx.GraphModule, function: Callable[..., Any]
) -> Callable[..., Any]:
    """``function``, which runs the graph; an exception leaves it in the modes that are set now."""
    targets = {node.target for node in graph_module.graph.nodes if node.op == "call_function"}
    if targets.isdisjoint(MODE_CALLS):
        return function
    entry = _current()

    def run(*arguments: Any) -> Any:
        torch.autocast_increment_nesting()
        level = torch.autocast_decrement_nesting()
        try:
            return function(*arguments)
        except BaseException:
            for (setter, place), value in entry.items():
                setter(*place, value)
            torch.autocast_increment_nesting()
            while torch.autocast_decrement_nesting() > level:
                pass
            raise

    return run


def emit_modes(calls: list[tuple[Any, tuple[Any, ...]]]) -> Callable[[Emitter], None]:
    """The effect of a frame that is left, or broken, in other modes than it began with."""

    def emit(emitter: Emitter) -> None:
        for function, arguments in calls:
            emitter.load_callable(function)
            for argument in arguments:
                emitter.load_object(argument)
            emitter.call(len(arguments))
            emitter.pop()

    return emit
