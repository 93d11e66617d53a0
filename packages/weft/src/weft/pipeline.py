"""The line of stages after capture: from a captured graph to a callable.

:class:`Pipeline` is a backend in torch's sense.  Read :meth:`Pipeline.compile_graph` as the table of
contents of weft.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import torch.fx
import weft_aot_autograd
import weft_functionalize
import weft_loop_ir
from weft_aot_autograd import stage_backward
from weft_bytecode_capture import (
    DropControlFlow,
    DropDataDependence,
    SpecialiseSizes,
    depends_on_data,
    disable,
    refused_by_torch,
    warn,
)
from weft_loop_ir import Codegen, CompiledProgram, LoopGraph, Schedule

from ._torch import REGION_OPERATORS, data_parallel_bucket_bytes
from .dump import GraphDump, open_dump
from .errors import StageError, WeftWarning, stage
from .frozen import FrozenProgram
from .graph_description import GraphDescription
from .known_masks import drop_known_masks
from .options import CompileOptions
from .program_cache import ProgramCache
from .registry import find_codegen
from .warm_start import LoadedGraph, WarmStart, device_types_of_capture

# By these a stage says that it does not handle a graph; other errors are faults.
_REFUSALS = (
    weft_functionalize.Unsupported,
    weft_aot_autograd.Unsupported,
    weft_loop_ir.Unsupported,  # of code generators too
)


@dataclass(frozen=True)
class GraphReport:
    """What became of one captured graph.

    ``seconds`` maps stage names to wall-clock seconds: ``"program cache"`` alone where a kept program serves.
    """

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
        programs: ProgramCache | None = None,
    ) -> None:
        """``programs``: where programs are kept for other processes, None for nowhere."""
        self.options = options
        self._warm_start = None if programs is None else WarmStart(options, programs)
        self._raise_errors = raise_errors
        self._observers = observers
        self._warned: set[str] = set()

    def __call__(
        self, graph_module: torch.fx.GraphModule, example_inputs: list[Any]
    ) -> Callable[..., Any]:
        """Compile; an error falls back to running the captured graph, with one warning, or is raised.

        A stage's refusal first asks for another capture: it raises :class:`DropControlFlow` where the
        graph has regions, else :class:`DropDataDependence` where it reads numbers from its tensors, else
        :class:`SpecialiseSizes` where its sizes are symbols.  A fault is shown by none of these.
        """
        if "meta" in device_types_of_capture(graph_module):
            return graph_module.forward  # tensors without memory: nothing to compute
        location = user_location(graph_module)
        try:
            return self.compile_graph(graph_module, example_inputs, location)
        except StageError as error:
            if isinstance(error.__cause__, _REFUSALS):
                if _has_regions(graph_module):
                    raise DropControlFlow(str(error)) from error
                if depends_on_data(graph_module):
                    raise DropDataDependence(str(error)) from error
                if _is_symbolic(example_inputs):
                    raise SpecialiseSizes(str(error)) from error
            if self._raise_errors:
                raise
            if refused_by_torch(graph_module):
                self._warn(f"{error}. The function is compiled without its control flow.")
                raise DropControlFlow(str(error)) from error
            self.finish(GraphReport(location, 0, 0, {}, {}, str(error)))
            self._warn(f"{error}. The graph runs eagerly.")
            return graph_module.forward

    def compile_graph(
        self, graph_module: torch.fx.GraphModule, example_inputs: list[Any], location: str
    ) -> Callable[..., Any]:
        """Run every stage, or load what they gave another process.

        Raises :class:`StageError`.
        """
        seconds: dict[str, float] = {}
        dump = open_dump(self.options.dump_directory, location)
        line = _Line(self, location, seconds, dump)
        if self._warm_start is not None:
            with line.stage("program cache"):
                line.description = self._warm_start.describe(graph_module, example_inputs)
                found = self._find(graph_module, line)
            if found is not None:
                line.finish()
                return _with_gradients_on(found.run) if len(found.programs) > 1 else found.run
        with stage("codegen", location):
            self._start_codegens(graph_module)
        dump.graph("1_captured", graph_module)
        drop_known_masks(graph_module)

        with line.stage("functionalize"):
            steps = weft_functionalize.FunctionalizeOptions(
                observe=dump.steps("2_functionalize_steps")
            )
            functional = weft_functionalize.functionalize(
                graph_module, example_inputs, options=steps
            )
            self._rewrite_functional(functional)
        dump.graph("2_functional", functional.graph_module)

        with line.stage("aot-autograd"):
            joint = weft_aot_autograd.trace_joint(functional)
            if joint is None:
                forward = self._inference_graph(functional)
            else:
                partitioned = self._training_graphs(joint, dump)
        if joint is None:
            dump.graph("3_forward", forward)
            return self._compile_inference(line, functional, forward)
        dump.graph("3_forward", partitioned.forward)
        dump.graph("3_backward", partitioned.backward)
        return self._compile_training(line, functional, partitioned)

    def _inference_graph(
        self, functional: weft_functionalize.FunctionalGraph
    ) -> torch.fx.GraphModule:
        forward = weft_aot_autograd.trace_inference(functional).graph_module
        if not self.options.freezing:
            self._rewrite(forward)
        return forward

    def _training_graphs(
        self, joint: weft_aot_autograd.JointGraph, dump: GraphDump
    ) -> weft_aot_autograd.PartitionedGraph:
        self._rewrite_joint(joint)
        self._rewrite(joint.graph_module)
        dump.graph("3_joint", joint.graph_module)
        options = weft_aot_autograd.PartitionOptions(self.options.activation_memory_budget)
        return weft_aot_autograd.partition(joint, options=options)

    def _compile_inference(
        self,
        line: _Line,
        functional: weft_functionalize.FunctionalGraph,
        forward: torch.fx.GraphModule,
    ) -> Callable[..., Any]:
        """The program of a graph without gradients, kept for other processes."""
        if self.options.freezing:
            program: Any = self._frozen(line, forward, functional)
        else:
            program = line.compile(forward, functional.lifted, written=functional.mutated_inputs)
        self._keep(line, functional, (program,), None)
        line.finish()
        return weft_functionalize.wrap(functional, program)

    def _compile_training(
        self,
        line: _Line,
        functional: weft_functionalize.FunctionalGraph,
        partitioned: weft_aot_autograd.PartitionedGraph,
    ) -> Callable[..., Any]:
        """The programs of forward and backward; backward in stages where gradients are sent by bucket."""
        (results,) = partitioned.forward.graph.find_nodes(op="output")
        private = range(partitioned.output_count, len(results.args[0]))
        forward_begun = line.begin(partitioned.forward, functional.lifted, private=private)
        bucket_bytes = data_parallel_bucket_bytes()
        try:
            if bucket_bytes is None:
                backward: Any = line.compile(partitioned.backward, {}, "_backward")
            else:
                backward = [
                    (stage, line.compile(stage.graph_module, {}, f"_backward_{number}"))
                    for number, stage in enumerate(stage_backward(partitioned, bucket_bytes))
                ]
        finally:
            forward = forward_begun()
        if bucket_bytes is None:
            self._keep(line, functional, (forward, backward), partitioned)
        line.finish()
        training = weft_aot_autograd.TrainingProgram(
            functional, partitioned, forward, backward, disable(line.compile_partial_backward)
        )
        return _with_gradients_on(weft_functionalize.wrap(functional, training))

    def _find(self, graph_module: torch.fx.GraphModule, line: _Line) -> LoadedGraph | None:
        """What runs the graph that the line describes, if it is kept."""
        if self._warm_start is None or line.description is None:
            return None
        later = disable(line.compile_partial_backward)  # a compiled function may call backward
        found = self._warm_start.find(line.description, graph_module, later)
        if found is not None:
            line.count(found.programs, found.fallbacks)
        return found

    def _keep(
        self,
        line: _Line,
        functional: weft_functionalize.FunctionalGraph,
        programs: tuple[CompiledProgram, ...],
        partitioned: weft_aot_autograd.PartitionedGraph | None,
    ) -> None:
        """Keep what the graph that the line describes has become."""
        if self._warm_start is None or line.description is None:
            return
        with line.stage("program cache"):
            self._warm_start.store(
                line.description,
                functional,
                programs,
                partitioned,
                line.device_types,
                line.fallbacks,
            )

    def _start_codegens(self, graph_module: torch.fx.GraphModule) -> None:
        """Let code generators begin what takes them time while the stages before them run."""
        for device_type in device_types_of_capture(graph_module):
            start = getattr(self.find_codegen(device_type), "start", None)
            if start is not None:
                start()

    def _rewrite(self, graph_module: torch.fx.GraphModule) -> None:
        """Let the code generator of the graph's device, or of the one beside the CPU, change it."""
        for codegen in self.codegens(graph_module):
            rewrite = getattr(codegen, "rewrite", None)
            if rewrite is not None:
                rewrite(graph_module)

    def _rewrite_frozen(
        self, graph_module: torch.fx.GraphModule, constants: Collection[torch.fx.Node]
    ) -> None:
        """The same where ``constants`` are computed once; a code generator may know nothing of that."""
        for codegen in self.codegens(graph_module):
            rewrite = getattr(codegen, "rewrite_frozen", None)
            if rewrite is not None:
                rewrite(graph_module, constants)
            elif hasattr(codegen, "rewrite"):
                codegen.rewrite(graph_module)

    def _rewrite_functional(self, functional: weft_functionalize.FunctionalGraph) -> None:
        """Let code generators change the graph before gradients are recorded, if they will be."""
        enabled = torch.is_grad_enabled() or functional.enables_gradients
        differentiated = enabled and any(d.requires_grad for d in functional.inputs)
        for codegen in self.codegens(functional.graph_module):
            rewrite = getattr(codegen, "rewrite_functional", None)
            if rewrite is not None:
                rewrite(functional.graph_module, differentiated=differentiated)

    def _rewrite_joint(self, joint: weft_aot_autograd.JointGraph) -> None:
        """Let code generators change forward and backward together."""
        for codegen in self.codegens(joint.graph_module):
            rewrite = getattr(codegen, "rewrite_joint", None)
            if rewrite is not None:
                rewrite(joint.graph_module, output_count=joint.output_count)

    def _frozen(
        self,
        line: _Line,
        forward: torch.fx.GraphModule,
        functional: weft_functionalize.FunctionalGraph,
    ) -> FrozenProgram:
        """The program of ``forward`` with every parameter that it does not write to as a constant.

        Tensors of inference mode have no version that would tell of a write.
        """
        written = functional.mutated_inputs
        constants = {
            k: t
            for k, t in functional.lifted.items()
            if k not in written.values() and not t.is_inference()
        }

        def build() -> CompiledProgram:
            frozen = weft_loop_ir.freeze(forward, constants, self._rewrite_frozen)
            return line.compile(frozen, functional.lifted, written=written)

        return FrozenProgram(
            build,
            tuple(constants.values()),
            leaves_no_trace=not written and not weft_loop_ir.has_effects(forward),
        )

    def find_codegen(self, device_type: str) -> Codegen:
        """The code generator of a device, as the options ask for it."""
        return find_codegen(device_type, self.options.mode, self.options.cache_limit)

    def codegens(self, graph_module: torch.fx.GraphModule) -> list[Codegen]:
        """The code generator of the graph's device, or of the one beside the CPU."""
        device_types = _device_types_of_graph(graph_module)
        return [
            self.find_codegen(device_type) for device_type in device_types - {"cpu"} or device_types
        ]

    def stage(self, name: str, location: str, seconds: dict[str, float]) -> _TimedStage:
        for observer in self._observers():
            observer.stage_started(location, name)
        return _TimedStage(name, location, seconds)

    def finish(self, report: GraphReport) -> None:
        for observer in self._observers():
            observer.graph_finished(report)

    def refuse_backward(self, error: StageError) -> None:
        """Warn that a backward graph runs eagerly, or raise."""
        if self._raise_errors:
            raise error
        self._warn(f"{error}. This backward graph runs eagerly.")

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warn(message, WeftWarning)


