"""Runs compiled forward and backward graphs as one function of torch's autograd."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from weft_functionalize import FunctionalGraph, symbols_of

from ._torch import (
    keeps_graph,
    packed_saved_tensors,
    packs_saved_tensors,
    stands_for_another,
    unpacked,
    without_transforms,
)
from .given_gradients import GivenGradients
from .joint_graph import PartitionedGraph
from .partial_backward import is_linear, partial_backward
from .partition import BackwardStage
from .replay import (
    GradientModeInterpreter,
    RandomState,
    with_random_state,
    without_autocast,
)

Program = Callable[..., Sequence[Any]]

CompileLater = Callable[[torch.fx.GraphModule], Program]
"""Compiles a graph that backward turns out to need, at that time: the graph has no symbolic sizes."""


def _run_operators(graph_module: torch.fx.GraphModule) -> Program:
    return graph_module.forward


class TrainingProgram:
    """Calls ``forward`` so that autograd calls ``backward``: takes user inputs, gives the graph's outputs.

    ``forward`` takes the user inputs of ``functional`` in order (lifted tensors are bound into it) and
    returns what ``partitioned.forward`` does; ``backward`` is called as ``partitioned.backward`` is.  Where
    ``forward`` has ``lend``, that is called: what is saved may then be memory that forward writes to again
    when backward has let go of it.
    Parameters are read from ``functional.lifted``.  The outputs belong to the caller's autograd graph:
    hooks, accumulation and ``retain_graph`` work as for any operator.  Gradients of gradients run the
    functional graph again operator by operator, with one warning.

    ``backward`` may be stages with their programs instead: each is a node of autograd's own, so that what
    waits for the gradients of one (hooks, the communication of data parallel training) runs before the next.
    Where only some outputs have a gradient, backward may be a graph without the others', compiled by
    ``compile_later`` the first time (see :mod:`.partial_backward`).
    """

    def __init__(
        self,
        functional: FunctionalGraph,
        partitioned: PartitionedGraph,
        forward: Program,
        backward: Program | Sequence[tuple[BackwardStage, Program]],
        compile_later: CompileLater = _run_operators,
    ) -> None:
        self._plan = _Plan(functional, partitioned, forward, backward, compile_later)
        self._lifted = tuple(functional.lifted[i] for i in self._plan.lifted_indices)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        arguments = (*self._lifted, *inputs)
        values = _Values()
        later: Any = None
        for stage in reversed(self._plan.stages[1:]):
            later = LaterStage.apply(stage, values, later, *stage.select(arguments))  # type: ignore[no-untyped-call]
        results: tuple[Any, ...] = CompiledFunction.apply(self._plan, values, later, *arguments)  # type: ignore[no-untyped-call]
        return results


class _Values:
    """What the stages of one backward pass hand on: inputs of the backward graph, then what stages kept."""

    def __init__(self) -> None:
        self.known: list[Any] | None = None
        # Arguments that eager gives no gradient this time.
        self.absent: frozenset[int] = frozenset()


class _Stage:
    """A stage with its program; ``arguments`` are the positions of what it computes the gradients of."""

    def __init__(self, stage: BackwardStage, program: Program, gradients: Sequence[int]) -> None:
        self.inputs = stage.inputs
        self._program = program
        self.arguments = tuple(gradients[k] for k in stage.gradients)

    def select(self, arguments: Sequence[Any]) -> list[Any]:
        return [arguments[k] for k in self.arguments]

    def run(self, values: _Values, is_last: bool) -> Sequence[Any]:
        """The gradients of ``arguments``, in order; the last stage lets go of what its program has read."""
        assert values.known is not None
        inputs = [values.known[k] for k in self.inputs]
        if is_last:
            values.known = None
        consume = getattr(self._program, "consume", None)
        if consume is None or not is_last or keeps_graph():
            results = self._program(*inputs)
        else:
            results = consume(inputs)
        count = len(self.arguments)
        if values.known is not None:
            values.known.extend(results[count:])
        if not values.absent:
            return results[:count]
        return [
            None if k in values.absent else gradient
            for k, gradient in zip(self.arguments, results, strict=False)
        ]


_Layout = tuple[tuple[int, ...], tuple[int, ...]]  # size and stride, in elements


@dataclass(frozen=True)
class _Tangent:
    """How the gradient of one output has to look in memory.

    ``fixed`` is its layout, None where it differs from call to call: as ``empty_like`` of the output.
    """

    output_index: int
    fixed: _Layout | None
    dtype: torch.dtype
    device: torch.device

    def layout(self, output: torch.Tensor) -> _Layout:
        if self.fixed is not None:
            return self.fixed
        like = torch.empty_like(output, device="meta", requires_grad=False)
        return tuple(like.shape), like.stride()

    def prepare(self, gradient: torch.Tensor | None, layout: _Layout) -> torch.Tensor:
        shape, stride = layout
        if gradient is None:
            return torch.empty_strided(shape, stride, dtype=self.dtype, device=self.device).zero_()
        if gradient.stride() == stride and not gradient.is_conj() and not gradient.is_neg():
            return gradient
        prepared = torch.empty_strided(shape, stride, dtype=self.dtype, device=self.device)
        return prepared.copy_(gradient)

    def prepare_any(self, gradient: torch.Tensor | None, layout: _Layout) -> torch.Tensor:
        """The same for a gradient that stands for another, such as a batched one: not by a write."""
        if gradient is None:
            return self.prepare(gradient, layout)
        if gradient.layout is not torch.strided:
            gradient = gradient.to_dense()
        _, stride = layout
        order = sorted(range(len(stride)), key=lambda k: -stride[k])
        back = sorted(range(len(order)), key=order.__getitem__)
        return gradient.permute(order).contiguous().permute(back)


def _saved_numbers(partitioned: PartitionedGraph) -> frozenset[int]:
    """Which of the saved values are symbolic numbers, by position."""
    given = partitioned.backward.graph.find_nodes(op="placeholder")[: len(partitioned.saved)]
    return frozenset(
        k for k, node in enumerate(given) if not isinstance(node.meta["val"], torch.Tensor)
    )


def _whole_backward(partitioned: PartitionedGraph) -> BackwardStage:
    """Backward as the one stage that takes everything and gives every gradient."""
    taken = range(len(partitioned.saved) + len(partitioned.tangents))
    given = range(len(partitioned.gradients))
    return BackwardStage(partitioned.backward, tuple(taken), tuple(given))


def _devices(nodes: Iterable[torch.fx.Node]) -> set[torch.device]:
    values = (node.meta["val"] for node in nodes)
    return {value.device for value in values if isinstance(value, torch.Tensor)}


def _draws_numbers(graph: torch.fx.Graph) -> bool:
    """Whether the graph draws from torch's random numbers."""
    return any(
        torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        for node in graph.nodes
    )


