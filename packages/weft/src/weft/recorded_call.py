"""One call of a function, compiled as one graph, with what it takes and gives: what ``weft.save`` saves."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
import weft_bytecode_capture as capture
from weft_functionalize import check_operands

from ._torch import FakeTensor
from .errors import WeftWarning
from .graph_description import GraphDescription
from .options import CompileOptions
from .pipeline import Pipeline
from .program_cache import CachedProgram, ProgramCache
from .registry import stage_folders
from .saved_arguments import PLAIN
from .saved_file import SavedProgramError
from .trees import flatten, unflatten


@dataclass(frozen=True)
class RecordedCall:
    """How the graph of a recorded call was called: ``inputs`` are leaves of the arguments, by number.

    ``outputs`` says what each leaf of ``result`` is: ``["output", n]``, ``["argument", n]`` or
    ``["value", v]``.  ``fakes`` are what capture had for leaves, by number.
    """

    inputs: list[int]
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
    inputs, outputs = backend.calls[0]
    numbers = [_leaf_number(value, leaves) for value in inputs]
    examples = zip(numbers, backend.examples, strict=True)
    fakes = {number: fake for number, fake in examples if isinstance(fake, FakeTensor)}
    varies = any(not isinstance(s, int) for fake in fakes.values() for s in fake.shape)
    found: list[Any] = []
    described = flatten(result, found)
    return RecordedCall(
        numbers,
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
    code = getattr(getattr(function, "forward", function), "__code__", None)
    if code is None:
        return set()
    first = code.co_argcount + code.co_kwonlyargcount
    count = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return {f"L[{name!r}]" for name in code.co_varnames[first : first + count]}


def _leaf_number(value: Any, leaves: Sequence[Any]) -> int:
    for number, other in enumerate(leaves):
        if other is value and isinstance(value, torch.Tensor):
            return number
    raise SavedProgramError(
        f"the graph takes {type(value).__name__} that is not an argument of the call"
    )


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
        for number, value in enumerate(leaves):
            if value is leaf:
                return ["argument", number]
        raise SavedProgramError("a result is a tensor that is neither computed nor an argument")
    if type(leaf) not in PLAIN:
        raise SavedProgramError(f"a result is a {type(leaf).__qualname__}, which can't be saved")
    if varies and type(leaf) in (int, float):
        text = f"a result is the number {leaf!r}, which may depend on sizes that vary"
        raise SavedProgramError(f"{text}: return tensors, or save it for fixed sizes")
    return ["value", leaf]
