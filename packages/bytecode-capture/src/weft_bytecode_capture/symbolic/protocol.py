"""What models, variables, regions and parts of the graph know of the evaluator and the capture.

All but :class:`Evaluator` is documented where it is implemented: a frame by ``FrameEvaluator``, the state by
``CaptureState``, the graph by ``GraphBuilder``.  Who knows these protocols only is not imported back.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
import torch.fx
from weft_guards import Predicate, Reason, Source

from .._torch.fakes import FakeTensorMode
from ..sources import DrawnSource
from ..unsupported import Unsupported
from ..user_location import UserLocation
from .capture_options import CaptureOptions, FrameInput
from .captured_exception import CapturedException
from .decode import DecodedCode, DecodedInstruction
from .graph.library_settings import LibrarySettings
from .graph.modes import ModeSwitches
from .graph.transforms import TransformLevels
from .kernel_writes import KernelWrites
from .regions.decisions import DecodeCache, ProgramPoint
from .shapes.data_symbols import DataSymbolSource
from .shapes.symbols import ShapeSymbols

if TYPE_CHECKING:
    from .graph.checkpointed import Checkpoints
    from .graph.storages import Layout
    from .regions.identity.aliases import AliasLedger
    from .side_effects import SideEffects
    from .variables.base import Arguments, Keywords, Variable
    from .variables.builder import VariableBuilder


class Evaluator(Protocol):
    """Evaluates a call: what a model may ask of the frame that it is called in, and of the capture."""

    @property
    def globals(self) -> Globals: ...

    @property
    def frame(self) -> Frame:
        """The frame that the call is in, for what reads or changes its state."""
        ...

    @property
    def state(self) -> State: ...

    @property
    def builder(self) -> VariableBuilder: ...

    @property
    def graph(self) -> Graph: ...

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

    def raise_exception(self, exception: Variable) -> NoReturn:
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

    def handled_exception(self) -> Variable | None:
        """The exception being handled, in this frame or a caller's."""

    def note_handlers(self) -> None:
        """Let the graph know which handlers are in force, in this frame or a caller's."""

    # Values.

    def wrap_constant(self, value: Any) -> Variable:
        """A variable of an immutable constant made during evaluation."""
        ...

    def wrap_result(self, value: Any) -> Variable:
        """A variable of a new Python value: constants, and tuples, lists, dicts and sets of them."""
        ...

    def wrap_known(self, value: Any, label: str | None = None, weak: bool = False) -> Variable:
        """A variable of an object that the guard set may hold itself: a library's or a class's own.

        ``weak``: it is the program's, and guarded to be where it was found; it is not kept alive.
        """
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

    def inline_call(self, function: Variable, arguments: Arguments, keywords: Keywords) -> Variable:
        """Evaluate a call of a Python function inside this evaluation."""
        ...

    def evaluated_text(
        self,
        code: types.CodeType,
        names: MutableMapping[str, Variable],
        dictionary: dict[str, Any],
    ) -> Variable:
        """What a text's code gives, in which ``names`` are looked up before the globals in ``dictionary``."""
        ...

    def class_namespace(self, body: Variable) -> tuple[Variable, dict[str, Variable]]:
        """Evaluate the body of a class: what it returns, and what the class is made of."""
        ...


class Frame(Evaluator, Protocol):
    """A frame that is evaluated, for those who read or change its state."""

    stack: list[Variable | None]
    locals: dict[str, Variable]
    namespace: MutableMapping[str, Variable] | None
    parent: Frame | None
    index: int
    next_index: int
    finished: bool
    suspended: bool
    result: Variable | None
    rolled_loop: Any  # the RolledLoop whose body is being evaluated

    @property
    def code(self) -> types.CodeType: ...

    @property
    def decoded(self) -> DecodedCode: ...

    @property
    def function(self) -> Variable | None: ...

    @property
    def cells(self) -> Mapping[str, Any]: ...

    @property
    def handled(self) -> Variable | None: ...

    @property
    def breaks(self) -> Mapping[int, Any]: ...

    @property
    def iterations(self) -> dict[int, Any]: ...

    def frames(self) -> Iterator[Frame]: ...

    def inlined_codes(self) -> Iterator[types.CodeType]: ...

    def location(self) -> UserLocation: ...

    def run(self) -> Variable: ...

    def unwind(self, error: CapturedException, instruction: DecodedInstruction) -> None: ...

    def pop(self) -> Variable: ...


