"""Programs of earlier processes, in place of the stages after capture."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.fx
import weft_aot_autograd
import weft_functionalize
from weft_aot_autograd import CompileGradients, ExpectedBackward, PartitionedGraph
from weft_functionalize import Constant, FunctionalGraph, InputKind, symbols_of
from weft_loop_ir import Codegen, CompiledProgram

from ._torch import data_parallel_bucket_bytes
from .codegens import Codegens
from .graph_description import (
    GraphDescription,
    NotDescribable,
    describe_capture,
    describe_contents,
    describe_settings,
    describe_sources,
)
from .options import CompileOptions
from .program_cache import CachedProgram, KeptTraining, ProgramCache, empty_graph
from .registry import stage_folders

CompileLater = Callable[[torch.fx.GraphModule], Callable[..., Any]]

PLAIN_CONSTANTS = (bool, int, float, str, type(None))
"""Types of results that are no tensors, which are equal in every process."""


class WarmStart:
    """What becomes of graphs that a process before this one has compiled under the same ``options``.

    Kept are programs whose parameters are no constants (``freezing``).
    """

    def __init__(self, options: CompileOptions, codegens: Codegens, programs: ProgramCache) -> None:
        self._options = options
        self._codegens = codegens
        self._programs = programs

    @property
    def counts(self) -> Counter[str]:
        """What the cache has done, as of :class:`ProgramCache`."""
        return self._programs.counts

    @property
    def keeps_programs(self) -> bool:
        """Whether programs may be kept: constants have values, and what is looked at has to be made."""
        options = self._options
        return not (options.freezing or options.verify or options.dump_directory is not None)

    def describe(
        self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> GraphDescription | None:
        """By what a program of the graph is found; None where none may be kept."""
        options = self._options
        if not self.keeps_programs:
            return None
        if data_parallel_bucket_bytes() is not None:
            self._programs.skip("backward in the stages of data parallel training")
            return None
        unrelated = replace(options, cache_limit=None, guard_filter_fn=None, shared_cache=None)
        sources = _sources(by_content=options.shared_cache is not None)
        settings = [repr(unrelated), describe_settings(), sources]
        for codegen in self._codegens.of_capture(graph_module):
            environment = codegen.environment()
            if environment is None:
                self._programs.skip("a code generator without environment()")
                return None
            settings.append(f"{type(codegen).__module__} {environment}")
        try:
            return describe_capture(graph_module, example_inputs, settings)
        except NotDescribable as refusal:
            self._programs.skip(str(refusal))
            return None

    def find(
        self,
        description: GraphDescription,
        graph_module: torch.fx.GraphModule,
        compile_later: CompileLater,
        compile_gradients: CompileGradients,
    ) -> LoadedGraph | None:
        """What runs the graph so described; ``compile_later`` and the next are a training program's."""
        entry = self._programs.find(description, graph_module)
        if entry is None:
            return None
        codegen = self._codegens.of_device(entry.device_type)
        functional = entry.functional(graph_module)
        program = codegen.load(entry.generated)
        if entry.training is None:
            run = weft_functionalize.wrap(functional, program)
            return LoadedGraph(run, (program,), entry.fallbacks, codegen)
        backward = codegen.load(entry.training.generated)
        partitioned = entry.training.partitioned
        training = weft_aot_autograd.TrainingProgram(
            functional,
            partitioned,
            program,
            backward,
            compile_later,
            compile_gradients,
            expected=entry.training.expected,
        )
        run = weft_functionalize.wrap(functional, training, records=torch.is_grad_enabled())
        return LoadedGraph(run, (program, backward), entry.fallbacks, codegen)

    def store(
        self,
        description: GraphDescription,
        functional: FunctionalGraph,
        programs: Sequence[CompiledProgram],
        partitioned: PartitionedGraph | None,
        expected: ExpectedBackward | None,
        device_types: Collection[str],
        fallbacks: Mapping[str, int],
    ) -> None:
        """Keep the program of the graph so described, or its two if ``partitioned``, if that is possible.

        The second is that of the backward ``expected``, or of the whole.
        """
        refusal = _refusal(functional, programs, device_types)
        if refusal is not None:
            self._programs.skip(refusal)
            return
        generated = [program.generated for program in programs]  # type: ignore[attr-defined]
        training = None
        if partitioned is not None:
            training = KeptTraining(
                replace(partitioned, forward=empty_graph()),
                generated[1],
                expected and expected.with_graph(empty_graph()),
            )
        entry = CachedProgram(
            next(iter(device_types)),
            generated[0],
            training,
            _kept_graph(functional, training),
            functional.inputs,
            functional.outputs,
            functional.shared_bases,
            functional.has_writes,
            {index: _kept_tensor(functional, index) for index in functional.lifted},
            dict(fallbacks),
        )
        self._programs.store(description, entry, functional.source)


@dataclass(frozen=True)
class LoadedGraph:
    """``run`` takes what the captured graph takes; ``fallbacks`` counts operators that fall back."""

    run: Callable[..., Any]
    programs: tuple[CompiledProgram, ...]
    fallbacks: Mapping[str, int]
    codegen: Codegen


def _kept_graph(
    functional: FunctionalGraph, training: KeptTraining | None
) -> torch.fx.GraphModule | None:
    """As much of the functional graph as running its program reads."""
    if training is not None:
        return functional.graph_module
    placeholders = functional.graph_module.graph.find_nodes(op="placeholder")
    if not any(symbols_of(node.meta["val"]) for node in placeholders):
        return None
    graph = torch.fx.Graph()
    for node in placeholders:
        graph.node_copy(node)
    graph.output(())
    return torch.fx.GraphModule({}, graph)


def _kept_tensor(functional: FunctionalGraph, index: int) -> str | torch.Tensor:
    """A lifted tensor by its path in the captured module, or a literal of the program as it is."""
    descriptor = functional.inputs[index]
    is_literal = descriptor.kind is InputKind.LITERAL
    return functional.lifted[index] if is_literal else descriptor.target


def _refusal(
    functional: FunctionalGraph,
    programs: Sequence[CompiledProgram],
    device_types: Collection[str],
) -> str | None:
    """Why ``programs`` can't be kept; None if they can."""
    for program in programs:
        if not hasattr(program, "generated"):
            return f"a {type(program).__name__}"
    if len(device_types) != 1:
        return "forward and backward on different devices"
    for index, tensor in functional.lifted.items():
        descriptor = functional.inputs[index]
        if descriptor.kind is InputKind.LITERAL and not descriptor.mutated:
            continue
        if getattr(functional.source, descriptor.target or " ", None) is not tensor:
            return "a tensor that is made while compiling"
    for output in functional.outputs:
        alias = output.alias
        if isinstance(alias, Constant) and type(alias.value) not in PLAIN_CONSTANTS:
            return f"a result of type {type(alias.value).__name__}"
    return None


@functools.cache
def _sources(*, by_content: bool) -> str:
    """The files of what makes programs, in this process: the stages and this package.

    ``by_content``: as other machines have them, where they lie elsewhere and were installed at another time.
    """
    describe = describe_contents if by_content else describe_sources
    return describe(sorted({*stage_folders(), str(Path(__file__).parent)}))