class _Plan:
    """What each call of one compiled graph has to do, decided when the graph is compiled.

    The function's tensor arguments are the lifted tensors that backward reads or has gradients of, at
    ``lifted_indices`` of the graph's inputs, then the user inputs.
    """

    def __init__(
        self,
        functional: FunctionalGraph,
        partitioned: PartitionedGraph,
        forward: Program,
        backward: Program | Sequence[tuple[BackwardStage, Program]],
        compile_later: CompileLater,
    ) -> None:
        self.functional = functional
        self.forward = forward
        self.lending_forward: Program = getattr(forward, "lend", forward)
        users = functional.user_input_indices
        read = {s.input_index for s in partitioned.saved if s.input_index is not None}
        read |= {gradient.input_index for gradient in partitioned.gradients}
        self.lifted_indices = tuple(i for i in functional.lifted if i in read)
        self.lifted_count = len(self.lifted_indices)
        order = {index: k for k, index in enumerate((*self.lifted_indices, *users))}
        self.argument_indices = tuple(order)
        self.output_count = partitioned.output_count
        self.saved = tuple(
            (False, s.output_index or 0) if s.input_index is None else (True, order[s.input_index])
            for s in partitioned.saved
        )
        self.numbers = _saved_numbers(partitioned)
        only_kept = (
            k
            for k, (is_argument, index) in enumerate(self.saved)
            if not is_argument and index >= self.output_count
        )
        self.private = self.numbers.union(only_kept)  # what nobody but backward has
        self.tangents = tuple(
            _tangent(partitioned, position, tangent.output_index)
            for position, tangent in enumerate(partitioned.tangents)
        )
        differentiated = {tangent.output_index for tangent in self.tangents}
        self.returned_count = self.output_count - (partitioned.flags is not None)
        self.constants = tuple(i for i in range(self.returned_count) if i not in differentiated)
        self.gradients = tuple(order[g.input_index] for g in partitioned.gradients)
        self.given = GivenGradients(partitioned, self.gradients)
        if callable(backward):
            backward = [(_whole_backward(partitioned), backward)]
        self.stages = tuple(_Stage(stage, run, self.gradients) for stage, run in backward)
        self.argument_count = len(order)
        self._partitioned, self._compile_later = partitioned, compile_later
        self._partial: dict[frozenset[int], _Stage | None] = {}
        self._is_linear = is_linear(functional)
        self.warned = False
        self._examine(functional, differentiated)

    def _examine(self, functional: FunctionalGraph, differentiated: set[int]) -> None:
        """What the forward graph writes to, where it runs and whether it draws random numbers."""
        graph = functional.graph_module.graph
        placeholders = graph.find_nodes(op="placeholder")
        free = _without_influence(functional, differentiated)
        mutated = {i for i, descriptor in enumerate(functional.inputs) if descriptor.mutated}
        sized = any(symbols_of(placeholders[i].meta["val"]) for i in mutated)
        self.replayable = mutated <= free and not sized
        self.kept = tuple(
            k
            for k, index in enumerate(self.argument_indices)
            if self.replayable and index not in mutated
        )
        devices = _devices(placeholders)
        self.device_types = sorted({device.type for device in devices})
        self.cuda_devices = sorted(d.index or 0 for d in devices if d.type == "cuda")
        self.random = _draws_numbers(graph)

    def is_unreached(self, gradients: Sequence[Any]) -> bool:
        """Whether no output has a gradient, so that no input has one and nothing saved matters.

        Autograd calls backward so when all that leads to it is another compiled graph, whose output with a
        gradient does not depend on this one's; eager's nodes would not have been reached.
        """
        return self._is_linear and all(gradients[t.output_index] is None for t in self.tangents)

    def partial_stage(self, gradients: Sequence[Any]) -> _Stage | None:
        """Backward for the outputs that have gradients; None where that is the whole, or as good.

        An output that has gradients in some calls only may do without: backward is made for that.
        """
        if not self._is_linear:
            return None
        missing = frozenset(
            k
            for k, tangent in enumerate(self.tangents)
            if gradients[tangent.output_index] is None
            and tangent.output_index not in self.given.in_some_calls
        )
        if not missing:
            return None
        if missing not in self._partial:
            self._partial[missing] = self._make_partial(missing)
        return self._partial[missing]

    def _make_partial(self, missing: frozenset[int]) -> _Stage | None:
        present = {t.output_index for k, t in enumerate(self.tangents) if k not in missing}
        never = self.given.never(present)
        dropped = [k for k, argument in enumerate(self.gradients) if argument in never]
        stage = partial_backward(self._partitioned, missing, dropped)
        if stage is None:
            return None
        placeholders = stage.graph_module.graph.find_nodes(op="placeholder")
        if any(symbols_of(node.meta["val"]) for node in placeholders):
            return _Stage(stage, stage.graph_module.forward, self.gradients)
        return _Stage(stage, self._compile_later(stage.graph_module), self.gradients)

    def operator_stage(self) -> _Stage:
        """Backward as the one stage whose program is its graph's operators."""
        whole = _whole_backward(self._partitioned)
        return _Stage(whole, GradientModeInterpreter(whole.graph_module).run, self.gradients)

    def absent(self, gradients: Sequence[Any], flags: torch.Tensor | None) -> frozenset[int]:
        """The arguments that eager gives no gradient, by the outputs' gradients and what data decided."""
        given = {t.output_index for t in self.tangents if gradients[t.output_index] is not None}
        return self.given.absent(given, flags)


