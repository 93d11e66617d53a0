"""From a frame that no entry fits to a new entry: capture, backend, guards, transformed code."""

from __future__ import annotations

import functools
import itertools
import textwrap
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from weft_guards import (
    Guard,
    GuardCheck,
    GuardFailure,
    GuardSet,
    IsObject,
    Scope,
    TypeIs,
    saved_tensors_hooked,
    transform_active,
    weak_references,
)

from .. import _frame_hook
from .._torch import mode_of_the_program, without_saved_tensor_hooks
from ..captured_graph import (
    Backend,
    DropControlFlow,
    DropDataDependence,
    GraphBreak,
    GraphBreakError,
    SpecialiseSizes,
    UnkeptRegion,
)
from ..marks import MarkError
from ..source_lines import linecache_unchanged
from ..stance import RecompileError
from ..symbolic.frame_result import (
    Break,
    CaptureOptions,
    FrameInput,
    FrameResult,
    Return,
    Skip,
)
from ..symbolic.graph.marked_inputs import marking_inputs
from ..symbolic.graph.modes import in_inference_mode, restoring_modes
from ..symbolic.graph.transforms import leaving_transforms
from ..symbolic.policy import guarding_libraries
from ..symbolic.regions.decisions import note_dropped
from ..symbolic.regions.loops.unrolled import LONG_LOOP
from ..symbolic.shapes import ValueHistory
from ..unsupported import OPERATOR_REJECTS, Unsupported
from ..user_location import UserLocation, running_frames
from ..warning import warn
from .capture_report import CaptureReport
from .failed_guards import guard_set_of
from .forks import ConversionLock, without_collector
from .later_writes import callers_may_write, mark_for_later, mark_to_read_as_eager, may_write_behind
from .output_code import TransformedCode, transform
from .resume import ResumeFunctions
from .run_as_written import noting_refuted, run_as_written
from .skip_files import answer_of, left_to_python

_VERSIONS_PER_ENTRY = 32
"""How often code is compiled for each entry that it may have: an entry whose objects die makes room.

So code that is given another object in each call is not compiled in each call for ever."""

_VERSIONS_WITHOUT_TENSORS = 2

Capture = Callable[[FrameInput, CaptureOptions], "FrameResult | Skip"]


