"""The modes of torch that a captured program switches: gradients, autocast, inference.

A switch is made at once, so that what follows is evaluated in the new mode, and recorded as a call in the
graph.  A graph ends in the modes that it began with; the frame's own code sets those that it leaves changed.

Inference mode decides of what kind all tensors are that are made in it.  A graph is therefore inside it, or
outside, as a whole: an operator on the other side ends the graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ..._torch import InferenceMode, set_grad_enabled
from ...unsupported import BreakEarlier, Unsupported

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


_SWITCHED = "inference mode switched between operators"
SWITCHED_IN_REGION = "switch of a mode inside a region"


def _current() -> dict[Key, Any]:
    return {
        (setter, place): getter(*place)
        for setter, (getter, places) in MODES.items()
        for place in places
    }


def _calls_between(
    before: Mapping[Key, Any], after: Mapping[Key, Any]
) -> list[tuple[Any, tuple[Any, ...]]]:
    """The calls that bring some modes to others."""
    return [
        (setter, (*place, value))
        for (setter, place), value in after.items()
        if value != before[setter, place]
    ]


@dataclass(frozen=True)
class _Entered:
    """A context of inference mode that the program is in: the object, and the modes around and inside."""

    variable: object
    guard: Any
    before: Mapping[Key, Any]
    inside: Mapping[Key, Any]


class ModeSwitches:
    """The switches of one evaluation, recorded in ``graph``.

    ``inference`` says whether the graph's operators are in inference mode; None before the first.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._graph = graph
        self._entry = _current()
        self._in_region = False
        self._nesting = 0  # of autocast, above that of the frame's entry
        self._contexts: list[_Entered] = []
        self._outside = torch.is_inference_mode_enabled()
        self._left_at: int | None = None  # the root frame's instruction that left a context last
        self._gradients: bool | None = None  # as the graph has set them last
        self.inference: bool | None = None

    @property
    def gradients_on_entry(self) -> bool:
        """Whether gradients were on when the graph began."""
        return bool(self._entry[set_grad_enabled, ()])

    def switch(self, setter: Any, place: tuple[str, ...], value: Any) -> None:
        """Call ``setter(*place, value)`` now and in the graph, if that changes anything."""
        if MODES[setter][0](*place) != value:
            self._record(setter, (*place, value))
            setter(*place, value)

    def without_gradients(self) -> contextlib.AbstractContextManager[None]:
        """What is inside is evaluated in no_grad mode, and the graph likewise."""
        return self.with_gradients(False)

    @contextlib.contextmanager
    def with_gradients(self, enabled: bool) -> Iterator[None]:
        """What is inside is evaluated with gradients on or off, and the graph likewise."""
        before = torch.is_grad_enabled()
        self.switch(set_grad_enabled, (), enabled)
        try:
            yield
        finally:
            self.switch(set_grad_enabled, (), before)

    @contextlib.contextmanager
    def inside(self, region: torch.fx.Graph) -> Iterator[None]:
        """Record in a region's graph, which ends in the mode of gradients that it begins with.

        :raises Unsupported: the region leaves gradients switched, or switches another mode.
        """
        outer = self._graph, self._gradients, self._in_region
        mode = torch.is_grad_enabled()
        self._graph, self._gradients, self._in_region = region, mode, True
        try:
            yield
            if torch.is_grad_enabled() != mode:
                raise Unsupported(SWITCHED_IN_REGION)
        finally:
            self._graph, self._gradients, self._in_region = outer

    def _record(self, setter: Any, arguments: tuple[Any, ...]) -> None:
        if self._in_region and setter is not set_grad_enabled:
            raise Unsupported(SWITCHED_IN_REGION)
        self._graph.call_function(setter, arguments)
        if setter is set_grad_enabled:
            self._gradients = arguments[0]

    def nest(self, step: int) -> int:
        """Enter (1) or leave (-1) a nesting level of autocast; gives the level."""
        if self._in_region:
            raise Unsupported(SWITCHED_IN_REGION)
        change = torch.autocast_increment_nesting if step > 0 else torch.autocast_decrement_nesting
        self._graph.call_function(change)
        self._nesting += step
        level: int = change()
        return level

    def enter_inference(self, context: object, wanted: bool) -> None:
        """Go into inference mode, or out of it, until :meth:`leave_inference`.

        :raises Unsupported: the graph has operators that are on the other side.
        """
        if self.inference not in (None, wanted):
            raise Unsupported(_SWITCHED)
        before, guard = _current(), InferenceMode(wanted)
        guard.__enter__()
        self._contexts.append(_Entered(context, guard, before, _current()))

    def leave_inference(self, context: object, position: int | None = None) -> None:
        """Leave what was entered last, at the root frame's instruction ``position``.

        :raises Unsupported: another context was entered last.
        """
        if not self._contexts or self._contexts[-1].variable is not context:
            raise Unsupported("context manager of torch", "inference mode left out of order")
        self._contexts.pop().guard.__exit__(None, None, None)
        self._left_at = position

    def before_operator(self) -> None:
        """Called before a node that computes: it must run in the modes that it is evaluated in.

        :raises Unsupported: it is not on the same side of inference mode as the nodes before it.
        """
        now = torch.is_inference_mode_enabled()
        if self.inference is None:
            self.inference = now
        elif self.inference != now and self._left_at is not None:
            raise BreakEarlier(self._left_at, Unsupported(_SWITCHED))
        elif self.inference != now:
            raise Unsupported(_SWITCHED)
        if torch.is_grad_enabled() != self._graph_gradients():
            self._record(set_grad_enabled, (torch.is_grad_enabled(),))

    def _graph_gradients(self) -> bool:
        """Whether gradients are enabled where the graph stands: entering inference mode sets them too."""
        if self._gradients is not None:
            return self._gradients
        if self.inference not in (None, self._outside):
            return not self.inference
        return bool(self._entry[set_grad_enabled, ()])

    def changed(self) -> list[tuple[Any, tuple[Any, ...]]]:
        """The calls that bring the modes of the frame's entry to the present ones."""
        calls: list[tuple[Any, tuple[Any, ...]]] = []
        state: Mapping[Key, Any] = self._entry
        for context in self._contexts:
            calls += _calls_between(state, context.before)
            calls.append((_enter, (context.variable,)))
            state = context.inside
        calls += _calls_between(state, _current())
        change = (
            torch.autocast_increment_nesting
            if self._nesting > 0
            else torch.autocast_decrement_nesting
        )
        return calls + [(change, ())] * abs(self._nesting)

    def restore(self) -> None:
        """End with the modes of the frame's entry."""
        while self._contexts:
            self.leave_inference(self._contexts[-1].variable)
        for (setter, place), value in self._entry.items():
            self.switch(setter, place, value)
        if self._gradients not in (None, torch.is_grad_enabled()):
            self._record(set_grad_enabled, (torch.is_grad_enabled(),))
        while self._nesting:
            self.nest(-1 if self._nesting > 0 else 1)

    def graph_inference(self) -> bool | None:
        """The inference mode to run the graph in; None for that of its caller."""
        return None if self.inference == self._outside else self.inference


