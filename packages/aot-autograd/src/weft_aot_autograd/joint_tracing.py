"""From a functional graph to forward and backward in one graph, by running torch's own autograd."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx
from weft_functionalize import (
    FunctionalGraph,
    OutputKind,
    inner_gradients,
    is_gradient_rule,
    is_unrecorded_view,
    known_equal,
    known_true,
    storage_identity,
)

from ._torch import (
    DATA_DEPENDENT_ERRORS,
    FakeTensorMode,
)
from .custom_formulas import has_custom_formulas
from .decomposition_table import DecompositionTable, default_decompositions
from .formula_errors import lacks_derivative, refuse_missing_derivative, refused_formulas
from .joint_graph import (
    GradientDescriptor,
    GradientFlags,
    JointGraph,
    MissingDerivative,
    TangentDescriptor,
)
from .joint_recorder import JointRecorder
from .missing_derivatives import (
    DerivativeProbe,
    find_missing_derivatives,
)
from .region_gradients import run_region_operator
from .region_gradients.recording import run_nodes
from .region_gradients.undefined_gradients import Defined, GradientPaths, either
from .regions import clean_regions, keep_partial_writes
from .replay import without_autocast
from .tracing import cleaned_region, fake_mode_of, simplify
from .unsupported import Unsupported

aten = torch.ops.aten

_REFUSALS: tuple[type[Exception], ...] = (Unsupported, *DATA_DEPENDENT_ERRORS)


def trace_joint(
    functional: FunctionalGraph, *, decompositions: DecompositionTable | None = None
) -> JointGraph | None:
    """Run ``functional`` and its gradients on fake tensors, record both, decompose and clean up.

    Differentiated are the outputs that need gradients, with respect to the inputs whose descriptors say
    ``requires_grad``; None if autograd would record nothing: gradients are disabled, or no output needs any.
    Raises :class:`Unsupported` for what has no joint graph here, as an operator without a formula.
    """
    mode = fake_mode_of(functional.graph_module.graph)
    if mode is None or not _records(functional):
        return None
    table = default_decompositions() if decompositions is None else decompositions
    try:
        joint = _trace(functional, mode, table)
    except DATA_DEPENDENT_ERRORS as error:
        raise Unsupported("gradient whose shape depends on data", str(error)) from error
    if joint is None:
        return None
    simplify(joint.graph_module.graph, table, keep_copies=joint.read_as_eager)
    clean_regions(joint.graph_module, keep_partial_writes(table), cleaned_region)
    joint.graph_module.recompile()
    return joint


def _trace(
    functional: FunctionalGraph, mode: FakeTensorMode, table: DecompositionTable
) -> JointGraph | None:
    """The joint graph; if data decides a formula then traced again with custom operators' as operators."""
    try:
        return _trace_formulas(functional, mode, table)
    except _REFUSALS:
        if not has_custom_formulas(functional.graph_module):
            raise
    return JointTrace(functional, mode, table, gradient_operators=True).run()


def _trace_formulas(
    functional: FunctionalGraph, mode: FakeTensorMode, table: DecompositionTable
) -> JointGraph | None:
    """The joint graph; traced again with each operator probed where a derivative turns out missing."""
    try:
        return JointTrace(functional, mode, table).run()
    except RuntimeError as error:
        if not lacks_derivative(error):
            refuse_missing_derivative(error)
            raise
    try:
        probe = DerivativeProbe(functional.has_writes)
        return JointTrace(functional, mode, table, probe).run()
    except RuntimeError as error:
        refuse_missing_derivative(error)
        raise


def write_out_gradients(
    functional: FunctionalGraph, *, decompositions: DecompositionTable | None = None
) -> FunctionalGraph:
    """``functional`` with operators for what it asks of autograd: gradients through branches and loops."""
    graph = functional.graph_module.graph
    mode = fake_mode_of(graph)
    if mode is None or not graph.find_nodes(op="call_function", target=inner_gradients):
        return functional
    table = default_decompositions() if decompositions is None else decompositions
    trace = JointTrace(functional, mode, table)
    with trace.on_fake_tensors():
        trace.add_inputs()
        trace.recorder.finish(trace.recorder.nodes_in(trace.run_forward()))
    return replace(functional, graph_module=trace.recorder.module("FunctionalGraph"))


