"""Programs of earlier processes, in place of the stages after capture."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.fx
import weft_functionalize
from weft_functionalize import Constant, FunctionalGraph, Number
from weft_loop_ir import CompiledProgram

from ._torch import FakeTensor
from .graph_description import (
    NotDescribable,
    describe_graph,
    describe_settings,
    describe_sources,
)
from .options import CompileOptions
from .program_cache import CachedProgram, ProgramCache
from .registry import find_codegen, stage_folders

PLAIN_CONSTANTS = (bool, int, float, str, type(None))
"""Types of results that are no tensors, which are equal in every process."""


class WarmStart:
    """What becomes of graphs that a process before this one has compiled under the same ``options``.

    Kept are programs without gradients, of fixed sizes, whose parameters are no constants (``freezing``).
    """

    def __init__(self, options: CompileOptions, programs: ProgramCache) -> None:
        self._options = options
        self._programs = programs

    def describe(
        self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> str | None:
        """By what a program of the graph is found; None where none may be kept."""
        options = self._options
        if options.freezing or options.verify or options.dump_directory is not None:
            return None  # constants have values, and what is looked at has to be made
        try:
            graph = describe_graph(graph_module, example_inputs)
        except NotDescribable as refusal:
            self._programs.skip(str(refusal))
            return None
        codegens = [find_codegen(kind, options.mode) for kind in _device_types(graph_module)]
        if not all(hasattr(codegen, "environment") for codegen in codegens):
            self._programs.skip("a code generator without environment()")
            return None
        environments = [f"{type(c).__module__} {c.environment()}" for c in codegens]  # type: ignore[attr-defined]
        parts = [repr(options), *environments, describe_settings(), _sources(), graph]
        return "\n".join(parts)

    def find(
        self, description: str, graph_module: torch.fx.GraphModule
    ) -> tuple[Callable[..., Any], CompiledProgram, Mapping[str, int]] | None:
        """What runs the graph so described, its program, and the operators that fall back, with counts."""
        entry = self._programs.find(description, graph_module)
        if entry is None:
            return None
        codegen: Any = find_codegen(entry.device_type, self._options.mode)
        program: CompiledProgram = codegen.load(entry.generated)
        run = weft_functionalize.wrap(entry.functional(graph_module), program)
        return run, program, entry.fallbacks

    def store(
        self,
        description: str,
        functional: FunctionalGraph,
        program: CompiledProgram,
        device_type: str,
        fallbacks: Mapping[str, int],
    ) -> None:
        """Keep ``program``, made of the graph so described, if another process can load it."""
        refusal = _refusal(functional, program)
        if refusal is not None:
            self._programs.skip(refusal)
            return
        entry = CachedProgram(
            device_type,
            program.generated,  # type: ignore[attr-defined]
            functional.inputs,
            functional.outputs,
            functional.shared_bases,
            functional.has_writes,
            {index: functional.inputs[index].target for index in functional.lifted},
            dict(fallbacks),
        )
        self._programs.store(description, entry, functional.source)


def _refusal(functional: FunctionalGraph, program: CompiledProgram) -> str | None:
    """Why ``program`` can't be kept; None if it can."""
    if not hasattr(program, "generated"):
        return f"a {type(program).__name__}"
    for index, tensor in functional.lifted.items():
        path = functional.inputs[index].target
        if not path or getattr(functional.source, path, None) is not tensor:
            return "a tensor that is made while compiling"
    for output in functional.outputs:
        alias = output.alias
        if isinstance(alias, Number):
            return "a symbolic number"
        if isinstance(alias, Constant) and type(alias.value) not in PLAIN_CONSTANTS:
            return f"a result of type {type(alias.value).__name__}"
    return None


def _device_types(graph_module: torch.fx.GraphModule) -> list[str]:
    """The device types of the tensors in a captured graph, the CPU left out where there is another."""
    values = [node.meta.get("example_value") for node in graph_module.graph.nodes]
    found = {value.device.type for value in values if isinstance(value, FakeTensor)} or {"cpu"}
    return sorted(found - {"cpu"} or found)


@functools.cache
def _sources() -> str:
    """The files of what makes programs, in this process: the stages and this package."""
    return describe_sources(sorted({*stage_folders(), str(Path(__file__).parent)}))
