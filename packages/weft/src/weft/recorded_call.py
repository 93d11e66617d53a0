"""One call of a function, compiled as one graph, with what it takes and gives: what ``weft.save`` saves."""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
import weft_bytecode_capture as capture
from weft_functionalize import check_operands
from weft_guards import (
    ArgumentSource,
    ClosureSource,
    GlobalSource,
    SameObject,
    Source,
)

from ._torch import FakeTensor
from .errors import WeftWarning
from .graph_description import GraphDescription
from .guard_filter import root_of
from .options import CompileOptions
from .pipeline import Pipeline
from .program_cache import CachedProgram, ProgramCache
from .registry import stage_folders
from .saved_arguments import PLAIN
from .saved_file import SavedProgramError
from .trees import flatten, unflatten


@dataclass(frozen=True)
class RecordedCall:
    """How the graph of a recorded call was called.

    ``inputs`` are leaves of the arguments, ``["argument", n]``, or tensors that the program finds in a
    closure, a global or an object: ``["weight", tensor]``, with their ``names`` beside.  ``outputs`` says
    what each leaf of ``result`` is: ``["output", n]``, ``["value", v]``, or as an input.  ``fakes`` are what
    capture had for leaves, by number.
    """

    inputs: list[list[Any]]
    names: list[tuple[torch.Tensor, str]]
    fakes: dict[int, Any]
    result: Any
    outputs: list[list[Any]]
    entry: CachedProgram
    source: torch.fx.GraphModule


class _Recorder(ProgramCache):
    """Takes the program that a pipeline would keep on disk."""

    entry: CachedProgram | None = None
    source: torch.fx.GraphModule | None = None

    def find(self, description: GraphDescription, source: torch.fx.GraphModule) -> None:
        return None

    def store(
        self, description: GraphDescription, entry: CachedProgram, source: torch.fx.GraphModule
    ) -> None:
        self.entry, self.source = entry, source

    def reason(self) -> str:
        """Why there is none."""
        reasons = [name.removeprefix("not stored: ") for name in self.counts]
        return ", ".join(reasons) or "it has no tensor operation"


class _RecordingBackend:
    """Compiles graphs, and keeps the example inputs of the last and each call's inputs and results."""

    def __init__(self, options: CompileOptions, recorder: _Recorder) -> None:
        chosen = CompileOptions(
            activation_memory_budget=options.activation_memory_budget,
            row_block_bytes=options.row_block_bytes,
            cache_limit=options.cache_limit,
            numerics=options.numerics,
            mode=options.mode,
        )
        self._pipeline = Pipeline(chosen, raise_errors=True, programs=recorder)
        self.calls: list[tuple[tuple[Any, ...], Sequence[Any]]] = []
        self.examples: list[Any] = []

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        self.examples = list(example_inputs)
        run = self._pipeline(graph_module, example_inputs)

        def recorded(*inputs: Any) -> Sequence[Any]:
            results: Sequence[Any] = run(*inputs)
            self.calls.append((inputs, results))
            return results

        return recorded


def record_call(
    function: Any, arguments: Any, leaves: list[Any], options: CompileOptions
) -> RecordedCall:
    """Call ``function`` once, compiled with those of the options that decide what its program is.

    :raises SavedProgramError: what it does is not one graph from tensors to tensors.
    """
    recorder = _Recorder()
    backend = _RecordingBackend(options, recorder)
    reports: list[capture.CaptureReport] = []
    settings = capture.CaptureOptions(
        fullgraph=True,
        keep_control_flow=options.keep_control_flow,
        backend_folders=stage_folders(),
        check_operands=check_operands,
        numbers_by_code=False,  # a file holds no code
    )
    context = capture.make_context(backend, settings, None, reports.append)
    args, kwargs = unflatten(arguments, leaves.__getitem__)
    try:
        result = capture.compile_in(context, function)(*args, **kwargs)
    except capture.GraphBreakError as error:
        text = f"only a program that is one graph can be saved: {error}"
        raise SavedProgramError(text) from error
    if len(backend.calls) != 1:
        raise SavedProgramError(
            f"only a program that is one graph can be saved, this is {len(backend.calls)}"
        )
    if recorder.entry is None or recorder.source is None:
        raise SavedProgramError(f"this program can't be saved: {recorder.reason()}")
    _warn_of_changes(reports, function)
    given, outputs = backend.calls[0]
    frame = _Frame(function, next(report for report in reports if report.graph is not None))
    frame.require_other_objects()
    inputs = [_describe_input(value, leaves) for value in given]
    fakes: dict[int, Any] = {}
    names = []
    known = zip(inputs, backend.examples, frame.graph.input_sources, strict=True)
    for (kind, value), fake, source in known:
        if kind == "argument" and isinstance(fake, FakeTensor):
            fakes[value] = fake
        elif kind == "weight":
            frame.require_holdable(value, fake, source)
            names.append((value, _name(source)))
    varies = any(not isinstance(s, int) for fake in fakes.values() for s in fake.shape)
    found: list[Any] = []
    described = flatten(result, found)
    return RecordedCall(
        inputs,
        names,
        fakes,
        described,
        [_describe_output(leaf, outputs, leaves, varies) for leaf in found],
        recorder.entry,
        recorder.source,
    )