def _records(functional: FunctionalGraph) -> bool:
    enabled = torch.is_grad_enabled() or functional.enables_gradients
    return enabled and any(descriptor.requires_grad for descriptor in functional.inputs)


class JointTrace:
    """Runs a functional graph under torch's autograd, and records that."""

    def __init__(
        self,
        functional: FunctionalGraph,
        mode: FakeTensorMode,
        table: DecompositionTable,
        probe: DerivativeProbe | None = None,
        gradient_operators: bool = False,
    ) -> None:
        self.functional = functional
        self.mode = mode
        self.recorder = JointRecorder(
            table,
            gradient_operators=gradient_operators,
            marks_formulas=functional.read_as_eager,
        )
        if probe is not None:
            self.recorder.call = functools.partial(probe.call, self.recorder)
        self._values: dict[torch.fx.Node, Any] = {}
        self._reached: set[int] = set()  # inputs that a gradient may lead to

    def run(self) -> JointGraph | None:
        with self.on_fake_tensors():
            inputs = self.add_inputs()
            outputs = self.with_histories(self.run_forward(), inputs)
            constant = self._constant_outputs()
            differentiated = [
                i for i, value in enumerate(outputs) if has_gradient(value) and i not in constant
            ]
            if not differentiated:
                return None
            for value in outputs:
                if not isinstance(value, torch.Tensor):
                    self.recorder.nodes_in(value)  # not read from tangents, which forward has not
            positions = self._find_flags(outputs, differentiated, inputs)
            gradients = self.differentiate(outputs, differentiated, inputs)
            # others are zeros, in regions' stead
            found = {i: gradient for i, gradient in gradients.items() if i in self._reached}
            missing = find_missing_derivatives(outputs, differentiated, inputs)
            others = [i for i in _differentiable(inputs) if i not in found]
            found |= self._zeros_for(others, inputs, missing)
        return replace(self._result(outputs, differentiated, found, positions), missing=missing)

    def differentiate(
        self, results: Sequence[Any], differentiated: Sequence[int], inputs: Sequence[Any]
    ) -> dict[int, torch.Tensor]:
        """By position of an input: the gradient that it gets from those of the results ``differentiated``."""
        if not differentiated:
            return {}
        tangents = [self.add_tangent(i, results[i]) for i in differentiated]
        wanted = _differentiable(inputs)
        with self.recorder, refused_formulas():
            gradients: Sequence[torch.Tensor | None] = torch.autograd.grad(
                [results[i] for i in differentiated],
                [inputs[i] for i in wanted],
                tangents,
                allow_unused=True,
            )
        return {i: g for i, g in zip(wanted, gradients, strict=True) if g is not None}

    @contextlib.contextmanager
    def on_fake_tensors(self) -> Iterator[None]:
        """The modes in which the graph and its gradients run."""
        with (
            self.mode,
            torch.enable_grad(),
            torch.autograd.set_multithreading_enabled(False),
            torch.autograd.set_detect_anomaly(False),  # it looks for NaN among values
            without_autocast(self._device_types()),
        ):
            yield

    def _find_flags(
        self, outputs: list[Any], differentiated: Sequence[int], inputs: Sequence[Any]
    ) -> dict[tuple[int, int], int]:
        """Add to ``outputs`` a vector of what data decides of gradients; the positions in it.

        Gradients that are absent in some calls are masked where they meet others.
        """
        described = {d.graph_index: d for d in self.functional.outputs}
        positions: dict[tuple[int, int], int] = {}
        flags: dict[int, torch.Tensor] = {}
        with self.recorder, torch.no_grad():
            paths = GradientPaths(inputs)
            results: list[tuple[torch.Tensor, Defined]] = []
            for output in differentiated:
                found = paths.from_result(outputs[output])
                self._reached |= found.keys()
                descriptor = described[output]
                for i in sorted(descriptor.reached_in_some):
                    if i not in found:
                        raise Unsupported("gradient that depends on data and on writes")
                    defined = found[i]
                    if isinstance(defined, torch.Tensor):
                        flags.setdefault(id(defined), defined)
                        positions[output, i] = list(flags).index(id(defined))
                in_some = descriptor.reached_in_some
                is_there: Defined = not in_some or in_some != descriptor.reached
                for defined in found.values():
                    is_there = either(is_there, defined)
                results.append((outputs[output], is_there))
            paths.mask(results)
            if flags:
                outputs.append(torch.stack(list(flags.values())))
        return positions

    def add_inputs(self) -> list[Any]:
        """Leaves of their own for the placeholders; two that share storage stay apart."""
        inputs: list[Any] = []
        placeholders = self.functional.graph_module.graph.find_nodes(op="placeholder")
        for node, descriptor in zip(placeholders, self.functional.inputs, strict=True):
            value = node.meta["val"]
            if isinstance(value, torch.Tensor):
                value = value.detach().requires_grad_(descriptor.requires_grad)
            self._values[node] = value
            self.placeholder(node.name, value, node)
            inputs.append(value)
        return inputs

    def placeholder(self, name: str, value: Any, source: torch.fx.Node | None) -> torch.fx.Node:
        node = self.recorder.add_placeholder(name, value)
        if source is not None and "stack_trace" in source.meta:
            node.meta["stack_trace"] = source.meta["stack_trace"]
        return node

    def run_forward(self) -> list[Any]:
        module = self.functional.graph_module
        with self.recorder:
            return run_nodes(module, self.recorder, self._values, run_region_operator)

    def _device_types(self) -> list[str]:
        values = (node.meta.get("val") for node in self.functional.graph_module.graph.nodes)
        return sorted({v.device.type for v in values if isinstance(v, torch.Tensor)})

    def with_histories(self, outputs: list[Any], inputs: Sequence[Any]) -> list[Any]:
        """The outputs, with gradients of zero for those that have them in eager but depend on nothing here.

        So is what a program overwrites: it keeps its history.  Others have one that leads to no input, as
        what ``_foreach_mul`` makes of constants where it makes more of what has gradients.
        """
        completed = list(outputs)
        for descriptor in self.functional.outputs:
            index = descriptor.graph_index
            if index is None or not descriptor.requires_grad or descriptor.unrecorded:
                continue
            if has_gradient(outputs[index]):
                continue
            is_known = descriptor.reached is not None and not descriptor.reached_in_some
            if not is_known or (descriptor.reached and not self.functional.has_writes):
                raise Unsupported("result whose history is lost", f"output {descriptor.position}")
            node = self.recorder.node_of(outputs[index])
            value = outputs[index].detach()
            reached = [inputs[i] for i in sorted(descriptor.reached or ())]
            if not reached:
                reached = [torch.empty(0, requires_grad=True)]
            completed[index] = _ZeroGradients.apply((value,), *reached)  # type: ignore[no-untyped-call]
            self.recorder.know(completed[index], node)
        return completed

    def _zeros_for(
        self,
        wanted: Sequence[int],
        inputs: Sequence[Any],
        missing: Sequence[MissingDerivative],
    ) -> dict[int, torch.Tensor]:
        """Gradients of zero for inputs that have one in eager by what the program has overwritten since.

        In a program that writes nothing, or brings gradients of its own, eager has none here either, nor of
        an input of which the caller gets a view: that leads to the input without the graph.
        Inputs that only a missing derivative leads to take part too, so that backward raises.
        """
        reached = {i for derivative in missing for i in derivative.input_indices}
        functional = self.functional
        rules = any(is_gradient_rule(node.target) for node in functional.graph_module.graph.nodes)
        if functional.has_writes and not rules:
            computed = (d for d in functional.outputs if d.graph_index is not None)
            described = [d for d in computed if d.requires_grad]  # others get no gradient
            reached |= {i for descriptor in described for i in descriptor.reached or ()}
        with self.recorder, torch.no_grad():
            return {i: torch.zeros_like(inputs[i]) for i in wanted if i in reached}

    def _constant_outputs(self) -> set[int]:
        """The graph's outputs that have no gradients in eager."""
        return {
            descriptor.graph_index
            for descriptor in self.functional.outputs
            if descriptor.graph_index is not None and not descriptor.requires_grad
        }

    def add_tangent(
        self, index: int, output: torch.Tensor, *, requires_grad: bool = False
    ) -> torch.Tensor:
        """The output's gradient, laid out as the output, densely."""
        tangent = torch.empty_like(output, requires_grad=requires_grad)
        self.placeholder(f"tangent_{index}", tangent, None)
        return tangent

    def _result(
        self,
        outputs: list[Any],
        differentiated: list[int],
        gradients: Mapping[int, torch.Tensor],
        positions: Mapping[tuple[int, int], int],
    ) -> JointGraph:
        recorder = self.recorder
        order = sorted(gradients)
        results = [recorder.nodes_in(value) for value in outputs]  # some are sizes of data
        self._stride_as_promised(results)
        results += self.owned([gradients[i] for i in order])
        with self.mode:
            recorder.finish(results)
        return JointGraph(
            recorder.module("JointGraph"),
            self.functional.inputs,
            tuple(map(TangentDescriptor, differentiated)),
            self.functional.outputs,
            tuple(map(GradientDescriptor, order)),
            len(outputs),
            GradientFlags(len(outputs) - 1, positions) if positions else None,
            read_as_eager=self.functional.read_as_eager,
        )

    def _stride_as_promised(self, results: list[Any]) -> None:
        """Give results the strides of dims of one element that eager's have.

        Views that stand for ``as_strided`` have others: those of a pooled channels-last image.
        """
        (output,) = self.functional.graph_module.graph.find_nodes(op="output")
        for descriptor in self.functional.outputs:
            k = descriptor.graph_index
            if k is None or descriptor.kind is not OutputKind.USER_OUTPUT:
                continue
            node, promised = results[k], output.args[0][k]
            if not isinstance(node, torch.fx.Node) or not isinstance(promised, torch.fx.Node):
                continue
            found, wanted = node.meta["val"], promised.meta["val"]
            if _differs_where_one(found, wanted):
                with self.mode, torch.no_grad():
                    value = found.detach().as_strided(wanted.shape, wanted.stride())
                arguments = (node, list(wanted.shape), list(wanted.stride()))
                results[k] = self.recorder.append(aten.as_strided.default, arguments, {}, value)

    def owned(self, gradients: list[torch.Tensor]) -> list[torch.fx.Node]:
        """The gradients' nodes, each in memory of its own: the engine may keep and write what it gets."""
        taken = {storage_identity(v) for v in self._values.values() if isinstance(v, torch.Tensor)}
        taken |= {
            storage_identity(node.meta["val"])
            for node in self.recorder.graph.find_nodes(op="placeholder")
            if isinstance(node.meta["val"], torch.Tensor)
        }
        nodes = []
        for gradient in gradients:
            storage = storage_identity(gradient)
            if storage in taken:
                with self.recorder, torch.no_grad():
                    gradient = _copy(gradient)
            taken.add(storage)
            nodes.append(self.recorder.node_of(gradient))
        return nodes


