"""Step 1: a torch-level graph as a flat graph of ATen operators, writes and views included.

The captured graph is interpreted node by node on fake tensors, and every operator that reaches the
dispatcher is recorded.  Parameters and buffers become placeholders.  No decomposition takes place but that
of composite operators, which the dispatcher does.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ._torch import (
    DATA_DEPENDENT_ERRORS,
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    enter_autocast,
    errors_unlogged,
    exit_autocast,
    is_of_level,
    leaving_transforms,
    new_fake_mode,
    set_grad_enabled,
)
from .aten_recorder import AtenRecorder
from .checked_values import call_with_checks
from .counted_loops import CountedTest
from .functional_graph import enables_gradients
from .gradient_rules import is_gradient_rule
from .options import StepObserver
from .python_forms import as_kernels_compute, as_no_view, call_as_kernels_compute
from .recorded_gradients import record_inner_gradients
from .region_effort import RegionEffort
from .regions import record_region_operator
from .repeated_nodes import RepeatedNodes
from .shared_inputs import flat_example
from .symbolic_numbers import is_float_symbol
from .tensor_scalars import call_with_tensor_scalar
from .unsupported import Unsupported

_TAKES_NUMBERS = (
    "SymIntArrayRef expected to contain only concrete integers",
    "cond must be a bool, but got <class 'torch.SymInt'>",
)
"""What torch says where an operator's C++, or its shape rule, has no form for symbolic sizes."""


@dataclass(frozen=True)
class NormalizedGraph:
    """A flat ATen graph that may write: ``recorder.graph``, whose output node is still to come.

    ``outputs`` are what the captured graph returned: fake tensors, numbers or None.
    """

    recorder: AtenRecorder
    fake_mode: FakeTensorMode
    outputs: tuple[Any, ...]


def normalize(
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    effort: RegionEffort = RegionEffort.LEAST,
    shared: Sequence[tuple[int, ...]] = (),
    observe: StepObserver | None = None,
) -> NormalizedGraph:
    """Record ``graph_module`` on ``example_inputs``, which have gradients as the program's have.

    ``effort``: what is done for regions whose results may be one with other values.
    ``shared``: groups of positions of inputs that are views of one input each.
    ``observe`` is called after each step of a block's conversion.

    What torch runs may depend on that, and what it refuses.  Nodes that the program itself runs with
    gradients disabled have ``meta["gradients_disabled"]``.
    """
    fake_mode = _find_fake_mode(graph_module, example_inputs)
    enables = enables_gradients(graph_module.graph)
    recorder = AtenRecorder(graph_module, fake_mode, enables_gradients=enables)
    recorder.effort, recorder.observe = effort, observe
    interpreter = _Interpreter(graph_module, recorder)
    gradients = torch.set_grad_enabled(torch.is_grad_enabled())
    quiet, transforms = errors_unlogged(), leaving_transforms(graph_module.graph)
    one_thread = torch.autograd.set_multithreading_enabled(False)  # others know no modes
    with gradients, one_thread, fake_mode, quiet, transforms, recorder.history.versions_saved():
        outputs = interpreter.run(example_inputs, shared)
    for tensor, number in recorder.saved:
        recorder.history.check_writes(tensor, number)
    recorder.history.note_results([*outputs, *(recorded.value for recorded in recorder.inputs)])
    return NormalizedGraph(recorder, fake_mode, outputs)