class Globals(Protocol):
    """A module's globals as functions defined there see them."""

    dictionary: dict[str, Any]
    builtins: Any
    trusted: bool
    written: dict[str, Variable | None]

    def load(self, evaluator: Evaluator, name: str) -> Variable: ...

    def store(self, evaluator: Evaluator, name: str, value: Variable) -> None: ...


class Overrides(Protocol):
    """Code of classes that stands in for operations: ``__torch_function__``, ``__torch_dispatch__``."""

    modes: list[Variable]
    of_arguments: bool

    def receivers(self, evaluator: Evaluator, arguments: Iterable[Variable]) -> list[Variable]: ...

    def overridden(
        self,
        evaluator: Evaluator,
        operation: Callable[..., Any],
        arguments: Sequence[Variable],
        keywords: Keywords,
    ) -> Variable | None: ...

    def dispatched(
        self,
        evaluator: Evaluator,
        operation: Callable[..., Any] | str,
        arguments: Sequence[Variable],
        keywords: Keywords,
    ) -> Variable | None: ...


class Reading(Protocol):
    """What a clock says: a :class:`~.models.libraries.clocks.ClockVariable`."""

    def require_last(self) -> None: ...


class State(Protocol):
    """What all evaluators of one frame's capture share."""

    frame: FrameInput
    options: CaptureOptions
    cache: DecodeCache
    current: Frame | None
    root: Frame | None
    refused: Frame | None
    shapes: ShapeSymbols
    aliases: AliasLedger
    checkpoints: Checkpoints
    region_tags: Any  # the ResultTags, which regions alone know
    region_choices: dict[int, Any]
    key_methods: int
    addressed: list[weakref.ref[Variable]]
    thread_number: Variable | None
    most_digits: int | None
    hashed: dict[Variable, None]
    assumed: list[ProgramPoint]
    class_writes: dict[tuple[type, str], Any]
    kernel_writes: KernelWrites
    drawn: DrawnSource | None
    first_draw: tuple[int, Unsupported] | None
    context: Variable | None
    readings: list[Reading]
    warning_blocks: list[Variable]

    @property
    def graph(self) -> Graph: ...

    @property
    def overrides(self) -> Overrides: ...

    def find_in_type(self, kind: type, name: str) -> tuple[type, Any] | None: ...

    def write_to_class(self, kind: type, name: str, written: Any) -> None: ...

    def note_made(self, value: Any) -> None: ...

    def is_made(self, value: Any) -> bool: ...

    def module_globals(self, dictionary: dict[str, Any]) -> Globals: ...

    def written_globals(self) -> Sequence[Globals]: ...

    def is_identified(self, source: Source) -> bool: ...

    def require_no_caller_handles(self) -> None: ...

    candidate_count: int

    global_hooks_guarded: bool

    def note_repetition(self) -> None: ...

    def note_elements(self, count: int) -> None: ...


class Marks(Protocol):
    """Tensors made in a graph of which the program says that they require gradients."""

    def __bool__(self) -> bool: ...

    def __contains__(self, node: torch.fx.Node, /) -> bool: ...

    def mark(self, evaluator: Evaluator, node: torch.fx.Node, fake: torch.Tensor) -> bool: ...

    def require_unmarked(self, nodes: Iterable[torch.fx.Node]) -> None: ...

    def require_none_among(self, nodes: Iterable[torch.fx.Node]) -> None: ...


