"""Running a frame again after its graph raised: what the graph wrote and drew is put back before.

A graph that may raise where the program handles exceptions is no use to the handler: it does not know which
line failed. The frame then runs once more as it was written, from the state that it began with; random
numbers are put back unless another thread may have drawn some too.
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ..._torch import pack_hook
from ..._torch.symbols import size_hint
from .index_errors import eager_errors
from .purity import (
    draws,
    is_data_of,
    is_tracked_write,
    storages_told_of,
    storages_written_as_data,
    storages_written_in_regions,
    writes,
    written_arguments,
)
from .storages import UNCOUNTED, has_history, storages, version_of
from .unread_results import may_raise

_LITTLE = 1 << 14
"""Bytes of a tensor that is copied in about the time that making the copy takes anyway."""

Shown = Callable[[BaseException, Sequence[Any]], BaseException]
"""What eager raises in the place of a graph's error, of the graph's arguments too."""

_FEW = 4
"""Tensors that are copied unseen in a call of a compiled function."""


@dataclass(frozen=True)
class Recovery:
    """What a graph changes: inputs by position, attributes of its module, torch's random numbers.

    ``optional``: nobody would handle an exception, so that it may also leave what the graph has changed.
    ``known``: that is all that it changes, and can be put back.  ``histories``: some inputs that it writes to
    have been computed; an error that comes once autograd has recorded a write leaves it.  ``little``: what a
    call copies takes about the time that copying nothing takes, of each tensor; ``few``: these are few, on
    the CPU, where errors come in time.  ``refuses``: some call may refuse its operands for their elements.
    ``checks``: what may fail and has to leave nothing are checks of what data decides; nobody would handle
    another exception.
    """

    inputs: tuple[int, ...] = ()
    attributes: tuple[str, ...] = ()
    draws: bool = False
    optional: bool = False
    known: bool = True
    histories: bool = False
    little: bool = True
    few: bool = True
    refuses: bool = False
    checks: bool = False

    def pays(self, function: Callable[..., Any]) -> bool:
        """Whether the graph is run with what :meth:`around` puts around it."""
        if not self.optional or _tells(function):
            return True
        return self._copies_pay(function)

    def _copies_pay(self, function: Callable[..., Any]) -> bool:
        """Whether copies at each call are worth it: of little, where errors of data are to be expected.

        Not where an index out of range is all to fail, and ``function.early_errors``, if it has that, says
        that such errors come before anything has changed.
        """
        if not self.little or not self.known or self.draws:
            return False
        if getattr(function, "only_checks_indices", False):
            return getattr(function, "early_errors", None) is None
        return self.few and self.refuses

    @property
    def copies(self) -> bool:
        """Whether each call copies tensors, unless it cannot fail."""
        return bool(self.inputs or self.attributes)

    def around(
        self, module: torch.fx.GraphModule, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """``function``, which runs the graph; an exception leaves everything as it was.

        Nothing is copied for a call of which ``function.cannot_fail``, if it has that, says that it raises
        nothing once it has changed something; ``function.call_program`` then calls it, if it has that.  Nor
        where errors of checks alone matter and ``function.failed_check``, if it has that, tells them: they
        come before anything is written.
        """
        if not (self.inputs or self.attributes or self.draws or self.optional):
            return function
        shown = eager_errors(module.graph, self.inputs)
        if self.checks and getattr(function, "failed_check", None) is not None:
            return self._holding_back(function, self._copying(module, function, shown), shown)
        if self.optional and _tells(function) and not self._copies_pay(function):
            return _saying_what_is_left(function, shown)
        return self._copying(module, function, shown)

    def _copying(
        self, module: torch.fx.GraphModule, function: Callable[..., Any], shown: Shown
    ) -> Callable[..., Any]:
        cannot_fail = getattr(function, "cannot_fail", None)
        call_program = getattr(function, "call_program", function)
        runs_program = getattr(function, "runs_program", None) if self.histories else None
        attributes = [getattr(module, name) for name in self.attributes]

        def run(*arguments: Any) -> Any:
            if cannot_fail is not None and cannot_fail(*arguments):
                return call_program(*arguments)
            if runs_program is not None and not runs_program(*arguments):
                raise RunsAsWritten  # autograd would record writes that cannot be put back
            written = [*(arguments[i] for i in self.inputs), *attributes]
            with torch.no_grad():
                copies = [tensor.clone() for tensor in written]
            nodes = [_node(tensor) for tensor in written] if self.histories else []
            drawn = DrawnNumbers() if self.draws else None
            try:
                return function(*arguments)
            except BaseException as error:  # after an interrupt too
                if any(_node(t) is not n for t, n in zip(written, nodes, strict=False)):
                    raise LeavesChanges(shown(error, arguments)) from error
                with torch.no_grad():
                    for tensor, copy in zip(written, copies, strict=True):
                        _put_back(tensor, copy)
                if drawn is not None:
                    drawn.take_back()
                raise

        return run

    def _holding_back(
        self, function: Any, copying: Callable[..., Any], shown: Shown
    ) -> Callable[..., Any]:
        """``function``, whose program writes nothing before its checks; ``copying`` is for other calls."""
        failed_check, left_changes = function.failed_check, function.left_changes
        runs_program = getattr(function, "runs_program", None)
        call_program = getattr(function, "call_program", function)

        def run(*arguments: Any) -> Any:
            if runs_program is None or not runs_program(*arguments):
                return copying(*arguments)
            drawn = DrawnNumbers() if self.draws else None
            try:
                return call_program(*arguments)
            except Exception as error:
                if not failed_check() and left_changes():
                    raise LeavesChanges(shown(error, arguments)) from error
                if drawn is not None:
                    drawn.take_back()
                raise

        return run


def _put_back(tensor: torch.Tensor, copy: torch.Tensor) -> None:
    """Write ``copy`` to ``tensor`` unseen by autograd: what that has saved of it holds again."""
    if tensor.is_inference():
        with torch.inference_mode():
            tensor.copy_(copy)
    else:
        tensor.data.copy_(copy)


class RunsAsWritten(Exception):
    """A graph has no program for a call, and the operators of it might raise behind writes."""


class LeavesChanges(Exception):
    """What a graph raised after it had changed something: the frame must not run again."""

    def __init__(self, error: BaseException) -> None:
        """``error`` is what was raised."""
        super().__init__()
        self.error = error


def raised_by_hook(error: BaseException) -> bool:
    """Whether an error that comes from a graph is that of the hook which is given what autograd saves.

    It is the hook's own doing, as where a checkpoint has all that it wants: calling the hook again is wrong.
    """
    hook = pack_hook()
    if hook is None:
        return False
    if isinstance(error, LeavesChanges):
        error = error.error
    function = inspect.unwrap(hook)
    called = function if hasattr(function, "__code__") else type(function).__call__
    code = getattr(called, "__code__", None)
    return any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))


def _saying_what_is_left(function: Any, shown: Shown) -> Callable[..., Any]:
    """``function``, with :class:`LeavesChanges` for errors after it has changed something.

    ``function.left_changes`` tells, or else the errors' class: ``function.early_errors``.  It is taken for so
    in a call of which ``function.runs_program``, if it has that, is false.
    """
    early = getattr(function, "early_errors", None) or ()
    left_changes = getattr(function, "left_changes", None)
    runs_program = getattr(function, "runs_program", None)

    def run(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:  # an operator's or the program's own
            changed = not isinstance(error, early) if left_changes is None else left_changes()
            if changed or not (runs_program is None or runs_program(*arguments)):
                raise LeavesChanges(shown(error, arguments)) from error
            raise

    return run


def _tells(function: Any) -> bool:
    """Whether ``function`` says what its errors leave."""
    return any(
        getattr(function, name, None) is not None for name in ("early_errors", "left_changes")
    )


def is_little(tensor: torch.Tensor) -> bool:
    """Whether copying a tensor costs about as much as copying nothing."""
    count = size_hint(tensor.numel())
    return count is not None and count * tensor.element_size() <= _LITTLE


def find_recovery(
    graph: torch.fx.Graph, first_versions: dict[torch.fx.Node, int], *, histories: bool = False
) -> Recovery | None:
    """What to put back; None where it is not known, or, but for ``histories``, what was computed is written.

    ``first_versions`` are the version counters of the fake tensors of inputs and attributes when they
    came into the graph: whatever writes to one, or to a view of it, moves them.  Of inference tensors, which
    have none, the graph's functions say what they write to.
    """
    if first_untold_write(graph) is not None:
        return None
    changed = set(_changed(graph, first_versions))
    values = [node.meta["example_value"] for node in changed]
    computed = any(map(has_history, values))
    if computed and not histories:
        return None
    placeholders = graph.find_nodes(op="placeholder")
    return Recovery(
        tuple(i for i, node in enumerate(placeholders) if node in changed),
        tuple(str(node.target) for node in changed if node.op == "get_attr"),
        any(map(draws, graph.nodes)),
        histories=computed,
        little=all(map(is_little, values)),
        few=len(values) <= _FEW and all(value.device.type == "cpu" for value in values),
        refuses=bool(changed) and any(map(may_raise, graph.nodes)),
    )


def first_untold_write(graph: torch.fx.Graph) -> torch.fx.Node | None:
    """The first node of which nothing tells whose memory it writes to."""
    found = filter(writes, graph.nodes)
    return next((n for n in found if not (is_tracked_write(n) or is_data_of(n))), None)


def _node(tensor: torch.Tensor) -> Any:
    """What autograd has recorded of a tensor; None too where it refuses to say, as after some writes."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def _changed(
    graph: torch.fx.Graph, first_versions: dict[torch.fx.Node, int]
) -> Iterator[torch.fx.Node]:
    for node in graph.nodes:
        if (
            node in first_versions
            and version_of(node.meta["example_value"]) != first_versions[node]
        ):
            yield node
        yield from written_arguments(node)
    inside = storages_written_in_regions(graph) | storages_written_as_data(graph)
    is_uncounted = UNCOUNTED in first_versions.values()
    told = inside | storages_told_of(graph) if is_uncounted else inside
    for node, version in first_versions.items():
        found = told if version == UNCOUNTED else inside
        if found & storages([node.meta["example_value"]]):
            yield node


# Taking back what a graph drew from torch's random numbers, unless another thread may have drawn too.
#
# The generator belongs to the whole process.  To put it back after another thread has drawn would give out
# that thread's numbers a second time, which is worse than numbers other than eager's after an error.


class DrawnNumbers:
    """The state of the CPU's default generator, and which threads might draw from it from then on."""

    def __init__(self) -> None:
        self._times = _times_of_others()
        self._state = torch.get_rng_state()

    def take_back(self) -> None:
        """Put the generator back if no other thread has run since."""
        if self._times is not None and _times_of_others() == self._times:
            torch.set_rng_state(self._state)


def _times_of_others() -> dict[int, int] | None:
    """By identity, for how long each other Python thread has run, in ns; None where that cannot be known.

    Threads that never ran Python, as those of torch's parallel loops, draw no numbers.  One that begins and
    ends between two looks is not seen, but then the graph has started it, or a thread that has run.
    """
    clock = getattr(time, "pthread_getcpuclockid", None)
    if clock is None:
        return None
    # a thread that has a frame lives as long as this one holds the interpreter's lock
    others = sys._current_frames().keys() - {threading.get_ident()}
    return {identity: time.clock_gettime_ns(clock(identity)) for identity in others}
