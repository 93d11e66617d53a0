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

from ..codegens import Codegens
from ..errors import StageError
from ..options import CompileOptions
from ..pipeline import Pipeline

FACTOR = 3.0
"""How many times eager's distance from float64 counts as no worse: sums in other orders differ by that."""


@dataclass(frozen=True)
class StageFault:
    """What is wrong on a graph: ``stage`` failed with ``error``, or is so far from float64, eager so far."""

    stage: str
    error: str | None = None
    distance: float = 0.0
    eager_distance: float = 0.0

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.stage} fails: {self.error}"
        return (
            f"{self.stage} is the first stage that is less exact than eager: {self.distance:.3g} from "
            f"float64, eager {self.eager_distance:.3g} (relative)"
        )


def first_failure(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> StageFault | None:
    """The stage that refuses the graph or fails on it, or a program that raises; None where all goes well."""
    pipeline = Pipeline(CompileOptions(strict=True, verify=True), raise_errors=True)
    try:
        with torch.no_grad():
            run = pipeline(_copied(graph_module), _fresh(inputs))
    except StageError as error:
        return StageFault(error.stage, f"{type(error.__cause__).__name__}: {error.__cause__}")
    except (
        Exception
    ) as error:  # a request for another capture, which has its stage's error as its cause
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
        exact = _flat(_doubled(graph_module)(*map(_as_double, _fresh(inputs))))
        results = iter(_stage_results(graph_module, inputs))
        _, eager = next(results)
        eager_distance = _distance(eager, exact)
        for stage, found in results:
            distance = _distance(found, exact)
            if not distance <= FACTOR * eager_distance + _resolution(eager):  # NaN is far
                return StageFault(stage, None, distance, eager_distance)
    return None


def _stage_results(
    graph_module: torch.fx.GraphModule, inputs: Sequence[Any]
) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """What each stage's graph computes, eager first."""
    yield "eager", _flat(graph_module(*_fresh(inputs)))
    captured = _copied(graph_module)
    functional = weft_functionalize.functionalize(captured, _fresh(inputs))

    def run(whole: Callable[..., Any]) -> list[torch.Tensor]:
        """``whole`` takes all inputs of the functional graph."""
        bound = weft_functionalize.bind(functional, whole)
        return _flat(weft_functionalize.wrap(functional, bound)(*_fresh(inputs)))

    yield "functionalize", run(functional.graph_module)
    forward = weft_aot_autograd.trace_inference(functional).graph_module
    yield "aot-autograd", run(forward)
    codegens = Codegens(CompileOptions())
    (codegen,) = codegens.of_graph(forward) or [codegens.of_device("cpu")]
    codegen.rewrite(forward)
    options = codegen.lowering_options
    schedule = weft_loop_ir.schedule(
        weft_loop_ir.lower(forward, options=options), codegen.schedule_options
    )
    yield "loop-ir", run(lambda *every: weft_loop_ir.evaluate(schedule, every))
    yield "codegen", run(codegen.compile(schedule, {}))


def _copied(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    copy = torch.fx.Graph()
    copy.output(copy.graph_copy(graph_module.graph, {}))
    return torch.fx.GraphModule(graph_module, copy)


def _fresh(inputs: Sequence[Any]) -> list[Any]:
    return [v.detach().clone() if isinstance(v, torch.Tensor) else v for v in inputs]


def _doubled(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with its tensors, and what it converts to, in float64."""
    import copy

    doubled = _copied(copy.deepcopy(graph_module)).double()
    for node in doubled.graph.nodes:
        args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), _wider)
        node.args, node.kwargs = args, kwargs
    doubled.recompile()
    return doubled


def _wider(value: Any) -> Any:
    is_float = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float64 if is_float else value


def _as_double(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_float else value


def _flat(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    return [t for part in parts if part is not None for t in _flat_part(part)]


def _flat_part(part: Any) -> list[torch.Tensor]:
    return _flat(part) if isinstance(part, (torch.Tensor, tuple, list, dict)) else []


def _distance(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """The greatest relative distance of a result: infinite where kinds or special values differ."""
    worst = 0.0
    for value, reference in zip(found, exact, strict=True):
        if not value.is_floating_point():
            worst = max(
                worst, 0.0 if torch.equal(value, reference.to(value.dtype)) else float("inf")
            )
            continue
        difference = (value.double() - reference.double()).nan_to_num(0.0, 0.0, 0.0)
        if not torch.equal(value.isnan(), reference.isnan()):
            return float("inf")
        finite = reference.double()[reference.isfinite()]
        scale = float(finite.abs().max()) if finite.numel() else 1.0
        worst = max(
            worst, float(difference.abs().max()) / max(scale, 1e-30) if value.numel() else 0.0
        )
    return worst


def _resolution(values: Sequence[torch.Tensor]) -> float:
    """Eight units in the last place of the coarsest result."""
    return max((8 * torch.finfo(v.dtype).eps for v in values if v.is_floating_point()), default=0.0)
