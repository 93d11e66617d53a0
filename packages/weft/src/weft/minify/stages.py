"""Which stage of the pipeline fails on a graph, or computes less exactly than eager does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
import weft_aot_autograd
import weft_functionalize
import weft_loop_ir
from weft_loop_ir import Schedule

from ..codegens import Codegens
from ..errors import StageError
from ..options import CompileOptions
from ..pipeline import Pipeline
from .distance import FACTOR, copied, distance, doubled, resolution, widened
from .kernels import KernelFault, Run, first_inaccurate_kernel


@dataclass(frozen=True)
class StageFault:
    """What is wrong on a graph: ``stage`` failed with ``error``, or is so far from float64, eager so far."""

    stage: str
    error: str | None = None
    distance: float = 0.0
    eager_distance: float = 0.0
    kernel: KernelFault | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.stage} fails: {self.error}"
        text = (
            f"{self.stage} is the first stage that is less exact than eager: {self.distance:.3g} from "
            f"float64, eager {self.eager_distance:.3g} (relative)"
        )
        return text if self.kernel is None else f"{text}\nthe first such kernel is {self.kernel}"


def first_failure(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> StageFault | None:
    """The stage that refuses the graph or fails on it, or a program that raises; None where all goes well."""
    pipeline = Pipeline(CompileOptions(strict=True, verify=True), raise_errors=True)
    try:
        with torch.no_grad():
            run = pipeline(copied(graph_module), _fresh(inputs))
    except StageError as error:
        return StageFault(error.stage, f"{type(error.__cause__).__name__}: {error.__cause__}")
    except Exception as error:
        # A request for another capture, which has its stage's error as its cause.
        cause = error.__cause__
        if isinstance(cause, StageError):
            return StageFault(cause.stage, f"{type(cause.__cause__).__name__}: {cause.__cause__}")
        raise
    try:
        run(*_fresh(inputs))
    except Exception as error:  # whatever the program raises: eager did not
        return StageFault("program", f"{type(error).__name__}: {error}")
    return None


def first_inaccuracy(
    graph_module: torch.fx.GraphModule, inputs: Sequence[Any]
) -> StageFault | None:
    """The first stage whose graph is farther from float64 than eager is; None where there is none."""
    with torch.no_grad():
        exact = _flat(doubled(graph_module)(*widened(_fresh(inputs))))
        results = iter(_stage_results(graph_module, inputs))
        _, eager, _ = next(results)
        eager_distance = distance(eager, exact)
        for stage, found, kernel in results:
            far = distance(found, exact)
            if not far <= FACTOR * eager_distance + resolution(eager):  # NaN is far
                return StageFault(stage, None, far, eager_distance, kernel())
    return None


def _stage_results(
    graph_module: torch.fx.GraphModule, inputs: Sequence[Any]
) -> Iterator[tuple[str, list[torch.Tensor], Callable[[], KernelFault | None]]]:
    """What each stage's graph computes, eager first, and what finds the kernel where that is wrong."""
    yield "eager", _flat(graph_module(*_fresh(inputs))), _no_kernel
    captured = copied(graph_module)
    functional = weft_functionalize.functionalize(captured, _fresh(inputs))

    def run(whole: Callable[..., Any]) -> list[torch.Tensor]:
        """``whole`` takes all inputs of the functional graph."""
        bound = weft_functionalize.bind(functional, whole)
        return _flat(weft_functionalize.wrap(functional, bound)(*_fresh(inputs)))

    yield "functionalize", run(functional.graph_module), _no_kernel
    forward = weft_aot_autograd.trace_inference(functional).graph_module
    yield "aot-autograd", run(forward), _no_kernel
    codegens = Codegens(CompileOptions())
    (codegen,) = codegens.of_graph(forward) or [codegens.of_device("cpu")]
    codegen.rewrite(forward)
    options = codegen.lowering_options
    schedule = weft_loop_ir.schedule(
        weft_loop_ir.lower(forward, options=options), codegen.schedule_options
    )

    def find(execute: Run) -> Callable[[], KernelFault | None]:
        def kernel() -> KernelFault | None:
            found: list[KernelFault | None] = []

            def look(*every: Any) -> Any:
                given = _fresh(every)
                found.append(first_inaccurate_kernel(forward, schedule, execute, given))
                return forward(*every)

            run(look)
            return found[0]

        return kernel

    def evaluated(schedule: Schedule) -> Callable[..., Sequence[Any]]:
        return lambda *every: weft_loop_ir.evaluate(schedule, every)

    def generated(schedule: Schedule) -> Callable[..., Sequence[Any]]:
        return codegen.compile(schedule, {})

    yield "loop-ir", run(evaluated(schedule)), find(evaluated)
    yield "codegen", run(generated(schedule)), find(generated)


def _no_kernel() -> None:
    """Of stages before there are kernels."""


def _fresh(inputs: Sequence[Any]) -> list[Any]:
    return [v.detach().clone() if isinstance(v, torch.Tensor) else v for v in inputs]


def _flat(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    return [t for part in parts if part is not None for t in _flat_part(part)]


def _flat_part(part: Any) -> list[torch.Tensor]:
    return _flat(part) if isinstance(part, (torch.Tensor, tuple, list, dict)) else []
