"""What each call of one compiled graph with gradients has to do, decided when the graph is compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from weft_functionalize import FunctionalGraph, OutputKind, keep_history, symbols_of

from .derivation import Derivation
from .expected_backward import ExpectedBackward
from .given_gradients import GivenGradients
from .held_plan import HeldPlan, held_inputs
from .joint_graph import PartitionedGraph
from .missing_derivatives import MissingDerivatives
from .partial_backward import is_linear, partial_backward
from .partition import BackwardSegment
from .random_state import drops_nothing
from .repeated_backward import RepeatedBackward
from .replay import GradientModeInterpreter, run_operators
from .saved_layout import SavedLayout, gather
from .segments import Program, Segment, segments_of
from .separate_edges import PartlyReached, goes_to_all_leaves, leads_to_any

CompileLater = Callable[[torch.fx.GraphModule], Program]
"""Compiles a graph that backward turns out to need, at that time: the graph has no symbolic sizes."""


Layout = tuple[tuple[int, ...], tuple[int, ...]]  # size and stride, in elements


@dataclass(frozen=True)
class Tangent:
    """How the gradient of one output has to look in memory.

    ``fixed`` is its layout, None where it differs from call to call: as ``empty_like`` of the output.
    """

    output_index: int
    fixed: Layout | None
    dtype: torch.dtype
    device: torch.device

    def layout(self, output: torch.Tensor) -> Layout:
        if self.fixed is not None:
            return self.fixed
        like = torch.empty_like(output, device="meta", requires_grad=False)
        return tuple(like.shape), like.stride()

    def prepare(self, gradient: torch.Tensor | None, layout: Layout) -> torch.Tensor:
        shape, stride = layout
        if gradient is None:
            return torch.empty_strided(shape, stride, dtype=self.dtype, device=self.device).zero_()
        if gradient.stride() == stride and not gradient.is_conj() and not gradient.is_neg():
            return gradient
        prepared = torch.empty_strided(shape, stride, dtype=self.dtype, device=self.device)
        return prepared.copy_(gradient)

    def prepare_any(self, gradient: torch.Tensor | None, layout: Layout) -> torch.Tensor:
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


def _whole_backward(partitioned: PartitionedGraph) -> BackwardSegment:
    """Backward as the one segment that takes everything and gives every gradient."""
    taken = range(len(partitioned.saved) + len(partitioned.tangents))
    given = range(len(partitioned.gradients))
    return BackwardSegment(partitioned.backward, tuple(taken), tuple(given))


def _devices(nodes: Iterable[torch.fx.Node]) -> set[torch.device]:
    values = (node.meta["val"] for node in nodes)
    return {value.device for value in values if isinstance(value, torch.Tensor)}


def _draws(module: torch.fx.GraphModule) -> list[Any]:
    """The operators that draw from torch's random numbers, in order, those of regions last.

    Attention without dropout draws none: to ask for the generators' states takes as long as several launches.
    """
    graphs = (m.graph for m in module.modules() if isinstance(m, torch.fx.GraphModule))
    return [
        node.target
        for graph in graphs
        for node in graph.nodes
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        and not drops_nothing(node.target, node.args, node.kwargs)
    ]


class Plan:
    """What each call of one compiled graph has to do, decided when the graph is compiled.

    The function's tensor arguments are the lifted tensors that backward reads or has gradients of, or that
    the graph reads and writes to, at ``lifted_indices`` of the graph's inputs, then the user inputs.  Where
    there are no gradients, those that could have some are arguments too.
    """

    def __init__(
        self,
        functional: FunctionalGraph,
        partitioned: PartitionedGraph,
        forward: Program,
        backward: Program | Sequence[tuple[BackwardSegment, Program]],
        compile_later: CompileLater,
        derivation: Derivation | None = None,
        expected: ExpectedBackward | None = None,
    ) -> None:
        self.functional = functional
        self.derivation = derivation or Derivation(functional)
        # Backward with ``create_graph`` by programs, of a context and the gradients; None by operators only.
        self.differentiable_backward: Callable[..., tuple[Any, ...] | None] | None = None
        self.forward_graph = partitioned.forward.graph
        self.placeholders = functional.graph_module.graph.find_nodes(op="placeholder")
        self.forward = forward
        self.donating_forward: Program = getattr(forward, "donate", forward)
        users = functional.user_input_indices
        read = {s.input_index for s in partitioned.saved if s.input_index is not None}
        read |= {gradient.input_index for gradient in partitioned.gradients}
        self._differentiated = {tangent.output_index for tangent in partitioned.tangents}
        mutated = {i for i, descriptor in enumerate(functional.inputs) if descriptor.mutated}
        read |= mutated - _without_influence(functional, self._differentiated, _influences)
        if not partitioned.gradients:  # results that lead nowhere have gradients by what has some
            read |= {i for i in functional.lifted if functional.inputs[i].requires_grad}
        self.lifted_indices = tuple(i for i in functional.lifted if i in read)
        self.lifted_count = len(self.lifted_indices)
        order = {index: k for k, index in enumerate((*self.lifted_indices, *users))}
        self.argument_indices = tuple(order)
        self.missing = MissingDerivatives(partitioned.missing, self.argument_indices)
        self._examine_results(functional, partitioned, order)
        self.gradients = tuple(order[g.input_index] for g in partitioned.gradients)
        self.given = GivenGradients(partitioned, self.gradients)
        self.leads_nowhere = not self.gradients and not self.missing.arguments
        self._expected: tuple[frozenset[int], Segment] | None = None
        self._set_segments(partitioned, backward, compile_later, expected)
        self.argument_count = len(order)
        self.edges = self._edges()
        self.tensor_inputs = tuple(k for k in self.edges if k >= self.lifted_count)
        self.take_tensor_inputs = gather(self.tensor_inputs)
        # Arguments that have edges of their own, if they were computed; backward in segments has others.
        reached = self.given.partly_reached() if len(self.segments) == 1 else {}
        devices = (tangent.device for tangent in self.tangents)
        device = next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
        self.partly_reached = PartlyReached(reached, device, self._recorded_writes)
        self._partitioned, self._compile_later = partitioned, compile_later
        self._partial: dict[tuple[frozenset[int], frozenset[int], bool], Segment | None] = {}
        self.repeated = RepeatedBackward(partitioned)
        self._kept_for_others: dict[frozenset[int], Set[int]] = {}
        self._is_over: dict[frozenset[int], bool] = {}
        self._stages: dict[tuple[frozenset[int], bool], Segment | None] = {}
        self._is_linear = is_linear(functional)
        self._leads_apart = len(self.tangents) > 1 and bool(self.given.partly_reached())
        self.warned = False
        self._examine(functional)

    def _set_segments(
        self,
        partitioned: PartitionedGraph,
        backward: Program | Sequence[tuple[BackwardSegment, Program]],
        compile_later: CompileLater,
        expected: ExpectedBackward | None,
    ) -> None:
        """Backward's segments; the whole is compiled only if it runs where another is ``expected``."""
        if not callable(backward):
            self.segments = segments_of(backward, self.gradients)
            return
        whole = _whole_backward(partitioned)
        if expected is None:
            self.segments = (Segment(whole, backward, self.gradients),)
            return
        make = functools.partial(compile_later, whole.graph_module)
        self.segments = (Segment(whole, None, self.gradients, make),)
        part = Segment(expected.segment, backward, self.gradients)
        self._expected = expected.missing, part

    def _examine_results(
        self, functional: FunctionalGraph, partitioned: PartitionedGraph, order: Mapping[int, int]
    ) -> None:
        """What forward saves, and which results have gradients or are inputs' new values.

        ``order`` has the arguments' positions by the graph's inputs.
        """
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
        aliased = self._held_by_views(functional)
        self._saved_layout = SavedLayout(self.saved, len(order), self.private, aliased)
        self._packed_layout = SavedLayout(self.saved, len(order), self.numbers)
        self.tangents = tuple(
            _tangent(partitioned, position, tangent.output_index)
            for position, tangent in enumerate(partitioned.tangents)
        )
        layouts = [tangent.fixed for tangent in self.tangents]
        self._fixed_layouts = None if None in layouts else layouts
        self.returned_count = self.output_count - (partitioned.flags is not None)
        numbers = {d.graph_index for d in partitioned.outputs if d.kind is OutputKind.NUMBER}
        apart = self._differentiated | numbers  # autograd is told nothing of a number
        self.constants = tuple(i for i in range(self.returned_count) if i not in apart)
        self.mutated = tuple(
            (output, functional.lifted.get(index), order.get(index, 0))
            for output, index in functional.mutated_inputs.items()
        )
        held = held_inputs(functional.outputs)
        # The new values that eager's autograd holds are in memory that others may write to by ``.data``.
        self.held_news = {
            output: (lifted, position)
            for (output, index), (_, lifted, position) in zip(
                functional.mutated_inputs.items(), self.mutated, strict=True
            )
            if index in held and (lifted is not None or index in order)
        }
        self.written_results = functional.written_results
        self._recorded_writes = self._differentiated & functional.mutated_inputs.keys()

    def _edges(self) -> dict[int, int]:
        """The edges of the function's node in autograd's graph, by the positions of the tensor arguments.

        A later segment's tensor has an edge of its own, before theirs.
        """
        later = int(len(self.segments) > 1)
        tensors = [
            k
            for k, index in enumerate(self.argument_indices)
            if isinstance(self.placeholders[index].meta["val"], torch.Tensor)
        ]
        return {k: later + number for number, k in enumerate(tensors)}

    def _examine(self, functional: FunctionalGraph) -> None:
        """What the forward graph writes to, where it runs and whether it draws random numbers."""
        graph = functional.graph_module.graph
        placeholders = graph.find_nodes(op="placeholder")
        free = _without_influence(functional, self._differentiated, _influences)
        unread = _without_influence(functional, self._differentiated, _values_read)
        mutated = {i for i, descriptor in enumerate(functional.inputs) if descriptor.mutated}
        self.writes = bool(mutated) or bool(functional.written_results)
        # What no gradient depends on need not be kept, unless its size or its history counts.
        counts = {
            i
            for i in mutated
            if functional.inputs[i].requires_grad or symbols_of(placeholders[i].meta["val"])
        }
        free -= counts
        self.replayable = mutated - free <= set(self.argument_indices)
        # A saved program has no captured graph.
        has_source = bool(functional.source.graph.find_nodes(op="placeholder"))
        self.runs_again = self.replayable and has_source
        self.kept = tuple(
            k
            for k, index in enumerate(self.argument_indices)
            if self.replayable and index not in mutated & free
        )
        self.position_kept = {k: position for position, k in enumerate(self.kept)}
        self.take_kept = gather(self.kept)
        # Those of the arguments kept that are written to, and whether their values are read before.
        self.overwritten = {
            k: index not in unread
            for k in self.kept
            if (index := self.argument_indices[k]) in mutated
        }
        self.held = HeldPlan(functional, self.argument_indices, self.position_kept)
        tangents = (tangent.output_index for tangent in self.tangents)
        self.always_raises = self.held.always_raises(tangents, self.gradients)
        devices = _devices(placeholders)
        self.device_types = sorted({device.type for device in devices})
        self.cuda_devices = sorted(d.index or 0 for d in devices if d.type == "cuda")
        drawn = _draws(functional.graph_module)
        self.random = bool(drawn)
        # A code generator's own random operators give other numbers.
        self.draws_alike = drawn == _draws(self._partitioned.forward)

    def written_in_place(
        self, results: Sequence[Any], arguments: Sequence[Any]
    ) -> dict[int, torch.Tensor]:
        """The results that are the very inputs whose new values they are, by position."""
        return {
            output: results[output]
            for output, lifted, position in self.mutated
            if results[output] is (arguments[position] if lifted is None else lifted)
        }

    def _held_by_views(self, functional: FunctionalGraph) -> tuple[int, ...]:
        """What is saved of arguments that may get other memory, of which eager's autograd holds views."""
        if not functional.read_as_eager:
            return ()
        return tuple(
            k
            for k, (is_argument, index) in enumerate(self.saved)
            if is_argument and functional.inputs[self.argument_indices[index]].held_by_views
        )

    def results_to_save(self, results: Sequence[Any], arguments: Sequence[Any]) -> Sequence[Any]:
        """Forward's ``results`` as they are saved, where no hooks see what is saved before it is there.

        The new value of an argument that eager's autograd holds is saved where it will be.
        """
        if not self.held_news:
            return results
        found = [*results]
        for output, (lifted, position) in self.held_news.items():
            given = arguments[position] if lifted is None else lifted
            if given is not results[output] and given.stride() == results[output].stride():
                found[output] = given.data  # to which no writes are counted
        return found

    def saved_layout(self, *, is_packed: bool) -> SavedLayout:
        """Where saved values are; ``is_packed``: hooks are given what autograd saves."""
        return self._packed_layout if is_packed else self._saved_layout

    def tangent_layouts(self, results: Sequence[Any]) -> Sequence[Layout | None]:
        """The layout that the gradient of each result with one has to have."""
        if self._fixed_layouts is not None:
            return self._fixed_layouts
        return [tangent.layout(results[tangent.output_index]) for tangent in self.tangents]

    def is_unreached(self, present: Set[int]) -> bool:
        """Whether no output has a gradient, so that no input has one and nothing saved matters.

        Autograd calls backward so when all that leads to it is another compiled graph, whose output with a
        gradient does not depend on this one's; eager's nodes would not have been reached.
        """
        return self._is_linear and not present

    def present(self, gradients: Sequence[Any]) -> frozenset[int]:
        """The tangents that are there, by position."""
        given = (k for k, t in enumerate(self.tangents) if gradients[t.output_index] is not None)
        return frozenset(given)

    def unvisited(self, ctx: Any, present: Set[int]) -> frozenset[int]:
        """Those of the tangents ``present`` that lead to nothing that the running backward is asked for.

        ``torch.autograd.grad`` of some arguments asks for these alone: eager visits no node of such a result.
        """
        if not self._leads_apart or goes_to_all_leaves():
            return frozenset()
        return frozenset(
            k
            for k in present
            if not leads_to_any(ctx, self.given.reached_by(self.tangents[k].output_index))
        )

    def kept_for_others(self, released: frozenset[int]) -> Set[int]:
        """The saved values that a later backward may read, of other tangents than those ``released``."""
        if not self._is_linear:
            return frozenset()
        if released not in self._kept_for_others:
            self._kept_for_others[released] = self.repeated.keeps(released) | self.numbers
        return self._kept_for_others[released]

    def is_over(self, released: frozenset[int]) -> bool:
        """Whether backward of any tangents would raise, as those ``released`` had theirs."""
        if released not in self._is_over:
            every = range(len(self.tangents))
            self._is_over[released] = all(self.repeated.meets(released, {k}) for k in every)
        return self._is_over[released]

    def partial_stage(self, present: frozenset[int], *, is_repeated: bool) -> Segment | None:
        """Backward for the tangents that are there; None where that is the whole, or as good.

        An output that has gradients in some calls only may do without: backward is made for that.
        ``is_repeated``: only what the tangents that are there need can be read.
        """
        key = present, is_repeated
        if key not in self._stages:
            self._stages[key] = self._choose_stage(present, is_repeated)
        return self._stages[key]

    def _choose_stage(self, present: frozenset[int], is_repeated: bool) -> Segment | None:
        if not self._is_linear and (is_repeated or self._expected is None):
            return None
        missing = frozenset(
            k
            for k, tangent in enumerate(self.tangents)
            if k not in present
            and (is_repeated or tangent.output_index not in self.given.in_some_calls)
        )
        if not missing and not is_repeated:
            return None
        absent, expected = self._expected or (None, None)
        if missing == absent or not self._is_linear:
            return expected if missing == absent else None
        part = self._part(missing, frozenset(), only_present=is_repeated)
        if part is None and absent is not None and absent <= missing:
            return expected
        return part

    def leading_to(self, wanted: Set[int], present: frozenset[int]) -> frozenset[int]:
        """The tangents ``present`` that lead to any of the arguments ``wanted``."""
        leading = self.given.leading_to(wanted)
        return frozenset(k for k in present if self.tangents[k].output_index in leading)

    def smallest_stage(self, present: Set[int], wanted: Set[int]) -> Segment | None:
        """Backward from tangents ``present`` to arguments ``wanted``; None for the whole or unknown."""
        missing = frozenset(k for k in range(len(self.tangents)) if k not in present)
        unwanted = frozenset(self.gradients) - wanted
        if not self._is_linear or len(self.segments) > 1 or not (missing or unwanted):
            return None
        return self._part(missing, unwanted, only_present=True)

    def _part(
        self, missing: frozenset[int], unwanted: frozenset[int], *, only_present: bool
    ) -> Segment | None:
        """Backward without the tangents ``missing`` and without the gradients of arguments ``unwanted``."""
        key = missing, unwanted, only_present
        if key not in self._partial:
            self._partial[key] = self._make_part(*key)
        return self._partial[key]

    def _make_part(
        self, missing: frozenset[int], unwanted: frozenset[int], only_present: bool
    ) -> Segment | None:
        present = {t.output_index for k, t in enumerate(self.tangents) if k not in missing}
        never = self.given.never(present) | unwanted
        dropped = [k for k, argument in enumerate(self.gradients) if argument in never]
        segment = partial_backward(self._partitioned, missing, dropped, only_present=only_present)
        if segment is None:
            return None
        placeholders = segment.graph_module.graph.find_nodes(op="placeholder")
        if any(symbols_of(node.meta["val"]) for node in placeholders):
            return Segment(segment, run_operators(segment.graph_module), self.gradients)
        return Segment(segment, self._compile_later(segment.graph_module), self.gradients)

    def operator_segment(self) -> Segment:
        """Backward as the one segment whose program is its graph's operators."""
        whole = _whole_backward(self._partitioned)
        return Segment(whole, GradientModeInterpreter(whole.graph_module).run, self.gradients)

    def absent(self, gradients: Sequence[Any], flags: torch.Tensor | None) -> frozenset[int]:
        """The arguments that eager gives no gradient, by the outputs' gradients and what data decided."""
        given = (t.output_index for t in self.tangents)
        return self.given.absent(
            frozenset(output for output in given if gradients[output] is not None), flags
        )