def _find_fake_mode(
    graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> FakeTensorMode:
    seen = [value for value in example_inputs if isinstance(value, FakeTensor)]
    for node in graph_module.graph.nodes:
        if seen:
            break
        value = node.meta.get("example_value", node.meta.get("val"))
        if isinstance(value, FakeTensor):
            seen.append(value)
    modes = {id(value.fake_mode): value.fake_mode for value in seen}
    if len(modes) > 1:
        raise Unsupported("example inputs of several fake modes")
    return next(iter(modes.values())) if modes else new_fake_mode(example_inputs)


class _Interpreter:
    """Runs the captured graph's nodes under the recorder; leaves autocast as it was, on errors too."""

    def __init__(self, graph_module: torch.fx.GraphModule, recorder: AtenRecorder) -> None:
        self._module = graph_module
        self._recorder = recorder
        self._repeated = RepeatedNodes(recorder)
        self._environment: dict[torch.fx.Node, Any] = {}
        self._autocasts: list[Any] = []

    def run(
        self, example_inputs: Sequence[Any], shared: Sequence[tuple[int, ...]] = ()
    ) -> tuple[Any, ...]:
        placeholders = self._module.graph.find_nodes(op="placeholder")
        if len(placeholders) != len(example_inputs):
            raise ValueError(
                f"the graph has {len(placeholders)} inputs, {len(example_inputs)} examples were given"
            )
        groups = {group[0]: group for group in shared}
        values: list[Any] = [None] * len(example_inputs)
        for position, (node, value) in enumerate(zip(placeholders, example_inputs, strict=True)):
            if position in groups:
                flat = flat_example(groups[position], example_inputs, self._recorder.with_gradients)
                self._recorder.add_shared_input(position, f"shared_{node.target}", flat)
            elif not any(position in group for group in shared):
                values[position] = self._recorder.add_user_input(position, node, value)
        self._recorder.view_shared_inputs(values)
        with self._recorder:
            return self.run_on(self._recorder.complete_inputs(values))

    def run_on(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Record the graph's nodes, with ``values`` of the recorder for its placeholders."""
        placeholders = self._module.graph.find_nodes(op="placeholder")
        self._environment.update(zip(placeholders, values, strict=True))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # who made the graph has met them
                for node in self._module.graph.nodes:
                    if node.op == "output":
                        return self._outputs(node)
                    if node.op != "placeholder":
                        self._recorder.history.note_call()
                        self._environment[node] = self._run_node(node)
                        self._recorder.record_checks()
        finally:
            while self._autocasts:
                exit_autocast(self._autocasts.pop())
        raise ValueError("the graph has no output")

    def _outputs(self, node: torch.fx.Node) -> tuple[Any, ...]:
        result = self._load(node.args[0])
        if not isinstance(result, (tuple, list)):
            result = (result,)
        return tuple(result)

    def _load(self, argument: Any) -> Any:
        """The argument's value, with plain containers: functions may change a list they are given."""
        if isinstance(argument, torch.fx.Node):
            return self._environment[argument]
        if isinstance(argument, tuple):
            items = [self._load(item) for item in argument]
            return type(argument)(*items) if hasattr(argument, "_fields") else tuple(items)
        if isinstance(argument, list):
            return [self._load(item) for item in argument]
        if isinstance(argument, dict):
            return {key: self._load(item) for key, item in argument.items()}
        if isinstance(argument, slice):
            return slice(*map(self._load, (argument.start, argument.stop, argument.step)))
        return argument

    def _run_node(self, node: torch.fx.Node) -> Any:
        self._recorder.source_node = node
        self._recorder.gradients_enabled = torch.is_grad_enabled()
        if node.op == "get_attr":
            return self._recorder.lift_attribute(self._module, str(node.target))
        args, kwargs = self._load(node.args), self._load(node.kwargs)
        try:
            if node.op == "call_module":
                return self._module.get_submodule(str(node.target))(*args, **kwargs)
            call = functools.partial(self._call, node, args, kwargs)
            return self._repeated.result(node, args, kwargs, call)
        except DATA_DEPENDENT_ERRORS as error:
            raise Unsupported(
                "result that depends on data", f"{node.format_node()}: {error}"
            ) from error
        except (RuntimeError, TypeError) as error:
            if any(text in str(error) for text in _TAKES_NUMBERS):
                raise Unsupported(
                    "operator that takes no symbols", node.format_node() or ""
                ) from error
            raise

    def _call(self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if node.op == "call_method":
            return self._call_method(str(node.target), args, kwargs)
        with as_kernels_compute(node.target):
            return self._call_function(node, args, kwargs)

    def _call_function(
        self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        target: Callable[..., Any] = node.target  # type: ignore[assignment]
        if isinstance(target, HigherOrderOperator):
            return record_region_operator(self._recorder, target, args, _RegionRunner())
        if target is set_grad_enabled:
            torch.set_grad_enabled(args[0])
            return None
        if target is operator.and_ and isinstance(args[0], torch.SymBool):
            return CountedTest(*args)
        if target is torch.autograd.grad:
            result = record_inner_gradients(self._recorder, args, kwargs)
            return target(*args, **kwargs) if result is NotImplemented else result
        if is_gradient_rule(target):
            return self._recorder.record_gradient_rule(target, args)
        number = node.meta.get("example_value")
        if is_float_symbol(number):
            return self._recorder.numbers.define(number, target, args)
        result = call_with_tensor_scalar(getattr(target, "__name__", ""), args, kwargs)
        if result is NotImplemented:
            result = call_with_checks(target, args, kwargs)
        if result is NotImplemented:
            result = call_as_kernels_compute(target, args, kwargs)
        if result is NotImplemented:
            result = as_no_view(getattr(target, "__name__", ""), target(*args, **kwargs))
        if target is enter_autocast:
            self._autocasts.append(result)
        elif target is exit_autocast:
            self._autocasts.remove(args[0])
        return result

    def _call_method(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == "requires_grad_" and not is_of_level(args[0]):
            raise Unsupported("change of requires_grad", "Tensor.requires_grad_")
        result = call_with_tensor_scalar(name, args, kwargs)
        if result is NotImplemented:
            result = call_with_checks(name, args, kwargs)
        if result is NotImplemented:
            result = as_no_view(name, getattr(args[0], name)(*args[1:], **kwargs))
        return result


class _RegionRunner:
    """Runs the graphs of regions: as a block of its own, or as a part of the block around it."""

    def record(
        self, module: torch.fx.GraphModule, recorder: AtenRecorder, values: Sequence[Any]
    ) -> tuple[Any, ...]:
        with recorder.history.observed() as saved:
            results = _Interpreter(module, recorder).run(values)
        recorder.saved += saved
        return results

    def inline(
        self, module: torch.fx.GraphModule, recorder: AtenRecorder, values: Sequence[Any]
    ) -> tuple[Any, ...]:
        return _Interpreter(module, recorder).run_on(values)