def _enter(context: Any) -> None:
    context.__enter__()


SWITCHES = frozenset({*MODES, torch.autocast_increment_nesting, torch.autocast_decrement_nesting})
"""All functions by whose calls a graph switches modes; it ends in those that it began with."""

MODE_CALLS = SWITCHES | {torch.clear_autocast_cache}
"""All that managers of modes call in a graph."""


def in_inference_mode(wanted: bool | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, run in inference mode, or outside of it; None leaves it to the caller."""
    if wanted is None:
        return function

    def run(*arguments: Any) -> Any:
        with InferenceMode(wanted):
            return function(*arguments)

    return run


def restoring_modes(
    graph_module: torch.fx.GraphModule, function: Callable[..., Any]
) -> Callable[..., Any]:
    """``function``, which runs the graph; an exception leaves it in the modes that are set now."""
    graphs = [m.graph for m in graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    nodes = (node for graph in graphs for node in graph.nodes)
    targets = {node.target for node in nodes if node.op == "call_function"}
    if targets.isdisjoint(MODE_CALLS):
        return function
    entry = _current()

    def run(*arguments: Any) -> Any:
        torch.autocast_increment_nesting()
        level = torch.autocast_decrement_nesting()
        try:
            return function(*arguments)
        except BaseException:  # after an interrupt too
            for (setter, place), value in entry.items():
                setter(*place, value)
            torch.autocast_increment_nesting()
            while torch.autocast_decrement_nesting() > level:
                pass
            raise

    return run