class _Line:
    """The stages from a pure ATen graph to a program, for each graph of one captured graph."""

    def __init__(
        self, pipeline: Pipeline, location: str, seconds: dict[str, float], dump: GraphDump
    ) -> None:
        self._pipeline = pipeline
        self._location = location
        self._seconds = seconds
        self._dump = dump
        self._kernels = 0
        self._externs = 0
        self.fallbacks: dict[str, int] = {}
        self.device_types: set[str] = set()  # of what was compiled
        self.description: GraphDescription | None = None  # by which programs are kept

    def stage(self, name: str) -> _TimedStage:
        """The context of one stage of this captured graph."""
        return self._pipeline.stage(name, self._location, self._seconds)

    def compile(
        self,
        graph_module: torch.fx.GraphModule,
        constants: Mapping[int, torch.Tensor],
        suffix: str = "",
        written: Mapping[int, int] | None = None,
        private: Collection[int] = (),
    ) -> CompiledProgram:
        """Lower, schedule and generate; ``suffix`` tells the dumps of several graphs apart.

        ``written``: outputs that are to be in the memory of inputs where that can be, both by position.
        ``private``: the positions of outputs that only our own programs read.
        """
        schedule, codegen = self._lower(
            graph_module, frozenset(constants), suffix, written or {}, private
        )
        with self.stage("codegen"):
            program = codegen.compile(schedule, _bound(schedule, constants))
        return self._finished(program, schedule, suffix)

    def begin(
        self,
        graph_module: torch.fx.GraphModule,
        constants: Mapping[int, torch.Tensor],
        private: Collection[int] = (),
    ) -> Callable[[], CompiledProgram]:
        """As :meth:`compile`, but generating may go on until the program is asked for, which it has to be."""
        schedule, codegen = self._lower(graph_module, frozenset(constants), "", {}, private)
        begin = getattr(codegen, "begin", None)
        with self.stage("codegen"):
            if begin is None:
                program = codegen.compile(schedule, _bound(schedule, constants))
                return lambda: self._finished(program, schedule, "")
            begun = begin(schedule, _bound(schedule, constants))

        def finish() -> CompiledProgram:
            with self.stage("codegen"):
                program = begun()
            return self._finished(program, schedule, "")

        return finish

    def _finished(
        self, program: CompiledProgram, schedule: Schedule, suffix: str
    ) -> CompiledProgram:
        self._dump.text(f"6_generated{suffix}{_extension(schedule)}", program.source)
        self.count((program,), schedule.fallbacks)
        return program

    def count(self, programs: Sequence[CompiledProgram], fallbacks: Mapping[str, int]) -> None:
        """Count what ``programs`` run, for the report."""
        self._kernels += sum(program.kernel_count for program in programs)
        self._externs += sum(program.extern_count for program in programs)
        for name, count in fallbacks.items():
            self.fallbacks[name] = self.fallbacks.get(name, 0) + count

    def compile_partial_backward(self, graph_module: torch.fx.GraphModule) -> Callable[..., Any]:
        """Compile a graph that only backward shows to be needed; where that fails its operators run."""
        try:
            with torch.no_grad():
                return self.compile(graph_module, {}, "_partial_backward")
        except StageError as error:
            self._pipeline.refuse_backward(error)
            return graph_module.forward

    def _lower(
        self,
        graph_module: torch.fx.GraphModule,
        constant_inputs: frozenset[int],
        suffix: str,
        written: Mapping[int, int],
        private: Collection[int],
    ) -> tuple[Schedule, Codegen]:
        with self.stage("loop-ir"):
            schedule, codegen = self._schedule(graph_module, constant_inputs, suffix, written)
            return weft_loop_ir.with_private_results(schedule, private), codegen

    def _schedule(
        self,
        graph_module: torch.fx.GraphModule,
        constant_inputs: frozenset[int],
        suffix: str,
        written: Mapping[int, int],
    ) -> tuple[Schedule, Codegen]:
        options = weft_loop_ir.LoweringOptions()
        for generator in self._pipeline.codegens(graph_module):
            options = getattr(generator, "lowering_options", options)
        loop_graph = weft_loop_ir.lower(
            graph_module, constant_inputs=constant_inputs, options=options
        )
        device_type = _device_type(loop_graph)
        self.device_types.add(device_type)
        codegen = self._pipeline.find_codegen(device_type)
        if getattr(codegen, "writes_inputs", False):
            loop_graph = weft_loop_ir.check_first(weft_loop_ir.write_back(loop_graph, written))
        self._dump.text(
            f"4_loop_ir{suffix}.txt", lambda: weft_loop_ir.format_loop_graph(loop_graph)
        )
        chosen = getattr(codegen, "schedule_options", weft_loop_ir.ScheduleOptions())
        schedule_options = dataclasses.replace(chosen, verify=self._pipeline.options.verify)
        schedule = weft_loop_ir.schedule(loop_graph, schedule_options)
        self._dump.text(f"5_schedule{suffix}.txt", lambda: weft_loop_ir.format_schedule(schedule))
        return schedule, codegen

    def finish(self) -> None:
        """Report the whole."""
        self._pipeline.finish(
            GraphReport(
                self._location,
                self._kernels,
                self._externs,
                self.fallbacks,
                self._seconds,
                None,
            )
        )


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
        spent = time.perf_counter() - self._start
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + spent
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