class Leaves(Protocol):
    """Leaves that a program makes, which are inputs of the graph."""

    made: list[Any]

    def __contains__(self, node: torch.fx.Node, /) -> bool: ...

    def become(self, evaluator: Evaluator, tensor: Any) -> bool: ...

    def parameter(self, evaluator: Evaluator, tensor: Any, requires_grad: bool) -> Any: ...

    def give_memory(self, evaluator: Evaluator, leaf: Any, value: Any) -> bool: ...


class Graph(Protocol):
    """One frame's graph, as it is built."""

    graph: torch.fx.Graph  # a region's while one is evaluated
    outermost: torch.fx.Graph
    root: torch.nn.Module
    shapes: ShapeSymbols
    modes: ModeSwitches
    library_settings: LibrarySettings
    transforms: TransformLevels
    given: list[tuple[Source, torch.Tensor, torch.Tensor]]
    first_versions: dict[torch.fx.Node, int]
    taken_as_data: set[int]
    made_at: dict[Any, int]
    inlined_at: dict[int, dict[int, types.CodeType]]
    counters: dict[Any, Any]
    optional_gradients: Any  # the OptionalGradients
    region_histories: Any  # the RegionHistories
    in_handled_code: bool
    is_repeated: bool
    symbols_outside: int
    data_place: DataSymbolSource | None
    rules: Any  # the GradientRules
    present_values: Any
    writes_so_far: Any  # the WritesSoFar
    marked_inputs: Any  # the MarkedInputs
    views_of_leaves: Any  # the ViewsOfLeaves
    changed_leaves: Any  # the ChangedLeaves
    hooks: Any  # the TensorHooks

    @property
    def fake_mode(self) -> FakeTensorMode: ...

    @property
    def marked_leaves(self) -> Marks: ...

    @property
    def new_leaves(self) -> Leaves: ...

    def has_tensors(self) -> bool: ...

    def add_placeholder(self, source: Source, fake: torch.Tensor) -> torch.fx.Node: ...

    @property
    def is_in_region(self) -> bool: ...

    def add_input(self, evaluator: Evaluator, tensor: torch.Tensor, source: Source) -> Variable: ...

    def add_attribute(
        self, evaluator: Evaluator, tensor: torch.Tensor, source: Source
    ) -> Variable: ...

    def add_number(self, number: Any, source: Source) -> Variable: ...

    def call_function(
        self,
        evaluator: Evaluator,
        target: Callable[..., Any],
        arguments: Sequence[Variable],
        keywords: Keywords,
    ) -> Variable: ...

    def call_method(
        self,
        evaluator: Evaluator,
        name: str,
        tensor: Variable,
        arguments: Sequence[Variable],
        keywords: Keywords,
    ) -> Variable: ...

    def add_call(
        self, evaluator: Evaluator, target: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> torch.fx.Node: ...

    def node(
        self,
        evaluator: Evaluator,
        kind: str,
        target: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> torch.fx.Node: ...

    def items(self, node: torch.fx.Node) -> list[torch.fx.Node]: ...

    def number(
        self,
        value: Any,
        make_node: Callable[[torch.fx.Graph], torch.fx.Node | None],
        source: Source | None,
    ) -> Variable: ...

    def number_node(self, expression: Any) -> torch.fx.Node | None: ...

    def input_node(self, source: Source) -> torch.fx.Node: ...

    def inputs_by_node(self) -> Mapping[torch.fx.Node, Any]: ...

    def computed(
        self, evaluator: Evaluator, function: Callable[..., Any], numbers: Sequence[Any]
    ) -> Any: ...

    def reading(self, place: DataSymbolSource) -> AbstractContextManager[None]: ...

    def pass_attribute(self, tensor: Any, value: torch.Tensor) -> None: ...

    def layouts(self, before: Mapping[int, Layout] | None = None) -> dict[int, Layout]: ...
