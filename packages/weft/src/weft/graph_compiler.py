"""From a pure ATen graph to a program: loop-ir and a code generator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import torch
import torch.fx
import weft_loop_ir
from weft_loop_ir import Codegen, CompiledProgram, LoopGraph, Schedule

from .codegens import Codegens
from .dump import GraphDump
from .graph_report import GraphRecord


@dataclass(frozen=True)
class GraphCompiler:
    """Compiles each of the graphs that one captured graph becomes: forward, backward, parts of it."""

    codegens: Codegens
    record: GraphRecord
    dump: GraphDump
    verify: bool
    device_types: set[str] = field(default_factory=set)
    """Of what was compiled."""

    def compile(
        self,
        graph_module: torch.fx.GraphModule,
        constants: Mapping[int, torch.Tensor],
        suffix: str = "",
        written: Mapping[int, int] | None = None,
        *,
        gives_gradients: bool = False,
    ) -> CompiledProgram:
        """Lower, schedule and generate; ``suffix`` tells the dumps of several graphs apart.

        ``written``: outputs that are to be in the memory of inputs where that can be, both by position.
        ``gives_gradients``: of the schedule, see there.
        """
        with self.record.stage("loop-ir"):
            schedule, codegen = self._schedule(graph_module, constants, suffix, written or {})
            schedule = dataclasses.replace(schedule, gives_gradients=gives_gradients)
        with self.record.stage("codegen"):
            program = codegen.compile(schedule, _bound(schedule, constants))
        return self._finished(program, schedule, suffix, codegen)

    def compile_backward(self, graph_module: torch.fx.GraphModule, suffix: str) -> CompiledProgram:
        """A graph whose results are gradients; its constants are inputs."""
        return self.compile(graph_module, {}, suffix, gives_gradients=True)

    def begin(
        self,
        graph_module: torch.fx.GraphModule,
        constants: Mapping[int, torch.Tensor],
        private: Collection[int] = (),
        written: Mapping[int, int] | None = None,
    ) -> Callable[[], CompiledProgram]:
        """As :meth:`compile`, but generating may go on until the program is asked for, which it has to be.

        ``private``: the positions of outputs that only our own programs read.
        """
        with self.record.stage("loop-ir"):
            schedule, codegen = self._schedule(graph_module, constants, "", written or {})
            schedule = weft_loop_ir.with_private_results(schedule, private)
        with self.record.stage("codegen"):
            begun = codegen.begin(schedule, _bound(schedule, constants))

        def finish() -> CompiledProgram:
            with self.record.stage("codegen"):
                program = begun()
            return self._finished(program, schedule, "", codegen)

        return finish

    def _schedule(
        self,
        graph_module: torch.fx.GraphModule,
        constants: Collection[int],
        suffix: str,
        written: Mapping[int, int],
    ) -> tuple[Schedule, Codegen]:
        """The graph's schedule, and the code generator that it is for."""
        options = weft_loop_ir.LoweringOptions()
        for generator in self.codegens.of_graph(graph_module):
            options = generator.lowering_options
        loop_graph = weft_loop_ir.lower(
            graph_module, constant_inputs=frozenset(constants), options=options
        )
        device_type = _device_type(loop_graph)
        self.device_types.add(device_type)
        codegen = self.codegens.of_device(device_type)
        if codegen.writes_inputs:
            inputs = graph_module.graph.find_nodes(op="placeholder")
            targets = {o: k for o, k in written.items() if not _is_lazy(inputs[k])}
            loop_graph = weft_loop_ir.write_back(loop_graph, targets)
        if codegen.checks_first:
            loop_graph = weft_loop_ir.check_first(loop_graph)
        self.dump.text(f"4_loop_ir{suffix}.txt", lambda: weft_loop_ir.format_loop_graph(loop_graph))
        schedule_options = dataclasses.replace(codegen.schedule_options, verify=self.verify)
        schedule = weft_loop_ir.schedule(loop_graph, schedule_options)
        self.dump.schedule(f"5_schedule{suffix}", schedule)
        return schedule, codegen

    def _finished(
        self, program: CompiledProgram, schedule: Schedule, suffix: str, codegen: Codegen
    ) -> CompiledProgram:
        extension = ".cpp" if _device_type(schedule) == "cpu" else ".py"
        self.dump.text(f"6_generated{suffix}{extension}", program.source)
        self.record.count((program,), schedule.fallbacks, codegen)
        return program


def _is_lazy(placeholder: torch.fx.Node) -> bool:
    """Whether an input's memory holds conjugates, or negatives, of its values."""
    fake = placeholder.meta.get("val")
    return isinstance(fake, torch.Tensor) and (fake.is_conj() or fake.is_neg())


def _device_type(program: LoopGraph | Schedule) -> str:
    """The one device type of a graph; the CPU where there is no tensor."""
    device_types = {device.type for device in weft_loop_ir.devices_of(program)} or {"cpu"}
    if len(device_types) > 1:
        raise ValueError(f"one graph uses several device types: {sorted(device_types)}")
    return device_types.pop()


def _bound(schedule: Schedule, constants: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The constants by the names of their buffers."""
    return {str(schedule.inputs[position]): tensor for position, tensor in constants.items()}