class FrameConverter:
    """The conversion callback of one context.

    ``on_error(error, location)`` decides what an error of capture or of the backend means: it raises, or
    returns, and the frame runs as it is.  ``observer`` gets each :class:`CaptureReport`.
    """

    def __init__(
        self,
        backend: Backend,
        options: CaptureOptions,
        on_error: Callable[[Exception, str], None],
        observer: Callable[[CaptureReport], None] | None,
        capture: Capture | None = None,
        began: Callable[[UserLocation], None] | None = None,
    ) -> None:
        self._began = began
        self._backend = backend
        self._options = options
        self._on_error = on_error
        self._observer = observer
        self._capture = capture
        self._lock = ConversionLock()
        self._resume_functions = ResumeFunctions()
        self._histories: dict[int, tuple[types.CodeType, ValueHistory]] = {}
        self._separated: dict[int, types.CodeType] = {}  # by identity, as histories
        self._cut: dict[int, types.CodeType] = {}  # with loops too long to be written out
        # By identity of transformed code: that, and the code that it stands for.
        self.originals: dict[int, tuple[types.CodeType, types.CodeType]] = {}
        self._context: weakref.ref[_frame_hook.Context] | None = None

    def attach(self, context: _frame_hook.Context) -> None:
        """Say whose callback this is."""
        self._context = weakref.ref(context)

    def reset(self) -> None:
        """Forget resume functions and sizes seen, after the context has forgotten its entries."""
        self._resume_functions.clear()
        self._histories.clear()
        self._separated.clear()
        self._cut.clear()
        self.originals.clear()

    def __call__(
        self,
        code: types.CodeType,
        arguments: dict[str, Any],
        globals_dictionary: dict[str, Any],
        builtins: Mapping[str, Any],
        closure: dict[str, types.CellType],
    ) -> _frame_hook.Entry | int:
        left = left_to_python(globals_dictionary, code, self._options.backend_folders)
        if left is not None:
            return left
        stance = _frame_hook.stance()
        if stance == _frame_hook.STANCE_EAGER_ON_RECOMPILE:
            return _frame_hook.PASS
        if mode_of_the_program() is not None or transform_active() or saved_tensors_hooked():
            # A mode's code runs with every operator, and must not with capture's; a transform's tensors
            # stand for others; hooks are to be given what eager saves.
            return _frame_hook.PASS
        if stance == _frame_hook.STANCE_EAGER_THEN_COMPILE and self._history(code).is_first_call(
            arguments
        ):
            return _frame_hook.PASS
        if not self._lock.acquire(blocking=False):
            # Another thread converts a frame, maybe of this very code: look again after it.
            self._lock.acquire()
            self._lock.release()
            return _frame_hook.RETRY
        try:
            frame = FrameInput(
                code,
                arguments,
                globals_dictionary,
                builtins,
                closure,
                self._history(code),
                id(self._resume_functions.original(code)) in self._separated,
                id(self._resume_functions.original(code)) in self._cut,
                functools.partial(callers_may_write, self.originals),
            )
            conversion = _Conversion(self, frame)
            if stance == _frame_hook.STANCE_FAIL_ON_RECOMPILE:
                raise conversion.recompile_error("the stance is 'fail_on_recompile'")
            if self._options.error_on_recompile and conversion.is_recompilation:
                raise conversion.recompile_error("error_on_recompile is set")
            if self._began is not None:
                self._began(conversion._location())
            with linecache_unchanged(), guarding_libraries(self._options.guard_libraries):
                return conversion.run()
        finally:
            self._lock.release()
            # What is left of the conversion is in cycles, and would hold these until a collection.
            arguments.clear()
            closure.clear()

    def _history(self, code: types.CodeType) -> ValueHistory:
        # By identity: equal code of two places sees sizes of its own.
        known = self._histories.get(id(code))
        if known is None:
            functions = self._resume_functions
            is_resumed = functions.of_code(code) is not None
            known = code, ValueHistory(functions.varying(code), is_resumed)
            self._histories[id(code)] = known
        return known[1]

    def note_cut_loop(self, code: types.CodeType) -> None:
        """Cut off the loops of the code that ``code`` belongs to after few iterations, from now on."""
        original = self._resume_functions.original(code)
        self._cut[id(original)] = original

    def separate_histories(self, code: types.CodeType) -> None:
        """Let all that ``code`` returns have places of their own in autograd's graph, from now on."""
        original = self._resume_functions.original(code)
        if id(original) not in self._separated:
            self._separated[id(original)] = original
            for entry in self.entries(original):
                entry.retire()

    def entries(self, code: types.CodeType) -> tuple[_frame_hook.Entry, ...]:
        context = self._context() if self._context is not None else None
        return () if context is None else context.entries(code)