def _with_gradients_on(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, which records gradients, also where a call has them off around it."""
    if torch.is_grad_enabled():
        return run
    recording: Any = torch.enable_grad()(run)
    for name in ("cannot_fail", "early_errors", "only_checks_indices", "runs_program"):
        if hasattr(run, name):
            setattr(recording, name, getattr(run, name))
    return cast("Callable[..., Any]", recording)


def _has_regions(graph_module: torch.fx.GraphModule) -> bool:
    """Whether the graph keeps branches, loops or scans."""
    return any(node.target in REGION_OPERATORS for node in graph_module.graph.nodes)


def _is_symbolic(example_inputs: list[Any]) -> bool:
    return any(
        isinstance(number, torch.SymInt | torch.SymFloat)
        for value in example_inputs
        for number in (
            (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else [value]
        )
    )


def _device_types_of_graph(graph_module: torch.fx.GraphModule) -> set[str]:
    """The device types of the tensors in the graph."""
    values = [n.meta.get("val") for n in graph_module.graph.nodes]
    return {value.device.type for value in values if isinstance(value, torch.Tensor)}


def _device_type(program: LoopGraph | Schedule) -> str:
    """The one device type of a graph; the CPU where there is no tensor."""
    device_types = {device.type for device in weft_loop_ir.devices_of(program)} or {"cpu"}
    if len(device_types) > 1:
        raise ValueError(f"one graph uses several device types: {sorted(device_types)}")
    return device_types.pop()


def _bound(schedule: Schedule, constants: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The constants by the names of their buffers."""
    return {str(schedule.inputs[position]): tensor for position, tensor in constants.items()}


def _extension(schedule: Schedule) -> str:
    return ".cpp" if _device_type(schedule) == "cpu" else ".py"
