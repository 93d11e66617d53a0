"""The line of stages after capture: from a captured graph to a callable.

:class:`Pipeline` is a backend in torch's sense.  Read :meth:`Pipeline.compile_graph` as the table of
contents of weft.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.fx
import weft_aot_autograd
import weft_functionalize
import weft_loop_ir
from weft_loop_ir import CompiledProgram, Schedule

from .dump import GraphDump, open_dump
from .errors import StageError, WeftWarning, stage
from .options import CompileOptions
from .registry import find_codegen


@dataclass(frozen=True)
class GraphReport:
    """What became of one captured graph.  ``seconds`` maps stage names to wall-clock seconds."""

    location: str
    kernel_count: int
    extern_count: int
    fallbacks: Mapping[str, int]
    seconds: Mapping[str, float]
    eager_reason: str | None  # why the graph runs eagerly, None if it is compiled


class GraphObserver(Protocol):
    """Is told as a graph goes through the stages, for progress displays and reports."""

    def stage_started(self, location: str, stage_name: str) -> None: ...

    def graph_finished(self, report: GraphReport) -> None: ...


class Pipeline:
    """The default backend: functionalize, aot-autograd, loop-ir and a code generator in a row."""

    def __init__(
        self,
        options: CompileOptions,
        *,
        raise_errors: bool,
        observers: Callable[[], tuple[GraphObserver, ...]] = tuple,
    ) -> None:
        self._options = options
        self._raise_errors = raise_errors
        self._observers = observers
        self._warned: set[str] = set()

    def __call__(
        self, graph_module: torch.fx.GraphModule, example_inputs: list[Any]
    ) -> Callable[..., Any]:
        """Compile; an error falls back to running the captured graph, with one warning, or is raised."""
        location = user_location(graph_module)
        if _needs_gradient(graph_module, example_inputs):
            reason = (
                "weft does not compile training graphs yet: a graph whose result needs gradients runs "
                "eagerly. For inference, call the model under torch.no_grad() or torch.inference_mode()."
            )
            self._finish(GraphReport(location, 0, 0, {}, {}, reason))
            self._warn(reason)
            return graph_module.forward
        try:
            return self.compile_graph(graph_module, example_inputs, location)
        except StageError as error:
            if self._raise_errors:
                raise
            self._finish(GraphReport(location, 0, 0, {}, {}, str(error)))
            self._warn(f"{error}. The graph runs eagerly.")
            return graph_module.forward

    def compile_graph(
        self, graph_module: torch.fx.GraphModule, example_inputs: list[Any], location: str
    ) -> Callable[..., Any]:
        """Run every stage; raises :class:`StageError`."""
        seconds: dict[str, float] = {}
        dump = open_dump(self._options.dump_directory, location)
        dump.graph("1_captured", graph_module)

        with self._stage("functionalize", location, seconds):
            functional = weft_functionalize.functionalize(graph_module, example_inputs)
        dump.graph("2_functional", functional.graph_module)

        with self._stage("aot-autograd", location, seconds):
            forward = weft_aot_autograd.trace_inference(functional)
        dump.graph("3_forward", forward.graph_module)

        constants = functional.lifted
        with self._stage("loop-ir", location, seconds):
            schedule = self._schedule(forward.graph_module, frozenset(constants), dump)

        with self._stage("codegen", location, seconds):
            program = _generate(schedule, constants)
        dump.text("6_generated" + _suffix(schedule), program.source)

        self._finish(
            GraphReport(
                location,
                program.kernel_count,
                program.extern_count,
                dict(schedule.fallbacks),
                seconds,
                None,
            )
        )
        return weft_functionalize.wrap(functional, program, constants)

    def _schedule(
        self, graph_module: torch.fx.GraphModule, constant_inputs: frozenset[int], dump: GraphDump
    ) -> Schedule:
        loop_graph = weft_loop_ir.lower(graph_module, constant_inputs=constant_inputs)
        dump.text("4_loop_ir.txt", lambda: weft_loop_ir.format_loop_graph(loop_graph))
        schedule = weft_loop_ir.schedule(loop_graph)
        dump.text("5_schedule.txt", lambda: weft_loop_ir.format_schedule(schedule))
        if self._options.verify:
            weft_loop_ir.verify(schedule)
        return schedule

    def _stage(self, name: str, location: str, seconds: dict[str, float]) -> _TimedStage:
        for observer in self._observers():
            observer.stage_started(location, name)
        return _TimedStage(name, location, seconds)

    def _finish(self, report: GraphReport) -> None:
        for observer in self._observers():
            observer.graph_finished(report)

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, WeftWarning, stacklevel=3)


class _TimedStage:
    """Context of one stage: errors name it, its wall-clock seconds are recorded."""

    def __init__(self, name: str, location: str, seconds: dict[str, float]) -> None:
        self._guarded = stage(name, location)
        self._name = name
        self._seconds = seconds

    def __enter__(self) -> None:
        self._start = time.perf_counter()
        self._guarded.__enter__()

    def __exit__(self, *exception: Any) -> bool | None:
        self._seconds[self._name] = time.perf_counter() - self._start
        return self._guarded.__exit__(*exception)


def user_location(graph_module: torch.fx.GraphModule) -> str:
    """``file:line`` of the user's code that the graph's first operation came from."""
    for node in graph_module.graph.nodes:
        trace = node.meta.get("stack_trace")
        if node.op in ("call_function", "call_method") and trace:
            lines = [
                line.strip() for line in trace.splitlines() if line.strip().startswith("File ")
            ]
            if lines:
                first: str = lines[0]
                return first.removeprefix("File ").replace('"', "").replace(", line ", ":")
    return "<unknown>"


def _needs_gradient(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> bool:
    if not torch.is_grad_enabled():
        return False
    (output,) = (node for node in graph_module.graph.nodes if node.op == "output")
    results = torch.fx.node.map_arg(output.args[0], lambda node: node.meta.get("example_value"))
    flat = results if isinstance(results, (tuple, list)) else (results,)
    if any(isinstance(value, torch.Tensor) and value.requires_grad for value in flat):
        return True
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in example_inputs)


def _generate(schedule: Schedule, constants: Mapping[int, torch.Tensor]) -> CompiledProgram:
    device_types = {buffer.layout.device.type for buffer in schedule.buffers.values()} or {"cpu"}
    if len(device_types) > 1:
        raise ValueError(f"one graph uses several device types: {sorted(device_types)}")
    names = {position: schedule.inputs[position] for position in constants}
    return find_codegen(device_types.pop()).compile(
        schedule, {str(names[position]): tensor for position, tensor in constants.items()}
    )


def _suffix(schedule: Schedule) -> str:
    devices = {buffer.layout.device.type for buffer in schedule.buffers.values()}
    return ".cpp" if devices <= {"cpu"} else ".py"