def _tangent(partitioned: PartitionedGraph, position: int, output_index: int) -> _Tangent:
    placeholders = partitioned.backward.graph.find_nodes(op="placeholder")
    value = placeholders[len(partitioned.saved) + position].meta["val"]
    fixed = None if symbols_of(value) else (tuple(value.shape), tuple(value.stride()))
    return _Tangent(output_index, fixed, value.dtype, value.device)


def _without_influence(functional: FunctionalGraph, outputs: Set[int]) -> set[int]:
    """Indices of the inputs on which none of ``outputs`` depends."""
    graph = functional.graph_module.graph
    (output,) = graph.find_nodes(op="output")
    returned: Any = output.args[0]
    pending = [returned[index] for index in outputs]
    seen = set(pending)
    while pending:
        fresh = [node for node in _influences(pending.pop()) if node not in seen]
        seen.update(fresh)
        pending += fresh
    placeholders = graph.find_nodes(op="placeholder")
    return {index for index, node in enumerate(placeholders) if node not in seen}


def _influences(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments that matter for what is differentiated of ``node``."""
    if node.target is torch.ops.aten._native_batch_norm_legit_functional.default and node.args[5]:
        running = set(node.args[3:5])  # in training they are only carried on
        return [argument for argument in node.all_input_nodes if argument not in running]
    return node.all_input_nodes


def _version(value: Any) -> int:
    """How often a tensor was written to; 0 for what does not count writes."""
    if not isinstance(value, torch.Tensor) or value.is_inference():
        return 0
    return value._version


class CompiledFunction(torch.autograd.Function):
    """One compiled graph in autograd, whose backward is the first of the plan's stages."""

    @staticmethod
    def forward(
        ctx: Any, plan: _Plan, values: _Values, later: Any, *arguments: Any
    ) -> tuple[Any, ...]:
        ctx.plan, ctx.values = plan, values
        ctx.set_materialize_grads(False)
        ctx.kept = [arguments[k] for k in plan.kept]
        ctx.versions = [_version(value) for value in ctx.kept]
        ctx.random_state = RandomState(plan.cuda_devices) if plan.random else None
        packs = packs_saved_tensors()  # then others see what is saved, and may keep it
        forward = plan.forward if packs else plan.lending_forward
        results = forward(*arguments[plan.lifted_count :])
        saved = [
            arguments[index] if is_argument else results[index] for is_argument, index in plan.saved
        ]
        apart = plan.numbers if packs else plan.private
        ctx.apart = {k: saved[k] for k in apart}
        saved = [value for k, value in enumerate(saved) if k not in apart]
        ctx.save_for_backward(*saved)
        ctx.saved_versions = [_version(value) for value in saved]
        ctx.layouts = [tangent.layout(results[tangent.output_index]) for tangent in plan.tangents]
        index = plan.given.flags_index
        ctx.flags = None if index is None else results[index]
        constants = list(plan.constants)
        if plan.given.in_some_calls:
            constants += plan.given.without_gradients(ctx.flags)
        if constants:
            ctx.mark_non_differentiable(*(results[index] for index in constants))
        return tuple(results[: plan.returned_count])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        plan: _Plan = ctx.plan
        if plan.is_unreached(gradients):
            return _placed(plan, (), ())
        if torch.is_grad_enabled() or any(
            g is not None and stands_for_another(g) for g in gradients
        ):
            return _backward_by_operators(ctx, gradients)
        tangents = (
            tangent.prepare(gradients[tangent.output_index], layout)
            for tangent, layout in zip(plan.tangents, ctx.layouts, strict=True)
        )
        partial = plan.partial_stage(gradients)
        ctx.values.known = [*_take_saved(ctx, partial), *tangents]
        ctx.values.absent = plan.absent(gradients, ctx.flags)
        if partial is not None:
            computed = partial.run(ctx.values, is_last=True)
            return _placed(plan, partial.arguments, computed)
        first = plan.stages[0]
        computed = first.run(ctx.values, is_last=len(plan.stages) == 1)
        return _placed(plan, first.arguments, computed)


def _take_saved(ctx: Any, partial: _Stage | None) -> list[Any]:
    """The saved values; None may stand for those that ``partial`` does not need.

    ``ctx`` holds what only backward reads no longer, unless backward may run again: autograd would hold it
    until all gradients are computed.
    """
    try:
        tensors = iter(ctx.saved_tensors)
    except RuntimeError:
        if partial is None:
            raise
        tensors = iter(_needed_tensors(ctx, frozenset(partial.inputs)))
    apart = ctx.apart
    if apart is None:  # an earlier backward came to an error
        raise RuntimeError("Trying to backward through the graph a second time")
    if not keeps_graph():
        ctx.apart = None
    return [apart[k] if k in apart else next(tensors) for k in range(len(ctx.plan.saved))]


def _needed_tensors(ctx: Any, needed: frozenset[int]) -> list[torch.Tensor | None]:
    """The tensors that autograd saved, each checked by itself, None for those that nobody needs.

    Raises what eager does: for one that is needed and was written to, and where all are freed.
    """
    plan: _Plan = ctx.plan
    positions = [k for k in range(len(plan.saved)) if k not in (ctx.apart or ())]
    tensors: list[torch.Tensor | None] = []
    for k, packed, version in zip(
        positions, packed_saved_tensors(ctx), ctx.saved_versions, strict=True
    ):
        is_argument, _ = plan.saved[k]
        tensor = None
        if k in needed:
            tensor = unpacked(packed, is_argument)
            _check_version(tensor, version)
        tensors.append(tensor)
    return tensors


def _check_version(value: Any, expected: int) -> None:
    """Raise eager's error for a tensor that was written to."""
    if _version(value) != expected:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: {tuple(value.shape)} is at version {_version(value)}; expected {expected}"
        )


