"""The stages after capture: from a captured graph to a callable.

:class:`Pipeline` is a backend in torch's sense.  Read :meth:`Pipeline.compile_graph` as the table of
contents of weft.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.fx
import weft_aot_autograd
import weft_functionalize
import weft_loop_ir
from weft_aot_autograd import (
    CompiledGradients,
    CompileGradients,
    ExpectedBackward,
    GradientFunction,
    JointGraph,
    PartitionedGraph,
    ReducedGradients,
    segment_backward,
)
from weft_bytecode_capture import (
    DropControlFlow,
    DropDataDependence,
    SpecialiseSizes,
    depends_on_data,
    disable,
    refused_by_torch,
    warn,
    without_collector,
)
from weft_functionalize import FunctionalGraph
from weft_loop_ir import Codegen, CompiledProgram

from ._torch import REGION_OPERATORS, data_parallel_bucket_bytes
from .attention_shapes import give_four_dims, write_out_attention
from .block_program import BlockProgram
from .codegens import Codegens, device_types_of_capture
from .dump import GraphDump, open_dump
from .errors import StageError, WeftWarning, stage
from .frozen import FrozenProgram
from .graph_compiler import GraphCompiler
from .graph_description import GraphDescription
from .graph_report import GraphRecord, Observers
from .known_masks import drop_known_masks
from .locations import user_location
from .options import CompileOptions
from .program_cache import ProgramCache
from .repeated_blocks import cut_at_blocks
from .warm_start import WarmStart

# By these a stage says that it does not handle a graph; other errors are faults.
_REFUSALS = (
    weft_functionalize.Unsupported,
    weft_aot_autograd.Unsupported,
    weft_loop_ir.Unsupported,  # of code generators too
)


@dataclass(frozen=True)
class _Compilation:
    """What all stages of one captured graph share."""

    record: GraphRecord
    dump: GraphDump
    compiler: GraphCompiler
    description: GraphDescription | None
    """By which its programs are kept for other processes."""


class Pipeline:
    """The default backend: functionalize, aot-autograd, loop-ir and a code generator in a row."""

    def __init__(
        self,
        options: CompileOptions,
        *,
        raise_errors: bool,
        observers: Observers = tuple,
        programs: ProgramCache | None = None,
    ) -> None:
        """``programs``: where programs are kept for other processes, None for nowhere."""
        self.options = options
        self._exact = options.numerics == "eager"
        self._decompositions = weft_aot_autograd.exact_decompositions() if self._exact else None
        self._codegens = Codegens(options)
        self._warm_start = (
            None if programs is None else WarmStart(options, self._codegens, programs)
        )
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
            run: Callable[..., Any] | None = None
            if self.options.share_blocks:
                run = self._compile_by_blocks(graph_module, example_inputs, location)
            return run or self.compile_graph(graph_module, example_inputs, location)
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
            GraphRecord(location, self._observers).fail(str(error))
            self._warn(f"{error}. The graph runs eagerly.")
            return graph_module.forward

    def _compile_by_blocks(
        self, graph_module: torch.fx.GraphModule, example_inputs: list[Any], location: str
    ) -> BlockProgram | None:
        """Programs of a stack of layers, where all that are alike are found as one; None without a stack."""
        if self._warm_start is None or not self._warm_start.keeps_programs:
            return None
        if device_types_of_capture(graph_module) != {"cpu"}:
            return None  # where a program's launches are one CUDA graph
        self._rewrite_captured(graph_module)  # what is known of masks is known of the whole
        pieces = cut_at_blocks(graph_module)
        if pieces is None:
            return None
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        examples = dict(zip(placeholders, example_inputs, strict=True))
        runs = []
        for piece in pieces:
            taken = [examples.get(node, node.meta["example_value"]) for node in piece.takes]
            runs.append(self.compile_graph(piece.graph_module, taken, location))
        return BlockProgram(graph_module, pieces, runs)

    def _rewrite_captured(self, graph_module: torch.fx.GraphModule) -> None:
        """Have attention computed as our code generators do it best."""
        if not self._exact:
            drop_known_masks(graph_module)
            give_four_dims(graph_module)
            write_out_attention(graph_module, self._codegens.of_capture(graph_module))

    def compile_graph(
        self, graph_module: torch.fx.GraphModule, example_inputs: list[Any], location: str
    ) -> Callable[..., Any]:
        """Run every stage, or load what they gave another process.

        :raises StageError: a stage refused the graph, or failed.
        """
        dump = open_dump(self.options.dump_directory, location)
        record = GraphRecord(location, self._observers, dump.finish)
        compiler = GraphCompiler(self._codegens, record, dump, self.options.verify)
        description = found = None
        if self._warm_start is not None:
            record.watch_cache(self._warm_start.counts)
            with record.stage("program cache"):
                description = self._warm_start.describe(graph_module, example_inputs)
                if description is not None:
                    found = self._warm_start.find(
                        description,
                        graph_module,
                        self._partial_backward(compiler),
                        self._gradients_of_gradients(compiler),
                    )
            if found is not None:
                record.count(found.programs, found.fallbacks, found.codegen)
                record.finish()
                return _with_gradients_on(found.run) if len(found.programs) > 1 else found.run
        compilation = _Compilation(record, dump, compiler, description)

        with stage("codegen", location):
            for codegen in self._codegens.of_capture(graph_module):
                codegen.start()
        dump.graph("1_captured", graph_module)
        self._rewrite_captured(graph_module)

        with record.stage("functionalize"):
            functional = self._functionalize(graph_module, example_inputs, dump)
        dump.graph("2_functional", functional.graph_module)

        with record.stage("aot-autograd"):
            joint = weft_aot_autograd.trace_joint(functional, decompositions=self._decompositions)
            if joint is None:
                forward = self._inference_graph(functional)
            else:
                partitioned = self._training_graphs(joint, dump)
        if joint is None:
            dump.graph("3_forward", forward)
            return self._compile_inference(compilation, functional, forward)
        dump.graph("3_forward", partitioned.forward)
        dump.graph("3_backward", partitioned.backward)
        return self._compile_training(compilation, functional, partitioned)

    # -- graphs ------------------------------------------------------------------------------------------

    def _functionalize(
        self, graph_module: torch.fx.GraphModule, example_inputs: list[Any], dump: GraphDump
    ) -> FunctionalGraph:
        observe = dump.steps("2_functionalize_steps")
        options = weft_functionalize.FunctionalizeOptions(observe=observe)
        functional = weft_functionalize.functionalize(graph_module, example_inputs, options=options)
        enabled = torch.is_grad_enabled() or functional.enables_gradients
        differentiated = enabled and any(d.requires_grad for d in functional.inputs)
        for codegen in self._rewriting(functional.graph_module):
            codegen.rewrite_functional(functional.graph_module, differentiated=differentiated)
        return functional

    def _rewriting(self, graph_module: torch.fx.GraphModule) -> list[Codegen]:
        """The code generators that may change a graph: what they put in its place rounds otherwise."""
        return [] if self._exact else self._codegens.of_graph(graph_module)

    def _inference_graph(self, functional: FunctionalGraph) -> torch.fx.GraphModule:
        traced = weft_aot_autograd.trace_inference(
            functional, decompositions=self._decompositions, reads_inputs_only=True
        )
        forward = traced.graph_module
        if not self._exact and weft_aot_autograd.forward_in_blocks(
            forward.graph, self._row_block_options()
        ):
            forward.recompile()
        if not self.options.freezing:
            for codegen in self._rewriting(forward):
                codegen.rewrite(forward)
        return forward

    def _training_graphs(self, joint: JointGraph, dump: GraphDump) -> PartitionedGraph:
        if not joint.read_as_eager:
            if not self._exact:
                weft_aot_autograd.joint_in_blocks(joint, self._row_block_options())
            self._rewrite_joint(joint)
        dump.graph("3_joint", joint.graph_module)
        return weft_aot_autograd.partition(joint, options=self._partition_options())

    def _rewrite_joint(self, joint: JointGraph) -> None:
        for codegen in self._rewriting(joint.graph_module):
            codegen.rewrite_joint(joint.graph_module, output_count=joint.output_count)
            codegen.rewrite(joint.graph_module)

    def _partition_options(self) -> weft_aot_autograd.PartitionOptions:
        return weft_aot_autograd.PartitionOptions(
            self.options.activation_memory_budget, keep_operators=self._exact
        )

    def _row_block_options(self) -> weft_aot_autograd.RowBlockOptions:
        return weft_aot_autograd.RowBlockOptions(min_bytes=self.options.row_block_bytes)

    # -- programs ----------------------------------------------------------------------------------------

    def _compile_inference(
        self,
        compilation: _Compilation,
        functional: FunctionalGraph,
        forward: torch.fx.GraphModule,
    ) -> Callable[..., Any]:
        """The program of a graph without gradients, kept for other processes."""
        if self.options.freezing:
            program: Any = self._frozen(compilation.compiler, functional, forward)
        else:
            program = compilation.compiler.compile(
                forward, functional.lifted, written=functional.mutated_inputs
            )
        self._keep(compilation, functional, (program,))
        compilation.record.finish()
        return weft_functionalize.wrap(functional, program)

    def _frozen(
        self, compiler: GraphCompiler, functional: FunctionalGraph, forward: torch.fx.GraphModule
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

        def rewrite(graph: torch.fx.GraphModule, nodes: Collection[torch.fx.Node]) -> None:
            for codegen in self._codegens.of_graph(graph):
                codegen.rewrite_frozen(graph, nodes)

        def build() -> CompiledProgram:
            frozen = weft_loop_ir.freeze(forward, constants, rewrite)
            return compiler.compile(frozen, functional.lifted, written=written)

        return FrozenProgram(
            build,
            tuple(constants.values()),
            leaves_no_trace=not written and not weft_loop_ir.has_effects(forward),
        )

    def _compile_training(
        self,
        compilation: _Compilation,
        functional: FunctionalGraph,
        partitioned: PartitionedGraph,
    ) -> Callable[..., Any]:
        """The programs of forward and backward; backward in segments where gradients are sent by bucket."""
        compiler = compilation.compiler
        (results,) = partitioned.forward.graph.find_nodes(op="output")
        private = range(partitioned.output_count, len(results.args[0]))
        written = _apart_from_gradients(functional, partitioned)
        forward_begun = compiler.begin(partitioned.forward, functional.lifted, private, written)
        bucket_bytes = data_parallel_bucket_bytes()
        expected = None
        try:
            if bucket_bytes is None:
                expected = weft_aot_autograd.expected_backward(functional, partitioned)
                graph = expected.segment.graph_module if expected else partitioned.backward
                backward: Any = compiler.compile_backward(graph, "_backward")
            else:
                backward = [
                    (
                        segment,
                        compiler.compile_backward(segment.graph_module, f"_backward_{number}"),
                    )
                    for number, segment in enumerate(segment_backward(partitioned, bucket_bytes))
                ]
        finally:
            forward = forward_begun()
        if bucket_bytes is None:
            self._keep(compilation, functional, (forward, backward), partitioned, expected)
        compilation.record.finish()
        training = weft_aot_autograd.TrainingProgram(
            functional,
            partitioned,
            forward,
            backward,
            self._partial_backward(compiler),
            self._gradients_of_gradients(compiler),
            expected=expected,
        )
        records = torch.is_grad_enabled()
        return _with_gradients_on(weft_functionalize.wrap(functional, training, records=records))

    def _partial_backward(
        self, compiler: GraphCompiler
    ) -> Callable[[torch.fx.GraphModule], Callable[..., Any]]:
        """What compiles a graph that only backward shows to be needed; where that fails its operators run."""

        def compile_later(graph_module: torch.fx.GraphModule) -> Callable[..., Any]:
            try:
                with torch.no_grad(), without_collector():
                    return compiler.compile_backward(graph_module, "_partial_backward")
            except StageError as error:
                if self._raise_errors:
                    raise
                self._warn(f"{error}. This backward graph runs eagerly.")
                return graph_module.forward

        # a compiled function may call backward
        return cast("Callable[[torch.fx.GraphModule], Any]", disable(compile_later))

    def _gradients_of_gradients(self, compiler: GraphCompiler) -> CompileGradients:
        """What compiles the gradients that a backward with ``create_graph`` asks for.

        None stands for those that their operators have to compute: without a graph, or one that holds for
        these sizes only.
        """

        def compile_gradients(function: GradientFunction) -> CompiledGradients | None:
            known = function.relations()
            try:
                with without_collector():
                    with torch.enable_grad():
                        traced = function.trace(self._decompositions)
                    self._rewrite_joint(traced.joint)
                    gradients = traced.reuse_saved()
                    with torch.no_grad():
                        compiled = self._compile_gradients(compiler, gradients)
            except _REFUSALS:
                return None
            except StageError as error:
                if isinstance(error.__cause__, _REFUSALS):
                    return None
                if self._raise_errors:
                    raise
                self._warn(f"{error}. Gradients of these gradients run eagerly.")
                return None
            return compiled if function.relations() == known else None

        # a compiled function may call backward
        return cast("Callable[[GradientFunction], Any]", disable(compile_gradients))

    def _compile_gradients(
        self, compiler: GraphCompiler, gradients: ReducedGradients
    ) -> CompiledGradients:
        """The programs of gradients and of their gradients, if they have any."""
        joint = gradients.joint
        if not joint.tangents:
            program = compiler.compile_backward(joint.graph_module, "_gradients")
            return weft_aot_autograd.constant_gradient_program(gradients, program)
        partitioned = weft_aot_autograd.partition(joint, options=self._partition_options())
        return weft_aot_autograd.gradient_program(
            gradients,
            partitioned,
            compiler.compile_backward(partitioned.forward, "_gradients"),
            compiler.compile_backward(partitioned.backward, "_gradients_backward"),
            self._partial_backward(compiler),
            self._gradients_of_gradients(compiler),
        )

    def _keep(
        self,
        compilation: _Compilation,
        functional: FunctionalGraph,
        programs: tuple[CompiledProgram, ...],
        partitioned: PartitionedGraph | None = None,
        expected: ExpectedBackward | None = None,
    ) -> None:
        """Keep what a captured graph has become for other processes."""
        if self._warm_start is None or compilation.description is None:
            return
        with compilation.record.stage("program cache"):
            self._warm_start.store(
                compilation.description,
                functional,
                programs,
                partitioned,
                expected,
                compilation.compiler.device_types,
                compilation.record.fallbacks,
            )

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warn(message, WeftWarning)


def _apart_from_gradients(
    functional: FunctionalGraph, partitioned: PartitionedGraph
) -> dict[int, int]:
    """The mutated inputs, by outputs, whose values neither have gradients nor are saved for some."""
    used = {tangent.output_index for tangent in partitioned.tangents}
    used.update(s.output_index for s in partitioned.saved if s.output_index is not None)
    saved = {s.input_index for s in partitioned.saved}
    return {
        output: index
        for output, index in functional.mutated_inputs.items()
        if output not in used and index not in saved
    }


def _with_gradients_on(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, which records gradients, also where a call has them off around it."""
    if torch.is_grad_enabled():
        return run
    recording: Any = torch.enable_grad()(run)
    names = (
        *("cannot_fail", "early_errors", "failed_check", "left_changes"),
        *("only_checks_indices", "runs_program"),
    )
    for name in names:
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