def _warn_of_changes(reports: Sequence[capture.CaptureReport], function: Any) -> None:
    changed = {name for report in reports for name in report.side_effects}
    changed -= _own_dictionaries(function)
    if changed:
        text = f"weft: what the program changes besides tensors is not saved: {sorted(changed)}"
        capture.warn(text, WeftWarning)


def _own_dictionaries(function: Any) -> set[str]:
    """The names of the dictionaries and tuples that a call makes of its arguments."""
    code = _code_of(function)
    if code is None:
        return set()
    first = code.co_argcount + code.co_kwonlyargcount
    count = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return {f"L[{name!r}]" for name in code.co_varnames[first : first + count]}


def _describe_input(value: Any, leaves: Sequence[Any]) -> list[Any]:
    if not isinstance(value, torch.Tensor):
        text = f"the graph takes a {type(value).__name__} that is no tensor of the call"
        raise SavedProgramError(text)
    return _argument(value, leaves) or ["weight", value]


def _argument(tensor: torch.Tensor, leaves: Sequence[Any]) -> list[Any] | None:
    """Which argument it is; None if it is none."""
    numbers = (number for number, leaf in enumerate(leaves) if leaf is tensor)
    return next((["argument", number] for number in numbers), None)


class _Frame:
    """The frame whose graph is saved, and what it finds apart from its arguments."""

    def __init__(self, function: Any, report: capture.CaptureReport) -> None:
        assert report.graph is not None
        self.graph = report.graph
        self._is_the_functions_own = _code_of(function) is report.code
        is_method = isinstance(function, torch.nn.Module) or hasattr(function, "__self__")
        names = report.code.co_varnames[: report.code.co_argcount]
        self._object = names[0] if is_method and names else None

    def _is_passed(self, source: Source) -> bool:
        """Whether a call passes what is there; a method's own object it does not."""
        root = root_of(source)
        return isinstance(root, ArgumentSource) and root.argument != self._object

    def require_holdable(self, tensor: torch.Tensor, fake: Any, source: Source) -> None:
        """:raises SavedProgramError: a file can't hold what the program reads at ``source``.

        What code before the frame may have made is none that another call finds.
        """
        if self._is_passed(source) or not self._is_the_functions_own:
            text = f"the graph takes a tensor ({source.name()}) that is not an argument of the call"
            raise SavedProgramError(text)
        if any(not isinstance(size, int) for size in fake.shape):
            raise SavedProgramError(f"{source.name()} has sizes that vary: make it an argument")
        if tensor.requires_grad and not tensor.is_leaf and torch.is_grad_enabled():
            text = "is computed from tensors that get gradients through it: make it an argument"
            raise SavedProgramError(f"{source.name()} {text}")

    def require_other_objects(self) -> None:
        """:raises SavedProgramError: an argument is an object that the program also has by itself.

        The graph has one input for both, and other calls pass another.
        """
        for guard in self.graph.guards:
            if isinstance(guard.predicate, SameObject):
                sources = guard.source, guard.predicate.other
                if self._is_passed(sources[0]) is not self._is_passed(sources[1]):
                    names = " is ".join(source.name() for source in sources)
                    raise SavedProgramError(f"{names} in this call: save it for another argument")


def _code_of(function: Any) -> types.CodeType | None:
    """That of a function, a method or a module's forward."""
    return getattr(getattr(function, "forward", function), "__code__", None)


def _name(source: Source) -> str:
    """The name of a weight: a variable's own, or where it is found."""
    return source.variable if isinstance(source, ClosureSource | GlobalSource) else source.name()


def _describe_output(
    leaf: Any, outputs: Sequence[Any], leaves: Sequence[Any], varies: bool
) -> list[Any]:
    """What a leaf of the result is; ``varies``: numbers may be made of sizes."""
    for number, value in enumerate(outputs):
        if not isinstance(value, torch.Tensor):
            raise SavedProgramError("a program that reads numbers from tensors can't be saved")
        if value is leaf:
            return ["output", number]
    if isinstance(leaf, torch.Tensor):
        return _argument(leaf, leaves) or ["weight", leaf]
    if type(leaf) not in PLAIN:
        raise SavedProgramError(f"a result is a {type(leaf).__qualname__}, which can't be saved")
    if varies and type(leaf) in (int, float):
        text = f"a result is the number {leaf!r}, which may depend on sizes that vary"
        raise SavedProgramError(f"{text}: return tensors, or save it for fixed sizes")
    return ["value", leaf]
