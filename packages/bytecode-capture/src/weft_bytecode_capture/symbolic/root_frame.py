"""The capture of one frame: evaluation, started again at every break until it gets to its end."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from weft_guards import ArgumentSource, GlobalState, GlobalStateIs, GlobalStateSource, Guard, Reason

from ..captured_graph import DropDataDependence, GraphBreak
from ..frame.emitter import Emitter
from ..frame.later_writes import may_write_behind
from ..unsupported import BreakEarlier, BreakForHistory, EntersHooks, Unsupported
from . import handlers as handlers
from .capture_state import CaptureState, NothingToCapture
from .captured_exception import CapturedException
from .evaluator import FrameEvaluator
from .frame_ends import exit_runs_code
from .frame_result import Break, CaptureOptions, FrameInput, FrameResult, Raise, Return, Skip
from .graph.changed_layouts import with_given_layouts
from .graph.graph_builder import GraphBuilder
from .graph.histories import (
    asks_for_histories,
    check_hooks,
    check_places,
    check_views,
    first_history,
)
from .graph.known_contents import READS, has_known_contents
from .graph.known_results import KnownResults, known_in_one_capture
from .graph.marked_leaves import KIND as LEAF_KIND
from .graph.recovery import Recovery, find_recovery, first_untold_write
from .graph.storages import version_of
from .liveness import OutputCollector, is_kept
from .models.exceptions.exception_objects import ExceptionVariable
from .models.functions.cells import SavedCellVariable, root_cell
from .models.functions.tracing import FrameIsSeen
from .models.objects.opaque import OpaqueVariable
from .models.torch.lazy_modules import ParametersMade
from .models.torch.tensor import TensorVariable
from .overrides import emit_mode
from .protocol import Graph
from .regions.branches.assumed_decisions import ASSUMABLE, AssumptionsRefused
from .regions.decisions import DecodeCache, ProgramPoint, RegionRefused, refuse_by
from .regions.filled_lists.rows import separate
from .regions.identity.choices import ambiguous_result, choose_results, refused_alias
from .registration import register_all
from .variables.base import Variable
from .variables.operations import guard_mutated_objects

register_all()

_NOT_CAPTURED = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)
_MAXIMAL_RESTARTS = 64
_OF_CHECKS = (ArithmeticError, IndexError, RuntimeError, ValueError)
"""What a graph raises where data is not as it relies on."""


class _Broken(Exception):
    """Evaluation arrived at a break point."""


class _NoRecovery(Exception):
    """The program may handle an exception of the graph's, and not all that the graph writes is known."""


def capture_root_frame(frame: FrameInput, options: CaptureOptions) -> FrameResult | Skip:
    """Evaluate a frame up to its end or the first instruction that cannot be captured.

    Evaluation cannot be undone, so a frame is evaluated from its beginning again, to stop just before the
    instruction in question.
    """
    if frame.code.co_flags & _NOT_CAPTURED:
        return Skip("a generator or coroutine")
    with (options.known_results or known_in_one_capture)(frame.code) as known:
        return _until_it_ends(frame, options, known)