def _differs_where_one(found: Any, wanted: Any) -> bool:
    """Whether two tensors of known layout have other strides in dims of one element, and those alone."""
    if not isinstance(found, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return False
    numbers = (*found.shape, *found.stride(), *wanted.shape, *wanted.stride())
    if any(type(number) is not int for number in numbers) or found.shape != wanted.shape:
        return False
    strides = list(zip(found.shape, found.stride(), wanted.stride(), strict=True))
    same_else = all(mine == its for count, mine, its in strides if count != 1)
    return same_else and found.stride() != wanted.stride()


def _copy(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient in memory of its own, expanded where it is: eager's of ``x.sum()`` has one element."""
    row, shape = gradient, gradient.shape
    for dim, (size, stride) in enumerate(zip(shape, gradient.stride(), strict=True)):
        if known_equal(stride, 0) and known_true(size > 1):
            row = aten.slice.Tensor(row, dim, 0, 1)
    copy: torch.Tensor = aten.clone.default(row)
    return copy if row is gradient else copy.expand(shape)


class _ZeroGradients(torch.autograd.Function):
    """Takes a value that depends on nothing, in a tuple, and the inputs that its gradient goes to."""

    @staticmethod
    def forward(ctx: Any, values: tuple[torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        ctx.inputs = inputs
        return values[0]

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[Any, ...]:
        return None, *map(torch.zeros_like, ctx.inputs)


def _differentiable(inputs: Sequence[Any]) -> list[int]:
    return [i for i, value in enumerate(inputs) if has_gradient(value)]


def has_gradient(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or is_unrecorded_view(value):
        return False
    return value.requires_grad