class LaterStage(torch.autograd.Function):
    """A later stage of backward: takes what it computes the gradients of, gives a tensor without elements.

    That tensor ties it to the node of the stage before, which runs first.
    """

    @staticmethod
    def forward(ctx: Any, stage: _Stage, values: _Values, later: Any, *tensors: Any) -> Any:
        ctx.stage, ctx.values, ctx.is_last = stage, values, later is None
        ctx.set_materialize_grads(False)
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, _: Any) -> tuple[Any, ...]:
        if ctx.values.known is None:  # the first stage has run all operators
            return (None,) * (3 + len(ctx.stage.arguments))
        computed = ctx.stage.run(ctx.values, ctx.is_last)
        return None, None, None, *computed


def _placed(plan: _Plan, positions: Sequence[int], gradients: Sequence[Any]) -> tuple[Any, ...]:
    """What backward of :class:`CompiledFunction` returns: gradients at arguments' positions, else None."""
    returned: list[Any] = [None] * plan.argument_count
    for position, gradient in zip(positions, gradients, strict=True):
        returned[position] = gradient
    return None, None, None, *returned


def _backward_by_operators(ctx: Any, gradients: Sequence[Any]) -> tuple[Any, ...]:
    """The gradients as differentiable results: the functional graph runs again on the kept inputs.

    The inputs, and thus what forward computes, are not what a transform around backward is about.
    """
    plan: _Plan = ctx.plan
    if not torch.is_grad_enabled() and not _can_run_again(ctx):
        return _backward_graph_by_operators(ctx, gradients)
    every = _inputs_again(ctx)
    arguments = [every[index] for index in plan.argument_indices]
    wanted = [arguments[k] for k in plan.gradients]
    with (
        torch.enable_grad(),
        without_autocast(plan.device_types),
        with_random_state(ctx.random_state),
        without_transforms(),
    ):
        results = GradientModeInterpreter(plan.functional.graph_module).run(*every)
    given = [t.output_index for t in plan.tangents if gradients[t.output_index] is not None]
    used = [index for index in given if results[index].requires_grad]  # others have zeros in eager
    computed: Sequence[Any] = torch.autograd.grad(
        [results[index] for index in used],
        wanted,
        [gradients[index] for index in used],
        create_graph=torch.is_grad_enabled(),
        allow_unused=True,
    )
    absent = plan.absent(gradients, ctx.flags)
    computed = [
        None if position in absent else torch.zeros_like(like) if gradient is None else gradient
        for position, like, gradient in zip(plan.gradients, wanted, computed, strict=True)
    ]
    ctx.values.known = None
    if not keeps_graph():
        ctx.apart = None
    return _placed(plan, plan.gradients, computed)