def _until_it_ends(
    frame: FrameInput, options: CaptureOptions, known: KnownResults
) -> FrameResult | Skip:
    """Evaluate the frame again at each break and refusal; ``known`` is what operators gave before."""
    global_state = GlobalState.current()
    cache = DecodeCache()
    breaks: dict[int, GraphBreak] = {}
    separate_in: dict[int, frozenset[types.CodeType]] = {}  # by instruction
    restarts = 0
    while restarts < _MAXIMAL_RESTARTS:
        capture = _Capture(frame, options, cache, breaks, global_state, known)
        try:
            result = capture.run()
            return dataclasses.replace(
                result,
                unkept_regions=tuple(cache.regions.unkept),
                separate_in=separate_in.get(capture.evaluator.index, frozenset()),
            )
        except (NothingToCapture, _NoRecovery, FrameIsSeen) as error:
            skip = _left_alone(capture, error)
            capture.state.release()
            return skip
        except RegionRefused as refusal:
            cache.regions.refuse(refusal)  # each region once: these restarts come to an end
            capture.state.release()
        except ParametersMade:
            capture.state.release()  # once for each module
        except AssumptionsRefused:
            options = dataclasses.replace(options, assume_decisions=False)
            capture.state.release()
        except EntersHooks as error:
            skip = Skip("it enters hooks for saved tensors", True, capture.graph_break(error), True)
            capture.state.release()
            return skip
        except Unsupported as error:
            restarts += 1
            error = capture.before_draws(error)  # no other name, which would keep frames alive
            wider = _with_more_evaluated(options, error.kind, capture.evaluator.graph)
            if wider is not None:
                options = wider
                capture.state.release()
                continue
            if isinstance(error, BreakEarlier) and error.position not in breaks:
                capture.evaluator.index = error.position
            position = capture.evaluator.index
            if isinstance(error, BreakForHistory):
                inlined = capture.evaluator.graph.inlined_at.get(position, {}).values()
                separate_in[position] = separate_in.get(position, frozenset()).union(inlined)
            found = breaks.get(position)
            if found is not None:
                capture.state.release()
                return Skip(f"the state at a graph break cannot be rebuilt: {error}", True, found)
            breaks[position] = found = capture.graph_break(error)
            capture.state.release()
            if options.fullgraph:  # an error, which what has to end the graph earlier would hide
                return Skip("it breaks", False, found)
        except Exception:  # a request for another capture, or any fault: no state may outlive it
            capture.state.release()
            raise
    return Skip("too many graph breaks in one frame")


def _with_more_evaluated(options: CaptureOptions, kind: str, graph: Graph) -> CaptureOptions | None:
    """The options with what avoids a break of ``kind``, unless they have decided about it; else None."""
    if kind in READS and options.read_contents is None and has_known_contents(graph):
        return dataclasses.replace(options, read_contents=True)
    if kind in ASSUMABLE and options.assume_decisions is None:
        return dataclasses.replace(options, assume_decisions=True)
    if kind == LEAF_KIND and options.make_leaves is None:
        return dataclasses.replace(options, make_leaves=True)
    return None


def _left_alone(capture: _Capture, error: Exception) -> Skip:
    """Why a frame is CPython's as a whole."""
    if isinstance(error, NothingToCapture):
        return Skip(str(error))
    if isinstance(error, FrameIsSeen):
        return Skip("it shows itself to the program", True, capture.graph_break(error))
    unsupported = Unsupported("exception handler around writes")
    return Skip("a graph in it cannot run again", True, capture.graph_break(unsupported))


class _RootEvaluator(FrameEvaluator):
    """The root frame's evaluator, which stops at break points."""

    def _loop(self) -> None:
        instructions = self.decoded.instructions
        while not self.finished:
            self.state.instruction_count += 1
            instruction = instructions[self.next_index]
            self.index = instruction.index
            if instruction.index in self.breaks:
                raise _Broken
            self.next_index = instruction.index + 1
            try:
                instruction.handler(self, instruction)
            except CapturedException as error:
                self.note_origin(error)
                self.unwind(error, instruction)