def _tangent(partitioned: PartitionedGraph, position: int, output_index: int) -> Tangent:
    placeholders = partitioned.backward.graph.find_nodes(op="placeholder")
    value = placeholders[len(partitioned.saved) + position].meta["val"]
    fixed = None
    if not symbols_of(value):  # numbers, though maybe of torch's type for what was a symbol once
        fixed = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
    return Tangent(output_index, fixed, value.dtype, value.device)


def _without_influence(
    functional: FunctionalGraph,
    outputs: Set[int],
    influences: Callable[[torch.fx.Node], list[torch.fx.Node]],
) -> set[int]:
    """Indices of the inputs on which none of ``outputs`` depends, by the ``influences`` on each node."""
    graph = functional.graph_module.graph
    (output,) = graph.find_nodes(op="output")
    returned: Any = output.args[0]
    pending = [returned[index] for index in outputs]
    seen = set(pending)
    while pending:
        fresh = [node for node in influences(pending.pop()) if node not in seen]
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


def _values_read(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Those of the influences on ``node`` whose values count, and not only their history."""
    return _influences(node)[:1] if node.target is keep_history else _influences(node)


def placed(plan: Plan, positions: Sequence[int], gradients: Sequence[Any]) -> tuple[Any, ...]:
    """What backward of :class:`CompiledFunction` returns: gradients at arguments' positions, else None."""
    returned: list[Any] = [None] * plan.argument_count
    for position, gradient in zip(positions, gradients, strict=True):
        returned[position] = gradient
    return None, None, None, *returned