def _can_run_again(ctx: Any) -> bool:
    """Whether the inputs that the functional graph reads are what they were in forward."""
    current = map(_version, ctx.kept)
    return bool(ctx.plan.replayable) and all(map(operator.eq, current, ctx.versions))


def _backward_graph_by_operators(ctx: Any, gradients: Sequence[Any]) -> tuple[Any, ...]:
    """The gradients by the backward graph's operators: for gradients that no program can read."""
    plan: _Plan = ctx.plan
    tangents = (
        tangent.prepare_any(gradients[tangent.output_index], layout)
        for tangent, layout in zip(plan.tangents, ctx.layouts, strict=True)
    )
    stage = plan.operator_stage()
    ctx.values.known = [*_take_saved(ctx, None), *tangents]
    ctx.values.absent = plan.absent(gradients, ctx.flags)
    with without_autocast(plan.device_types):
        return _placed(plan, stage.arguments, stage.run(ctx.values, is_last=True))


def _inputs_again(ctx: Any) -> list[Any]:
    """The functional graph's inputs as they were in forward; tensors with gradients as own views.

    Views of their own keep apart the gradients of inputs that are computed from one another.  Raises
    RuntimeError where an input was written to since.
    """
    plan: _Plan = ctx.plan
    _ = ctx.saved_tensors  # eager's errors: freed already, or written to
    if not plan.replayable:
        raise RuntimeError(
            "weft: gradients of gradients of a graph that writes to its inputs are not supported; "
            "leave the function that is differentiated twice uncompiled"
        )
    if torch.is_grad_enabled() and not plan.warned:
        plan.warned = True
        warnings.warn(
            "weft: gradients of gradients run the compiled graph's operators in eager PyTorch",
            stacklevel=2,
        )
    given = {plan.argument_indices[k] for k in plan.kept}
    every = [
        None if index in given else _stand_in(plan.functional, index)
        for index in range(len(plan.functional.inputs))
    ]
    for k, value, version in zip(plan.kept, ctx.kept, ctx.versions, strict=True):
        _check_version(value, version)
        if isinstance(value, torch.Tensor) and value.requires_grad:
            with torch.enable_grad():
                value = value.view_as(value)
        every[plan.argument_indices[k]] = value
    return every


def _stand_in(functional: FunctionalGraph, index: int) -> Any:
    """A value for an input that no gradient depends on."""
    if index in functional.lifted:
        return functional.lifted[index]
    value = functional.graph_module.graph.find_nodes(op="placeholder")[index].meta["val"]
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device=value.device
    ).zero_()