class _Capture:
    """One evaluation of the frame."""

    def __init__(
        self,
        frame: FrameInput,
        options: CaptureOptions,
        cache: DecodeCache,
        breaks: dict[int, GraphBreak],
        global_state: GlobalState,
        known: KnownResults,
    ) -> None:
        self.frame = frame
        self.breaks = breaks
        self.global_state = global_state
        self.state = CaptureState(
            frame, options, functools.partial(GraphBuilder, known=known), cache
        )
        self.evaluator = _RootEvaluator(self.state, frame.code, frame.globals)
        self.state.root = self.evaluator
        self.evaluator.breaks = breaks
        self.innermost: FrameEvaluator = self.evaluator

    def run(self) -> FrameResult:
        evaluator, state = self.evaluator, self.state
        # Arguments are wrapped, and results made, with the root frame as the current one.
        state.current = evaluator
        try:
            self._bind_arguments()
            ending = self._evaluate()
            return self._result(ending)
        except RecursionError as error:
            raise Unsupported("calls nested too deep", self.frame.code.co_qualname) from error
        finally:
            state.graph.transforms.restore()
            state.graph.modes.restore()
            state.graph.library_settings.restore()

    def _bind_arguments(self) -> None:
        evaluator, frame = self.evaluator, self.frame
        read = evaluator.decoded.live_at(0).union(frame.code.co_cellvars)
        if "super" in frame.code.co_names:  # without arguments it takes the frame's first
            read = read.union(frame.code.co_varnames[:1])
        for name, value in frame.arguments.items():
            source = ArgumentSource(name)
            if name in read:
                evaluator.locals[name] = evaluator.builder.wrap(value, source)
            elif not issubclass(type(value), torch.Tensor):
                # The frame keeps it alive, whatever it is.
                evaluator.locals[name] = OpaqueVariable(value, source)
        for name, cell in frame.closure.items():
            evaluator.cells[name] = root_cell(evaluator, name, cell)

    def _evaluate(self) -> Return | Raise | Break:
        evaluator = self.evaluator
        try:
            value = evaluator.run()
        except CapturedException as error:
            return self._raise(error.exception)
        except _Broken:
            return self._break()
        finally:
            self.state.current = evaluator
        return Return(value)

    def _raise(self, exception: Variable) -> Raise:
        """CPython raises it itself, with traceback, from the instruction that raised it first in capture.

        Where breaks are errors the graph and the effects come first, then an equal exception.
        """
        if self.state.options.fullgraph:
            first = None
            if isinstance(exception, ExceptionVariable):
                first = exception.created_at  # raised again, maybe by an instruction of no line
                exception.rebuild_raised()
            return Raise(exception, self.evaluator.index if first is None else first)
        raise Unsupported("exception that leaves the function", repr(exception))

    def _break(self) -> Break:
        evaluator, code = self.evaluator, self.frame.code
        if any(isinstance(value, SavedCellVariable) for value in evaluator.stack):
            # what the code names by one name are the cell, and in its place the comprehension's variable
            raise Unsupported("two variables of a name", code.co_qualname)
        own = {name: evaluator.cells[name] for name in code.co_cellvars if name in evaluator.cells}
        contents: dict[str, Variable | None] = {
            name: own[name].read(evaluator) if name in own else evaluator.locals.get(name)
            for name in code.co_cellvars
        }
        live = evaluator.decoded.live_at(evaluator.index)
        # A tensor that only a dead local holds would be one output of the graph more for nothing.
        plain = {
            name: value
            for name, value in evaluator.locals.items()
            if name not in contents and (name in live or is_kept(value, evaluator.stack))
        }
        return Break(
            evaluator.index,
            tuple(evaluator.stack),
            plain,
            contents,
            self.breaks[evaluator.index],
            dict(own),
            evaluator.handled,
        )

    def _result(self, ending: Return | Raise | Break) -> FrameResult:
        state = self.state
        guard_mutated_objects(self.evaluator)
        self._leave_blocks()
        outputs = self._checked_outputs(ending)
        self._require_use_of_draws()
        # Every variable of a graph's value is one of the torch families.
        graph = state.graph.finish(cast("Any", outputs))
        state.graph.guard_written(self.evaluator)
        guards = self._guards()
        if graph is not None:
            graph = dataclasses.replace(graph, guards=guards)
            graph = with_given_layouts(graph, state.side_effects)
        recovery = self._recovery() if graph is not None else None
        state.shapes.note_relations()
        return FrameResult(
            graph,
            outputs,
            guards,
            state.side_effects,
            ending,
            state.instruction_count,
            recovery,
            state.shapes,
            state.release,
            assumed=tuple(state.assumed),
            expected_errors=self._expected_errors(),
            drawn=state.drawn,
            has_tensors=state.graph.has_tensors(),
            marked_inputs=state.graph.marked_inputs.positions(state.graph.graph),
            exchanges_memory=state.graph.changed_leaves.are_given_memory,
        )

    def before_draws(self, error: Unsupported) -> Unsupported:
        """Where the graph ends for ``error``: before the first draw, if what is drawn is all there is."""
        state = self.state
        if state.first_draw is None or state.options.fullgraph or state.graph.has_tensors():
            return error
        return BreakEarlier(*state.first_draw)

    def _require_use_of_draws(self) -> None:
        """
        :raises BreakEarlier: nothing but numbers that Python draws is in the graph, by itself quicker.
        """
        earlier = self.before_draws(Unsupported("number that depends on data"))
        if isinstance(earlier, BreakEarlier):
            raise earlier

    def _leave_blocks(self) -> None:
        """Record what leaves the modes that the frame ends in.

        :raises BreakEarlier: a generator waits in a block whose end would run code, or a clock was read
            between computations.
        """
        state = self.state
        for reading in state.readings:
            reading.require_last()
        for generator in state.generators:
            if generator.is_suspended() and exit_runs_code(generator.frame):
                error = Unsupported("generator dropped while it waits in a try or with block")
                raise BreakEarlier(generator.created_at, error)
        state.graph.transforms.require_left()
        changed_modes = state.graph.modes.changed() + state.graph.library_settings.calls()
        if changed_modes:
            state.side_effects.record(functools.partial(_emit_modes, changed_modes))
            state.graph.modes.restore()
        for mode in state.overrides.modes:
            state.side_effects.record(functools.partial(emit_mode, mode))

    def _checked_outputs(self, ending: Return | Raise | Break) -> tuple[Variable, ...]:
        """The graph's values that the code after it loads.

        :raises Unsupported: what a graph gives is not what eager does, for one of them.
        """
        state = self.state
        outputs = self._outputs(ending)
        state.graph.transforms.check(outputs, state.graph.made_at)
        place = ambiguous_result(self.evaluator, outputs)
        if place is not None:
            choices = choose_results(self.evaluator, outputs)
            outputs = self._outputs(ending)
            place = refused_alias(self.evaluator, outputs, choices)
        if place is not None:
            reason = (
                "a result that may be an operand itself, or a part of one, is returned; "
                "a copy of it, .clone(), can be"
            )
            raise self._refusal(place, reason, returned=True)
        for copies in state.aliases.copies:
            copies.check(outputs)
        state.graph.rules.check(outputs)
        place = separate(outputs)
        if place is not None:
            raise self._refusal(place, "a part of a tensor in a list is returned beside the list")
        outputs = self._outputs(ending)
        tensors = [output.fake for output in outputs if isinstance(output, TensorVariable)]
        check_views(self.evaluator, tensors, self.frame.code if isinstance(ending, Break) else None)
        check_places(self.evaluator, tensors)
        check_hooks(self.evaluator)
        is_break = isinstance(ending, Break)
        state.checkpoints.check(self.evaluator, lambda: may_write_behind(self.frame, is_break))
        nodes = [output.node for output in outputs if isinstance(output, TensorVariable)]
        state.graph.marked_leaves.require_unmarked(nodes)
        state.graph.new_leaves.check(tensors)
        given = (known.tensor for known in state.graph.inputs())
        state.graph.views_of_leaves.check(nodes, given)
        state.graph.changed_leaves.check(state.graph.graph)
        written = (node.meta["example_value"] for node in self._written_with_gradients())
        state.graph.hooks.check([*tensors, *written], state.graph.fake_mode)
        asked = isinstance(ending, Break) and asks_for_histories(self.frame.code)
        if asked or self.frame.separate_histories:
            self._require_one_history(outputs)
        return outputs

    def _outputs(self, ending: Return | Raise | Break) -> tuple[Variable, ...]:
        """The graph's values that the code after it loads, as things stand."""
        collector = OutputCollector(self.state.made)
        if isinstance(ending, Break):
            for cell in ending.cell_variables.values():
                collector.bind(cell)
        self.state.side_effects.emit(collector)
        for variable in _alive(ending):
            collector.load_variable(variable)
        return tuple(collector.outputs)

    def _require_one_history(self, outputs: Iterable[Variable]) -> None:
        """Code behind the break may ask for the place in autograd's graph of each tensor that it gets."""
        tensors = {
            output.node: output.fake
            for output in outputs
            if isinstance(output, TensorVariable) and output.fake.requires_grad
        }
        for node in self._written_with_gradients():
            tensors[node] = node.meta["example_value"]
        if len(tensors) > 1:
            position = first_history(self.evaluator, tensors.items())
            if position is not None:
                raise BreakForHistory(
                    position, Unsupported("hook of a tensor", "behind another break")
                )

    def _written_with_gradients(self) -> Iterator[torch.fx.Node]:
        """Arguments and attributes that the graph writes to, which are results as well."""
        for node, version in self.state.graph.first_versions.items():
            fake = node.meta["example_value"]
            if fake.requires_grad and version_of(fake) != version:
                yield node

    def _expected_errors(self) -> tuple[type[Exception], ...]:
        graph = self.state.graph
        if graph.in_handled_code:
            return (Exception,)
        may_check = (
            "data_dependent" in n.meta or n.target is torch._check for n in graph.graph.nodes
        )
        return _OF_CHECKS if any(may_check) else ()

    def _recovery(self) -> Recovery | None:
        """What to put back for the frame to run as written, where anyone could tell that it did not."""
        graph = self.state.graph
        recovery = find_recovery(graph.graph, graph.first_versions)
        if any("data_dependent" in node.meta for node in graph.graph.nodes):
            if recovery is None and self.state.assumed:
                raise AssumptionsRefused
            if recovery is None:
                self._end_before_untold_write()
                raise DropDataDependence("what the graph writes cannot be taken back")
            return dataclasses.replace(recovery, checks=not graph.in_handled_code)
        if graph.in_handled_code:
            if recovery is None:
                raise _NoRecovery
            return recovery
        # An error is eager's own then, and comes where eager's does: worth copies of little at each call.
        if recovery is None:
            recovery = find_recovery(graph.graph, graph.first_versions, histories=True)
            if recovery is None or not self._loses_effects(recovery):
                return Recovery(optional=True, known=False)
            return recovery
        loses = self._loses_effects(recovery)
        optional = (recovery.copies or recovery.draws) and not loses
        return dataclasses.replace(recovery, optional=optional)

    def _end_before_untold_write(self) -> None:
        """
        :raises BreakEarlier: numbers of data come before a write that no call could take back.
        :raises RegionRefused: the write is in a branch.
        """
        graph = self.state.graph
        write = first_untold_write(graph.graph)
        if write is None:
            return
        place = self.state.aliases.branches.get(write)
        if place is not None:
            reason = "it writes to what a call in which a check fails could not take back"
            raise self._refusal(place, reason)
        if write not in graph.made_at:
            return
        position = graph.made_at[write]
        of_data = (node for node in graph.graph.nodes if "data_dependent" in node.meta)
        if graph.made_at.get(next(of_data), position) != position:
            raise BreakEarlier(position, Unsupported("check of data behind a write", str(write)))

    def _loses_effects(self, recovery: Recovery) -> bool:
        """Whether an error behind a draw or a write loses what the frame did before, and copies are cheap.

        Such as a list that it appended to, and what it wrote before it drew.
        """
        does = [recovery.draws, recovery.copies, bool(self.state.side_effects)]
        return recovery.little and (recovery.few or not recovery.copies) and sum(does) > 1

    def _refusal(self, place: ProgramPoint, reason: str, returned: bool = False) -> RegionRefused:
        """What to raise to have the frame evaluated again without the region at ``place``."""
        return refuse_by(self.state.cache, place, reason, returned=returned)

    def _guards(self) -> tuple[Guard, ...]:
        code = self.frame.code
        reason = Reason(code.co_filename, code.co_firstlineno, "the function's beginning")
        state_guard = Guard(GlobalStateSource(), GlobalStateIs(self.global_state), reason)
        return (state_guard, *self.state.guards.values())

    def graph_break(self, error: Unsupported) -> GraphBreak:
        """The break that an error makes, at the place where evaluation stands."""
        innermost = self.state.refused or self.evaluator
        inner, *callers = [frame.location() for frame in innermost.frames()]
        region = self.state.cache.regions.refused((innermost.code, innermost.index))
        return GraphBreak(
            error.kind,
            error.context,
            error.explanation,
            error.hints,
            inner,
            tuple(reversed(callers)),
            region,
        )


def _emit_modes(calls: list[tuple[Any, tuple[Any, ...]]], emitter: Emitter) -> None:
    """The effect of a frame that is left, or broken, in other modes than it began with."""
    for function, arguments in calls:
        emitter.run_call(function, *arguments)


def _alive(ending: Return | Raise | Break) -> list[Variable]:
    """What the code after the graph loads, in its order."""
    if isinstance(ending, Return):
        return [ending.value]
    if isinstance(ending, Raise):
        return [ending.exception]
    variables = [*ending.stack, *ending.locals.values(), *ending.cells.values(), ending.handled]
    return [variable for variable in variables if variable is not None]
