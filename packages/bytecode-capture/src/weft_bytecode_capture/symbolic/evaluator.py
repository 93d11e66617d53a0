"""The symbolic evaluator of one frame: CPython's interpreter loop over variables instead of objects."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NoReturn

from weft_guards import ConstantSource, Predicate, Reason, Source

from ..unsupported import Unsupported
from ..user_location import UserLocation
from .capture_state import CaptureState
from .captured_exception import CapturedException
from .decode import DecodedInstruction
from .digits import most_digits
from .frame_ends import handler_sees
from .graph.graph_builder import GraphBuilder
from .models.containers.sequences import ListVariable
from .models.exceptions.exception_objects import ExceptionVariable, bare_exception
from .models.exceptions.exceptions_with_state import ExceptionWithStateVariable
from .models.functions.cells import CellVariable
from .models.functions.python_functions import FunctionVariable
from .models.iterators.builtin_iterators import SequenceIteratorVariable
from .models.objects.finalizers import check_dropped
from .protocol import Frame
from .regions.branches.assumed_decisions import assumed
from .side_effects import SideEffects
from .variables.base import Arguments, Keywords, Variable
from .variables.builder import VariableBuilder, is_constant_value
from .variables.constant import ConstantVariable
from .variables.operations import binary_operation
from .variables.wrap_results import wrap_new_value


class FrameEvaluator:
    """Evaluates one frame: the root frame of a capture, or a function inlined into it.

    What models may ask of it is :class:`.protocol.Evaluator`.

    ``stack`` holds variables, and None for the NULL that CPython's calling convention pushes.  ``locals``
    holds the bound locals that are not cells, ``cells`` the cell and free variables' cells.
    """

    def __init__(
        self,
        state: CaptureState,
        code: types.CodeType,
        globals_dictionary: dict[str, Any],
        function: FunctionVariable | None = None,
        parent: FrameEvaluator | None = None,
    ) -> None:
        self.state = state
        self.code = code
        self.decoded = state.cache.decode(code)
        self.globals = state.module_globals(globals_dictionary)
        self.function = function
        self.parent: Frame | None = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self._callers: tuple[int, str] = -1, ""  # by the caller's instruction
        self.breaks: Mapping[int, Any] = {}  # instructions to stop before
        self.rolled_loop: Any = None  # whose body is being evaluated
        self.index = 0
        self.next_index = 0
        self.stack: list[Variable | None] = []
        self.locals: dict[str, Variable] = {}
        self.cells: dict[str, CellVariable] = {}
        # Of a class, while its body is evaluated, and of a text.
        self.namespace: MutableMapping[str, Variable] | None = None
        self.keyword_names: tuple[str, ...] = ()
        self.handled: ExceptionVariable | None = None
        self.finished = False
        self.suspended = False
        self.result: Variable | None = None
        self.iterations: dict[int, Any] = {}  # of loops that are not kept, by their heads

    # What the capture shares.

    @property
    def frame(self) -> FrameEvaluator:
        return self

    @property
    def builder(self) -> VariableBuilder:
        return self.state.builder

    @property
    def graph(self) -> GraphBuilder:
        return self.state.graph

    @property
    def side_effects(self) -> SideEffects:
        return self.state.side_effects

    def guard(self, source: Source, predicate: Predicate) -> None:
        self.state.add_guard(source, predicate, self.current_reason)

    def location(self) -> UserLocation:
        """Where evaluation of this frame is now."""
        line = self.decoded.line(self.index)
        return UserLocation(self.code.co_filename, line, self.code.co_qualname)

    def current_reason(self) -> Reason:
        evaluator: Any = self.state.current or self
        line = evaluator.decoded.line(evaluator.index)
        return self.state.reason_at(evaluator.code.co_filename, line)

    def stack_trace(self) -> str:
        """The lines being evaluated now, of inlined calls too: outermost first, as tracebacks show them."""
        evaluator: Any = self.state.current or self
        return f"{evaluator._callers_trace()}{evaluator._traced()}"

    def _traced(self) -> str:
        """The line being evaluated now in this frame, as tracebacks show it."""
        file, line = self.code.co_filename, self.decoded.line(self.index)
        text = self.state.reason_at(file, line).text
        return f'  File "{file}", line {line}, in {self.code.co_qualname}\n    {text}'

    def _callers_trace(self) -> str:
        """The part for the frames that called this one, which stand still meanwhile."""
        if self.parent is None:
            return ""
        index, text = self._callers
        if index != self.parent.index:
            parent: Any = self.parent
            text = f"{parent._callers_trace()}{parent._traced()}\n"
            self._callers = self.parent.index, text
        return text

    def frames(self) -> Iterator[Frame]:
        """This frame and those that called it, which stand still meanwhile."""
        frame: Frame | None = self
        while frame is not None:
            yield frame
            frame = frame.parent

    def inlined_codes(self) -> Iterator[types.CodeType]:
        """Of the frame being evaluated now and those that called it, but for the root frame."""
        frame: Frame = self.state.current or self
        while frame.parent is not None:
            yield frame.code
            frame = frame.parent

    # Running.

    def run(self) -> Variable:
        """Evaluate until the frame returns; gives the returned value.

        An exception that leaves the frame is raised as :class:`CapturedException`.
        """
        state = self.state
        previous = state.current
        state.current = self
        try:
            self._loop()
        except Unsupported:
            if state.refused is None:
                state.refused = self
            raise
        finally:
            state.current = previous
        if self.result is None:
            raise RuntimeError("the frame ended without a value")
        return self.result

    def _loop(self) -> None:
        instructions = self.decoded.instructions
        state = self.state
        while True:
            state.instruction_count += 1
            instruction = instructions[self.next_index]
            self.index = instruction.index
            self.next_index = instruction.index + 1
            try:
                instruction.handler(self, instruction)
            except CapturedException as error:
                self.note_origin(error)
                self.unwind(error, instruction)
            if self.finished or self.suspended:
                return

    def note_origin(self, error: CapturedException) -> None:
        """Let an exception know the root frame's instruction that raised it first."""
        exception = error.exception
        if exception.created_at is None and self.state.root is not None:
            exception.created_at = self.state.root.index

    def unwind(self, error: CapturedException, instruction: DecodedInstruction) -> None:
        """Go to the handler of an exception raised by ``instruction``, or let it leave the frame."""
        entry = self.decoded.exception_entry(instruction.offset)
        if entry is None:
            self.finished = True
            error.exception.traceback = object()  # has one entry more in the caller
            try:
                raise error
            finally:
                del error  # which has this frame, and by it the program's, in its traceback
        dropped = self.stack[entry.depth :]
        del self.stack[entry.depth :]
        for variable in dropped:
            check_dropped(self, variable)
        if entry.push_offset:
            self.stack.append(ConstantVariable(instruction.offset // 2))
        self.stack.append(error.exception)
        self.next_index = self.decoded.index_of_offset[entry.target]

    def jump(self, instruction: DecodedInstruction) -> None:
        self.next_index = instruction.target

    def pop(self) -> Variable:
        """Pop a value; a NULL there would be a fault of the evaluator."""
        variable = self.stack.pop()
        if variable is None:
            raise RuntimeError("NULL where a value was expected")
        return variable

    def pop_many(self, count: int) -> list[Variable]:
        if count == 0:
            return []
        variables = self.stack[-count:]
        del self.stack[-count:]
        return variables  # type: ignore[return-value]  # no NULL among operands

    # Exceptions of the captured program.

    def raise_exception(self, exception: Variable) -> NoReturn:
        assert isinstance(exception, ExceptionVariable)
        exception.traceback = object()
        handled = self.handled_exception()
        if handled is not None and handled is not exception:
            exception.set_context(handled)
        raise CapturedException(exception)

    def raise_error(
        self, kind: type[BaseException], *arguments: Any, **attributes: Any
    ) -> NoReturn:
        exception = ExceptionVariable(kind, [ConstantVariable(value) for value in arguments])
        for name, value in attributes.items():
            exception.fields[name] = ConstantVariable(value)
        self.raise_exception(exception)

    def raise_python_error(self, error: BaseException) -> NoReturn:
        try:
            arguments = [self.wrap_result(argument) for argument in error.args]
        except Unsupported:
            raise Unsupported("exception with unusual arguments", repr(error)) from error
        if isinstance(error, SyntaxError):
            equal = bare_exception(type(error), list(error.args), {})
            self.raise_exception(ExceptionWithStateVariable(equal, arguments, {}))
        exception = ExceptionVariable(type(error), arguments)
        if isinstance(error, (AttributeError, NameError)):
            exception.fields["name"] = ConstantVariable(error.name)
        self.raise_exception(exception)

    def handled_exception(self) -> Variable | None:
        frame: Frame | None = self.state.current or self
        while frame is not None:
            if frame.handled is not None:
                return frame.handled
            frame = frame.parent
        return None

    def note_handlers(self) -> None:
        graph = self.graph
        frame: Frame | None = self.state.current or self
        while frame is not None and not graph.in_handled_code:
            offset = frame.decoded.instructions[frame.index].offset
            if frame.decoded.exception_entry(offset) is not None:
                graph.in_handled_code = handler_sees(frame)
            frame = frame.parent

    # Values.

    def wrap_constant(self, value: Any) -> ConstantVariable:
        return ConstantVariable(value)

    def wrap_result(self, value: Any) -> Variable:
        return wrap_new_value(self, value)

    def wrap_known(self, value: Any, label: str | None = None, weak: bool = False) -> Variable:
        if is_constant_value(value):
            return ConstantVariable(value)
        known = self.builder.held(value)
        if known is not None:
            return known
        if label is None:
            named = isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType))
            label = value.__qualname__ if named else type(value).__name__
        return self.builder.wrap(value, ConstantSource(str(label), value, weak))

    def sequence_iterator(self, iterable: Variable, elements: list[Variable]) -> Variable:
        return SequenceIteratorVariable(iterable, elements)

    def collected(self, iterable: Variable) -> Variable:
        return ListVariable(iterable.iterate(self))

    def pure(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        try:
            if self.state.most_digits is None:
                return function(*arguments, **keywords)
            with most_digits(self.state.most_digits):
                return function(*arguments, **keywords)
        except (Unsupported, CapturedException):
            raise
        except Exception as error:  # the program's, which would have called the function
            self.raise_python_error(error)

    def snapshots(
        self, arguments: Sequence[Variable], keywords: Keywords, what: str
    ) -> tuple[list[Any], dict[str, Any]]:
        try:
            return (
                [argument.snapshot() for argument in arguments],
                {name: value.snapshot() for name, value in keywords.items()},
            )
        except Unsupported as error:
            raise Unsupported(
                "call with values that are not constant",
                f"{what}({', '.join(map(repr, arguments))})",
                str(error),
            ) from error

    # Operations.

    def call_function(
        self, function: Variable, arguments: Arguments, keywords: Keywords | None = None
    ) -> Variable:
        return function.call(self.state.current or self, arguments, keywords or {})

    def call_method(self, variable: Variable, name: str, *arguments: Variable) -> Variable:
        return variable.call_method(self.state.current or self, name, list(arguments), {})

    def binary_operation(self, operator: str, left: Variable, right: Variable) -> Variable:
        return binary_operation(self, operator, left, right)

    def assumed(self, condition: Variable) -> bool | None:
        return assumed(self, condition)

    def inline_call(self, function: Variable, arguments: Arguments, keywords: Keywords) -> Variable:
        from .inlining import inline_call

        running: Any = self.state.current or self
        called: Any = function
        return inline_call(running, called, arguments, keywords)

    def evaluated_text(
        self,
        code: types.CodeType,
        names: MutableMapping[str, Variable],
        dictionary: dict[str, Any],
    ) -> Variable:
        from .inlining import evaluated_text

        running: Any = self.state.current or self
        return evaluated_text(running, code, names, dictionary)

    def class_namespace(self, body: Variable) -> tuple[Variable, dict[str, Variable]]:
        from .inlining import class_namespace

        running: Any = self.state.current or self
        function: Any = body
        return class_namespace(running, function)