class _Conversion:
    """The conversion of one frame."""

    def __init__(self, converter: FrameConverter, frame: FrameInput) -> None:
        self._converter = converter
        self._frame = frame
        self._start = time.perf_counter()
        self._entries = converter.entries(frame.code)
        self._recompile_reason = self._failed_guard()
        self._result: FrameResult | None = None
        self._break: GraphBreak | None = None
        self._dropped: list[UnkeptRegion] = []  # all regions, by the backend
        self._transformed_code: types.CodeType | None = None
        self._side_effects: tuple[str, ...] = ()

    @property
    def is_recompilation(self) -> bool:
        """Whether this code has been compiled before, for what does not fit."""
        return bool(self._entries)

    def recompile_error(self, setting: str) -> RecompileError:
        """What is raised for this frame where ``setting`` allows no compilation."""
        history = self._history()
        why = "No compiled version fits:\n" + history if history else "It was not compiled yet."
        return RecompileError(
            f"weft: {self._location_text()} needs compilation and {setting}. " + why
        )

    def run(self) -> _frame_hook.Entry | int:
        self._retire_replaced()
        limit = self._converter._options.recompile_limit
        versions = self._frame.history.versions
        if len(self._entries) >= limit or versions >= limit * _VERSIONS_PER_ENTRY:
            self._warn_of_limit(versions)
            self._report(f"more than {limit} entries")
            return _frame_hook.FROZEN
        try:
            with _preserved_state(self._leaves_garbage):
                answer = self._convert()
        except MarkError as error:
            self._report("error", error)
            raise
        except Exception as error:  # a refusal or any fault: ``on_error`` says whether it is raised
            self._report("error", error)
            self._converter._on_error(error, self._location_text())
            return _frame_hook.SKIP
        finally:
            if self._result is not None:
                self._result.release()
        if isinstance(answer, Skip):
            self._report(answer.reason)
            return answer_of(answer)
        self._report(None)
        return answer

    def _leaves_garbage(self) -> bool:
        """Whether an exception has ended the evaluation, whose traceback and frames are in cycles."""
        return self._result is None or self._break is not None

    def _convert(self) -> _frame_hook.Entry | Skip:
        """Convert with symbols and regions, as far as the options go and the backend takes them."""
        options = self._converter._options
        while True:
            try:
                return self._convert_with(options)
            except SpecialiseSizes:
                if options.dynamic is False and not options.marks:
                    raise
                options = replace(options, dynamic=False, marks=False)
            except DropDataDependence:
                if not (options.data_dependent_scalars or options.data_dependent_sizes):
                    raise
                options = replace(options, data_dependent_scalars=False, data_dependent_sizes=False)
            except DropControlFlow as error:
                if not options.keep_control_flow:
                    raise
                options = replace(options, keep_control_flow=False)
                note_dropped(self._location_text(), str(error))
                self._dropped.append(UnkeptRegion(self._location(), str(error)))

    def _convert_with(self, options: CaptureOptions) -> _frame_hook.Entry | Skip:
        result = _capture_function(self._converter._capture)(self._frame, options)
        if isinstance(result, Skip):
            self._break = result.graph_break
            if self._break is None or not options.fullgraph:
                return result
            if self._break.kind == OPERATOR_REJECTS:
                return Skip(f"eager raises its own error: {self._break.context}", False)
            raise GraphBreakError(self._break)
        self._result = result
        for code in result.separate_in:
            self._converter.separate_histories(code)
        if isinstance(result.ending, Break):
            self._break = result.ending.reason
        if self._never_meets_tensors(result) and not options.fullgraph:
            return Skip("no version of it meets a tensor")
        with result.shapes.rules() if result.shapes is not None else nullcontext():
            transformed = self._transform(result)
        if isinstance(transformed, Skip):
            return transformed
        return self._entry(result, transformed)

    def _never_meets_tensors(self, result: FrameResult) -> bool:
        """Whether this is the third version of code, and CPython runs all of them as well.

        Functions called with numbers or names that differ, behind breaks and by iterators.
        """
        history = self._frame.history
        if result.has_tensors or not isinstance(result.ending, Return):
            return False
        history.versions_without_tensors += 1
        return history.versions == _VERSIONS_WITHOUT_TENSORS < history.versions_without_tensors

    def _entry(self, result: FrameResult, transformed: TransformedCode) -> _frame_hook.Entry:
        if result.shapes is not None:  # asked now: compiling the graph may have added to them
            result = replace(result, guards=(*result.guards, *result.shapes.guards()))
            self._result = result
        guard_set = GuardSet(self._checked(result.guards))
        check = guard_set.compile(self._argument_names(), self._frame.code.co_freevars)
        self._require_guards_hold(guard_set, check)
        entry = _frame_hook.Entry(
            check,
            transformed.code,
            (*transformed.objects, guard_set),
            transformed.objects_slot,
            transformed.resumes,
        )
        read = itertools.chain.from_iterable(map(weak_references, transformed.objects))
        entry.watch(*guard_set.references(), *read, *self._optimizers(result.guards))
        self._transformed_code = transformed.code
        if isinstance(result.ending, Break):
            original = self._converter._resume_functions.original(self._frame.code)
            self._converter.originals[id(transformed.code)] = transformed.code, original
        self._side_effects = result.side_effects.names
        self._frame.history.versions += 1
        if result.graph is not None:
            # No way back from the graph, so that tensors that the module holds go with the entry at once.
            result.graph.graph_module.graph.owning_module = None
        return entry

    def _checked(self, guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
        """The guards that later calls check: all of them, or those that the user's filter keeps."""
        keeps = self._converter._options.guard_filter
        if keeps is None:
            return guards
        kept = list(keeps(guards))
        if len(kept) != len(guards):
            raise ValueError(f"guard_filter_fn gave {len(kept)} values for {len(guards)} guards")
        return tuple(itertools.compress(guards, kept))

    def _retire_replaced(self) -> None:
        """Drop entries for tensors that their modules don't have any more.

        They would hold those.  The tensor that is there now is known to change, so the entry to be made is
        for any: it serves where the old tensor comes back too.
        """
        for entry in self._entries:
            guard_set = guard_set_of(entry)
            held = {
                guard.source
                for guard in guard_set.guards
                if isinstance(guard.predicate, IsObject)
                and issubclass(type(guard.predicate.expected), torch.Tensor)
            }
            failure = guard_set.explain(self._scope()) if held else None
            if failure is not None and failure.source in held:
                entry.retire()
        self._entries = self._converter.entries(self._frame.code)

    def _optimizers(
        self, guards: tuple[Guard, ...]
    ) -> Iterator[weakref.ref[torch.optim.Optimizer]]:
        """Optimizers that the frame has: the graph holds their parameters, of which no module is guarded."""
        scope = self._scope()
        for guard in guards:
            predicate = guard.predicate
            if isinstance(predicate, TypeIs) and issubclass(
                predicate.expected, torch.optim.Optimizer
            ):
                yield weakref.ref(guard.source.evaluate(scope))

    def _transform(self, result: FrameResult) -> TransformedCode | Skip:
        graph = result.graph
        if isinstance(result.ending, Break) and result.ending.reason.kind == LONG_LOOP:
            self._converter.note_cut_loop(self._frame.code)
        compiled: Callable[..., Any] | None = None
        if graph is not None:
            is_break = isinstance(result.ending, Break)
            if result.exchanges_memory or may_write_behind(self._frame, is_break):
                mark_to_read_as_eager(graph.graph_module)
            mark_for_later(graph.graph_module, self._frame, is_break)
            backend = in_inference_mode(graph.inference_mode, self._converter._backend)
            function = backend(graph.graph_module, list(graph.example_inputs))
            function = leaving_transforms(graph.graph_module, function)
            if result.recovery is not None and not result.recovery.pays(function):
                result = replace(result, recovery=None)
            if result.recovery is not None:
                function = result.recovery.around(graph.graph_module, function)
            if result.assumed and not self._converter._options.fullgraph:
                function = noting_refuted(function, self._frame, result.assumed, self._converter)
            function = marking_inputs(result.marked_inputs, function)
            function = restoring_modes(graph.graph_module, function)
            compiled = _frame_hook.disabled(in_inference_mode(graph.inference_mode, function))
        try:
            return transform(
                self._frame.code,
                result,
                compiled,
                self._converter._resume_functions,
                run_as_written(
                    self._converter._on_error, result.expected_errors, self._location_text()
                ),
            )
        except Unsupported as error:
            if self._converter._options.fullgraph:
                raise
            return Skip(f"the frame cannot be rebuilt: {error}")

    def _argument_names(self) -> tuple[str, ...]:
        return tuple(self._frame.arguments)

    def _require_guards_hold(self, guard_set: GuardSet, check: GuardCheck) -> None:
        frame = self._frame
        arguments = tuple(frame.arguments.values())
        closure = tuple(frame.closure[name] for name in frame.code.co_freevars)
        if not check.check(arguments, frame.globals, frame.builtins, closure):
            failure = guard_set.explain(self._scope())
            raise RuntimeError(f"a guard does not hold right after capture: {failure}")

    def _scope(self) -> Scope:
        frame = self._frame
        return Scope(frame.arguments, frame.globals, frame.builtins, frame.closure)

    # Reports.

    def _failed_guard(self) -> GuardFailure | None:
        """Why the entry that was used last does not fit."""
        return guard_set_of(self._entries[0]).explain(self._scope()) if self._entries else None

    def _warn_of_limit(self, versions: int) -> None:
        warn(
            f"weft: {self._location_text()} was compiled {versions} times and runs as plain Python from now "
            "on where no compiled version fits. The guards that failed, of the version used last first:\n"
            + self._history(),
            UserWarning,
        )

    def _history(self) -> str:
        """The guard that failed in each compiled version, the version used last first."""
        failures = (guard_set_of(entry).explain(self._scope()) for entry in self._entries)
        texts = (str(failure) for failure in failures if failure is not None)
        return "\n".join(textwrap.indent(text, "  ") for text in texts)

    def _user_code(self) -> types.CodeType:
        return self._converter._resume_functions.original(self._frame.code)

    def _resumed_at(self) -> int | None:
        resume = self._converter._resume_functions.of_code(self._frame.code)
        if resume is None:
            return None
        for position in resume.positions:
            if position is not None:
                return resume.original.instructions[position].position.line
        return None

    def _location(self) -> UserLocation:
        code = self._user_code()
        return UserLocation(
            code.co_filename, self._resumed_at() or code.co_firstlineno, code.co_qualname
        )

    def _location_text(self) -> str:
        location = self._location()
        return f"{location.function} ({location.file}:{location.line})"

    def _report(self, skip: str | None, error: Exception | None = None) -> None:
        observer = self._converter._observer
        if observer is None:
            return
        result = self._result
        observer(
            CaptureReport(
                code=self._user_code(),
                location=self._location(),
                resumed_at=self._resumed_at(),
                graph=result.graph if result is not None else None,
                guards=result.guards if result is not None else (),
                graph_break=self._break,
                skip_reason=skip,
                error=error,
                recompile_reason=self._recompile_reason,
                seconds=time.perf_counter() - self._start,
                instruction_count=result.instruction_count if result is not None else 0,
                unkept_regions=(
                    *self._dropped,
                    *(result.unkept_regions if result is not None else ()),
                ),
                transformed_code=self._transformed_code,
                side_effects=self._side_effects,
                callers=running_frames(),
            )
        )


def _capture_function(given: Capture | None) -> Capture:
    if given is not None:
        return given
    from ..symbolic.root_frame import (
        capture_root_frame,  # at the first use: it imports all families
    )

    return capture_root_frame


@contextmanager
def _preserved_state(leaves_garbage: Callable[[], bool]) -> Iterator[None]:
    """Capture and compilation leave the program's modes as they are.

    What autograd saves meanwhile, of fake tensors, is nothing for the program's hooks.  Random generators are
    the whole process's: putting them back would repeat other threads' numbers, so nothing here draws any.
    """
    gradients = torch.is_grad_enabled()
    try:
        # What is made meanwhile lives to the end: looking for garbage takes an eighth of the time.
        with without_saved_tensor_hooks(), without_collector(leaves_garbage):
            yield
    finally:
        torch.set_grad_enabled(gradients)


def make_context(
    backend: Backend,
    options: CaptureOptions | None = None,
    on_error: Callable[[Exception, str], None] | None = None,
    observer: Callable[[CaptureReport], None] | None = None,
    capture: Capture | None = None,
    began: Callable[[UserLocation], None] | None = None,
) -> _frame_hook.Context:
    """A context of compiled code, empty, with the arguments of :func:`compile_frames`.

    ``capture`` takes the place of the symbolic evaluator.  ``began`` is told the location of each frame whose
    conversion begins, of which ``observer`` gets a report.
    """
    options, on_error = options or CaptureOptions(), on_error or _raise
    converter = FrameConverter(backend, options, on_error, observer, capture, began)
    context = _frame_hook.Context(converter)
    converter.attach(context)
    _contexts.add(context)
    return context


def _raise(error: Exception, location: str) -> None:
    raise error


_contexts: weakref.WeakSet[_frame_hook.Context] = weakref.WeakSet()
"""Every context that is alive."""


def clear_contexts() -> None:
    """Let every context forget its compiled code."""
    for context in list(_contexts):
        context.clear()
        converter = context.callback
        if isinstance(converter, FrameConverter):
            converter.reset()
