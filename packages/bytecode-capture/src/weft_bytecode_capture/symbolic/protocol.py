"""What models, variables and the graph know of the evaluator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from weft_guards import Predicate, Reason, Source

if TYPE_CHECKING:
    from .capture_state import CaptureState, ModuleGlobals
    from .evaluator import FrameEvaluator
    from .graph.builder import GraphBuilder
    from .models.exceptions.exception_objects import ExceptionVariable
    from .models.functions.python_functions import FunctionVariable
    from .side_effects import SideEffects
    from .variables.base import Arguments, Keywords, Variable
    from .variables.builder import VariableBuilder
    from .variables.constant import ConstantVariable


class Evaluator(Protocol):
    """Evaluates a call: what a model may ask of the frame that it is called in, and of the capture."""

    globals: ModuleGlobals

    @property
    def frame(self) -> FrameEvaluator:
        """The frame that the call is in, for what reads or changes its state."""
        ...

    @property
    def state(self) -> CaptureState: ...

    @property
    def builder(self) -> VariableBuilder: ...

    @property
    def graph(self) -> GraphBuilder: ...

    @property
    def side_effects(self) -> SideEffects: ...

    def guard(self, source: Source, predicate: Predicate) -> None:
        """Compiled code may be used again only if ``predicate`` holds of the value at ``source``."""

    def current_reason(self) -> Reason:
        """The line being evaluated now, in the innermost frame."""
        ...

    def stack_trace(self) -> str:
        """The lines being evaluated now, of inlined calls too: outermost first, as tracebacks show them."""
        ...

    # Exceptions of the captured program.

    def raise_exception(self, exception: ExceptionVariable) -> NoReturn:
        """Raise an exception object in the captured program; sets its ``__context__``."""
        ...

    def raise_error(
        self, kind: type[BaseException], *arguments: Any, **attributes: Any
    ) -> NoReturn:
        """Raise a new exception with constant arguments in the captured program."""
        ...

    def raise_python_error(self, error: BaseException) -> NoReturn:
        """Raise in the captured program what a Python call on the same operands raised."""
        ...

    def handled_exception(self) -> ExceptionVariable | None:
        """The exception being handled, in this frame or a caller's."""

    def note_handlers(self) -> None:
        """Let the graph know which handlers are in force, in this frame or a caller's."""

    # Values.

    def wrap_constant(self, value: Any) -> ConstantVariable:
        """A variable of an immutable constant made during evaluation."""
        ...

    def wrap_result(self, value: Any) -> Variable:
        """A variable of a new Python value: constants, and tuples, lists, dicts and sets of them."""
        ...

    def wrap_known(self, value: Any, label: str | None = None) -> Variable:
        """A variable of an object that the guard set may hold itself: a library's or a class's own."""
        ...

    def sequence_iterator(self, iterable: Variable, elements: list[Variable]) -> Variable:
        """An iterator over elements known now."""
        ...

    def collected(self, iterable: Variable) -> Variable:
        """A list of an iterable's elements."""
        ...

    def pure(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        """Call a side-effect-free Python function on constants; its exceptions are the program's."""

    def snapshots(
        self, arguments: Sequence[Variable], keywords: Keywords, what: str
    ) -> tuple[list[Any], dict[str, Any]]:
        """The Python values of arguments of a pure function; Unsupported if one is not constant."""
        ...

    # Operations.

    def call_function(
        self, function: Variable, arguments: Arguments, keywords: Keywords | None = None
    ) -> Variable:
        """``function(*arguments, **keywords)``."""
        ...

    def call_method(self, variable: Variable, name: str, *arguments: Variable) -> Variable:
        """``variable.name(*arguments)``."""
        ...

    def binary_operation(self, operator: str, left: Variable, right: Variable) -> Variable:
        """``left <operator> right`` by Python's protocol, in-place operators and comparisons included."""
        ...

    def assumed(self, condition: Variable) -> bool | None:
        """What ``condition`` is in this call, which the graph checks; None where nothing may rely on that."""

    def inline_call(
        self, function: FunctionVariable, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        """Evaluate a call of a Python function inside this evaluation."""
        ...
