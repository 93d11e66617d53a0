"""Everything private of torch that capture reaches.  Checked on torch 2.13."""

from __future__ import annotations

import contextlib
import importlib
import linecache
import logging
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch._C import TensorBase as TensorBase
from torch._C import _get_privateuse1_backend_name as private_backend_name
from torch._C import _group_tensors_by_device_and_dtype as group_tensors
from torch._C import _InferenceMode as InferenceMode
from torch._C import _is_autocast_available as is_autocast_available
from torch._C import _is_torch_function_mode_enabled as is_torch_function_mode_enabled
from torch._C import _len_torch_dispatch_stack as torch_dispatch_modes
from torch._C import _len_torch_function_stack as torch_function_modes
from torch._C import _log_api_usage_once as log_api_usage_once
from torch._C import _pop_torch_function_stack as pop_torch_function_mode
from torch._C import _push_on_torch_function_stack as push_torch_function_mode
from torch._C import _set_grad_enabled as set_grad_enabled
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch._guards import SLoc
from torch._guards import Source as TorchSource
from torch._higher_order_ops.associative_scan import associative_scan as associative_scan
from torch._higher_order_ops.while_loop import while_loop as while_loop
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket
from torch._prims_common import suggest_memory_format as suggested_format
from torch._refs import expand as checked_expand
from torch._subclasses.fake_tensor import (
    DataDependentOutputException as DataDependentOutputException,
)
from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.fake_tensor import (
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental import _config
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    StrictMinMaxConstraint,
    free_unbacked_symbols,
)
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode as GuardOnDataDependentSymNode,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv as ShapeEnv
from torch.fx.experimental.symbolic_shapes import guard_or_false as guard_or_false
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols as has_unbacked_symbols
from torch.fx.graph_module import _loader as _source_loader
from torch.fx.proxy import GraphAppendingTracer
from torch.optim.optimizer import _get_value as optimizer_value
from torch.optim.optimizer import _stack_if_compiling as optimizer_values
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext
from torch.utils._sympy.functions import FloorDiv as FloorDiv
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.value_ranges import ValueRanges


class FakeForm:
    """Makes fake tensors like a given one at a tenth of what computing them costs.

    Each has memory of its own, or is a view of what ``storage_of`` is in the memory of.
    """

    def __init__(self, mode: FakeTensorMode, like: FakeTensor) -> None:
        """``like``: strided, with sizes that are numbers."""
        self._shape = tuple(like.shape)
        self._strides = like.stride()
        self._offset = like.storage_offset()
        self._dtype = like.dtype
        self._device = like.fake_device
        self._mark: Callable[[torch.Tensor], None] = (
            torch._C._set_warn_deprecated_on_mutable_data_ptr
            if mode._allow_unsafe_data_ptr_access
            else torch._C._set_throw_on_mutable_data_ptr
        )
        # What torch's own constructor gives each of them.
        self._attributes = dict(FakeTensor(mode, self._elements(None), self._device).__dict__)

    def new(self, storage_of: FakeTensor | None = None) -> FakeTensor:
        """Another one; no mode of torch's dispatcher may be active."""
        made: FakeTensor = torch.Tensor._make_subclass(
            FakeTensor,
            self._elements(storage_of),
            False,
            dispatch_device=True,
            device_for_backend_keys=self._device,
        )
        self._mark(made)
        made.__dict__.update(self._attributes)
        return made

    def _elements(self, storage_of: FakeTensor | None) -> torch.Tensor:
        if storage_of is None:
            return torch.empty_strided(self._shape, self._strides, dtype=self._dtype, device="meta")
        empty = torch.empty(0, dtype=self._dtype, device="meta")
        storage = storage_of.untyped_storage()
        return empty.set_(storage, self._offset, self._shape, self._strides)


def computed_constant(
    operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.Tensor:
    """What ``operator`` gives on the known values of fake tensors, all of which have one."""
    values = [_constant(value) for value in args]
    named = {name: _constant(value) for name, value in kwargs.items()}
    with torch._C._DisableTorchDispatch():
        result: torch.Tensor = operator(*values, **named)
    return result


def _constant(value: Any) -> Any:
    return value.constant if isinstance(value, FakeTensor) else value


def hold_constant(mode: FakeTensorMode, fake: FakeTensor, value: torch.Tensor) -> None:
    """Let ``value`` be the known value of a new fake tensor, whose memory that of ``value`` stands for."""
    fake.constant = value
    converter = mode.fake_tensor_converter
    converter.set_tensor_memo(value, fake)
    storage = converter.meta_converter.describer.describe_storage(value.untyped_storage())
    converter.meta_converter.set_storage_memo(storage, fake.untyped_storage())
    converter.add_constant_storage_mapping(fake)


def same_dispatch(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether the dispatcher takes two tensors for the same kind."""
    return bool(torch._C._dispatch_key_set(left) == torch._C._dispatch_key_set(right))


def storage_identity(tensor: torch.Tensor) -> int:
    """A number that two tensors have in common exactly if they share storage; sparse ones share none."""
    if tensor.layout is not torch.strided:
        return -id(tensor)
    return int(tensor.untyped_storage()._cdata)


def has_symbolic_layout(tensor: torch.Tensor) -> bool:
    """Whether a size, a stride or the offset is symbolic."""
    return bool(tensor._has_symbolic_sizes_strides)


def size_hint(number: int | torch.SymInt) -> int | None:
    """A size in the call that is being captured; None for one that depends on data."""
    if isinstance(number, int):
        return number
    known = number.node.has_hint() and not has_unbacked_symbols(number)
    return int(number.node.hint) if known else None


def argument_names(operator: OpOverload) -> list[str]:
    """The names of an operator's arguments, in the schema's order."""
    return [str(argument.name) for argument in operator._schema.arguments]


def is_composite(operator: OpOverload) -> bool:
    """Whether torch computes an operator by others, in a way that may differ by call."""
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(
            operator.name(), torch._C.DispatchKey.CompositeImplicitAutograd
        )
    )


def written_operands(operator: OpOverload) -> list[int]:
    """The positions of an operator's arguments that it may write to."""
    arguments = operator._schema.arguments
    return [
        k for k, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write
    ]


def shares_operands(operator: OpOverload) -> bool:
    """Whether an operator's results may be in the memory of its arguments, as its schema says."""
    return any(result.alias_info is not None for result in operator._schema.returns)


default_device: Callable[[], str] = torch._C._get_default_device


class _OfOtherThreads(logging.Filter):
    """Passes the records that other threads log."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread


@contextlib.contextmanager
def errors_unlogged() -> Iterator[None]:
    """Fake tensors log the traceback of whatever an operator raises; here the caller handles it."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    others = _OfOtherThreads()
    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)


WithoutOverrides: Any = torch._C.DisableTorchFunctionSubclass  # declared as a function

NATIVE_FUNCTIONS = tuple(getattr(torch._C, name) for name in ("_nn", "_fft", "_linalg", "_special"))
"""Where operators' Python functions are, beside the namespace ``torch`` itself."""

assert_tensor_metadata = torch._assert_tensor_metadata

GLOBAL_HOOKS = {
    name: getattr(torch.nn.modules.module, f"_global{name}")
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
}
"""The hooks of all modules, by the name of a module's own."""

TRACING_QUERIES: dict[Any, Any] = {
    torch._C._get_tracing_state: None,
    getattr(torch._C, "_is_tracing", None): False,  # what modules ask since torch 2.15
}
"""What asks whether ``torch.jit.trace`` runs, and its answer if not."""


def python_of_script(function: Any) -> types.FunctionType | None:
    """What ``torch.jit.script`` was given; None for a function of ``torch.jit.trace``, which is not named."""
    source = getattr(function, "_torchdynamo_inline", None)
    is_scripted = getattr(function, "__qualname__", None) == "torch.jit.ScriptFunction"
    return source if is_scripted and isinstance(source, types.FunctionType) else None


OVERRIDE_QUERIES = (
    torch.overrides.has_torch_function,
    torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic,
)
"""What asks whether any of its arguments has an override."""

FAKE_TENSOR_ERRORS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    NotImplementedError,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
"""What operators raise that cannot run on fake tensors although their arguments may be right."""

safe_softmax: Callable[..., torch.Tensor] = torch._safe_softmax

MODULE_CALL = torch.nn.Module._call_impl.__code__
"""The code of a module's call, around its ``forward``."""


LIST_UPDATES: dict[Any, str] = {
    torch._foreach_addcdiv_: "addcdiv_",
    torch._foreach_addcmul_: "addcmul_",
}
"""Functions that update each tensor of a list by a number, and the method that updates one."""


def without_saved_tensor_hooks() -> AbstractContextManager[Any]:
    """Within it none of the program's hooks sees a tensor that autograd saves."""
    autograd: Any = torch._C._autograd
    if not autograd._saved_tensors_hooks_is_enabled():
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_unchanged, _unchanged)


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def mode_of_the_program() -> str | None:
    """The class of a mode on torch's stacks that may change what operators do; None if there is none.

    Other than that of the default device, which operators are captured under.
    """
    for position in range(torch_function_modes()):
        mode = torch._C._get_function_stack_at(position)
        if not isinstance(mode, DeviceContext):
            return type(mode).__qualname__
    if torch_dispatch_modes():
        return "TorchDispatchMode"
    return None


def without_overrides() -> AbstractContextManager[None]:
    """No ``__torch_function__`` of a tensor's class runs inside."""
    context: AbstractContextManager[None] = WithoutOverrides()
    return context


def has_overrides(kind: type) -> bool:
    """Whether a tensor's class has a ``__torch_function__`` that torch asks."""
    function: Any = getattr(kind, "__torch_function__", None)
    return function is not None and function is not torch._C._disabled_torch_function_impl


def is_dispatching_class(kind: type) -> bool:
    """Whether a tensor's class overrides operators below autograd, or holds other tensors."""
    function: Any = getattr(kind, "__torch_dispatch__", None)
    return function is not torch.Tensor.__torch_dispatch__


def is_uninitialized(tensor: torch.Tensor) -> bool:
    """Whether a lazy module is still to say the tensor's size."""
    return isinstance(tensor, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer))


def forget_source_with(module: torch.fx.GraphModule) -> None:
    """Let the text of a module's code go with the module; torch.fx keeps it for good, for tracebacks."""
    weakref.finalize(module, _forget_source, module.forward.__code__.co_filename).atexit = False


def _forget_source(name: str) -> None:
    linecache.cache.pop(name, None)
    _source_loader.eval_cache.pop(name, None)


@dataclass(frozen=True)
class TorchMarks:
    """Attributes by which torch's own functions mark a tensor's dimensions.

    ``dynamic`` maps each attribute that holds dimensions to the least size that it says (None: none).
    """

    dynamic: dict[str, int | None] = field(
        default_factory=lambda: {
            "_dynamo_dynamic_indices": None,
            "_dynamo_unbacked_indices": 0,
        }
    )
    ranges: str = "_dynamo_dynamic_range"  # entries with dim, min and max
    static: str = "_dynamo_static_indices"
    preferred: str = "_dynamo_weak_dynamic_indices"  # of maybe_mark_dynamic


TORCH_MARKS = TorchMarks()


def import_what_fake_tensors_need() -> None:
    """Import what torch imports when the first ``ShapeEnv`` and ``FakeTensorMode`` are made.

    In a thread, since modules keep exceptions that importing them raised, and those the frames below.
    """
    name = "torch.fx.experimental.validator"
    if name not in sys.modules:
        thread = threading.Thread(target=importlib.import_module, args=(name,), name="weft-import")
        thread.start()
        thread.join()


class PlacelessShapeEnv(ShapeEnv):
    """A ShapeEnv that does not note which line asked: weft's relations say which of the user's did.

    To tell the user's lines from its own, torch imports its compiler when the first symbol is made, which
    takes longer than capturing a small model.
    """

    def _get_stack_summary(
        self, is_debug: bool = False, framework_loc: str | None = None
    ) -> tuple[SLoc, str]:
        return SLoc(framework_loc or "", None), ""

    def _log_create_unbacked_symbol(self, *arguments: Any, **keywords: Any) -> None:
        """Note nothing of a symbol without a value either."""


class _NamedSource(TorchSource):
    """What a ShapeEnv wants to know of where a number came from: a name."""

    def __init__(self, name: str) -> None:
        self.__dict__["name"] = name


def new_symbol(
    environment: ShapeEnv, number: int | float, name: str, lower: int | None, upper: int | None
) -> Any:
    """A symbol of its own for a number, as an expression; an integer's is within ``lower .. upper``.

    ``lower`` None leaves the sign open.
    """
    constraint = None
    if isinstance(number, int):
        bounds = ValueRanges(
            -int_oo if lower is None else sympy.Integer(lower),
            int_oo if upper is None else sympy.Integer(upper),
        )
        constraint = StrictMinMaxConstraint(warn_only=False, vr=bounds)
    return environment.create_symbol(
        number,
        _NamedSource(name),
        DimDynamic.DYNAMIC,
        constraint,
        # A positive symbol is never equal to 0, whatever its range.
        positive=True if lower is not None and lower > 0 else None,
        do_not_specialize_zero_one=True,
    )


def symbolic_number(environment: ShapeEnv, expression: Any, hint: int | float) -> Any:
    """A SymInt or SymFloat of an expression, a plain int where the expression is a number."""
    if isinstance(hint, int):
        return environment.create_symintnode(expression, hint=hint)
    return environment.create_symfloatnode(expression, hint=hint)


def oblivious_of_one() -> AbstractContextManager[None]:
    """Within it a symbolic size is taken to be none of 0 and 1 where both ways come to the same."""
    config: Any = _config  # its functions are made at run time
    context: AbstractContextManager[None] = config.patch(backed_size_oblivious=True)
    return context


def expression_of(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """A symbolic number's SymPy expression, with what is known by now put in."""
    return number.node.expr


OPAQUE_METACLASSES: tuple[type, ...] = tuple(
    {type(torch.distributed.ProcessGroup)} - {type} if torch.distributed.is_available() else ()
)
"""Metaclasses whose ``isinstance()`` looks through torch's stand-ins, which programs do not see."""


def functional_collectives() -> Any:
    """The module of torch's functional collectives; importing it registers their gradients and fakes."""
    return importlib.import_module("torch.distributed._functional_collectives")


def flexible_attention() -> Any:
    """The module of ``flex_attention`` and its block masks."""
    return importlib.import_module("torch.nn.attention.flex_attention")


def distributed_functions() -> Any:
    """The module that ``torch.distributed``'s functions are written in."""
    return importlib.import_module("torch.distributed.distributed_c10d")


def finished_work() -> Any:
    """A handle of a collective that has ended."""
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result([])
    native: Any = torch._C._distributed_c10d
    return native._create_work_from_future(future)


APPLY: Any = vars(torch.autograd.Function)["apply"]
"""``autograd.Function.apply`` as its class holds it: a class method, written in C since torch 2.14."""

APPLY_TAKES_KEYWORDS = torch.__version__ >= "2.12"
"""Whether ``autograd.Function.apply`` hands keyword arguments on to a forward without a context."""

FAKES_TAKE_SIZES_OF_DATA = torch.__version__ >= "2.13"
"""Whether fake tensors are written and sliced without asking for a size that depends on data."""

__all__ = [
    "APPLY",
    "APPLY_TAKES_KEYWORDS",
    "FAKES_TAKE_SIZES_OF_DATA",
    "FAKE_TENSOR_ERRORS",
    "GLOBAL_HOOKS",
    "LIST_UPDATES",
    "MODULE_CALL",
    "NATIVE_FUNCTIONS",
    "OPAQUE_METACLASSES",
    "OVERRIDE_QUERIES",
    "TORCH_MARKS",
    "TRACING_QUERIES",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "FloorDiv",
    "GuardOnDataDependentSymNode",
    "HigherOrderOperator",
    "InferenceMode",
    "OpOverload",
    "OpOverloadPacket",
    "PlacelessShapeEnv",
    "ShapeEnv",
    "TensorBase",
    "UnsupportedFakeTensorException",
    "WithoutOverrides",
    "argument_names",
    "associative_scan",
    "assume",
    "checked_expand",
    "constant_term",
    "deferred_checks",
    "distributed_functions",
    "enable_python_dispatcher",
    "expression_of",
    "extremes",
    "finished_work",
    "flexible_attention",
    "forget_source_with",
    "functional_collectives",
    "group_tensors",
    "guard_or_false",
    "has_overrides",
    "has_unbacked_symbols",
    "import_what_fake_tensors_need",
    "is_autocast_available",
    "is_dispatching_class",
    "is_torch_function_mode_enabled",
    "is_unbacked",
    "is_uninitialized",
    "known_bounds",
    "log_api_usage_once",
    "mode_of_the_program",
    "new_float",
    "new_integer",
    "new_symbol",
    "oblivious_of_one",
    "optimizer_value",
    "optimizer_values",
    "pop_torch_function_mode",
    "private_backend_name",
    "push_torch_function_mode",
    "pytree",
    "set_grad_enabled",
    "size_hint",
    "suggested_format",
    "symbolic_number",
    "torch_dispatch_modes",
    "torch_function_modes",
    "unbacked_symbols",
    "within",
    "without_overrides",
    "without_saved_tensor_hooks",
]


def assume(condition: bool | torch.SymBool) -> None:
    """Let what is asked of symbolic integers from now on be answered as if ``condition`` held always."""
    torch._check(condition)


def new_integer(mode: FakeTensorMode, low: int | None, high: int | None) -> torch.SymInt:
    """A symbolic integer of which only its bounds are known, both included (None: unbounded).

    A decision that its value would have to make raises :class:`GuardOnDataDependentSymNode`.
    """
    environment = mode.shape_env
    assert environment is not None
    with environment.ignore_fresh_unbacked_symbols():
        integer: torch.SymInt = environment.create_unbacked_symint()
    environment.var_to_range[integer.node.expr] = ValueRanges(
        -int_oo if low is None else low, int_oo if high is None else high
    )
    return integer


def known_bounds(number: int | torch.SymInt) -> tuple[int | None, int | None]:
    """The least and the greatest value that an integer may have in any call (None: unbounded)."""
    if isinstance(number, int):
        return number, number
    found = number.node.shape_env.bound_sympy(number.node.expr)
    ends = [int(end) if end.is_Integer else None for end in (found.lower, found.upper)]
    return ends[0], ends[1]


Bounds = Mapping[Any, tuple[int | torch.SymInt, int | torch.SymInt]]


def extremes(number: torch.SymInt, bounds: Bounds) -> tuple[Any, Any] | None:
    """The least and the greatest value of a number in which the symbols in ``bounds`` are within these.

    A bound may depend on symbols that come before its own.  None where the number is not linear in one.
    """
    environment = number.node.shape_env
    ends = [number.node.expr] * 2
    for symbol, (low, high) in reversed(list(bounds.items())):
        for k, limits in enumerate(((low, high), (high, low))):
            slope = ends[k].coeff(symbol)
            rest = sympy.expand(ends[k] - slope * symbol)
            slopes = environment.bound_sympy(slope)
            if symbol in rest.free_symbols or slopes.lower < 0 < slopes.upper:
                return None
            limit = limits[0] if slopes.lower >= 0 else limits[1]
            ends[k] = sympy.expand(rest + slope * _expression(limit))
    return tuple(_number(environment, end) for end in ends)  # type: ignore[return-value]


def _expression(number: int | torch.SymInt) -> Any:
    return number.node.expr if isinstance(number, torch.SymInt) else sympy.Integer(number)


def _number(environment: ShapeEnv, expression: Any) -> int | torch.SymInt:
    if expression.is_Integer:
        return int(expression)
    made: int | torch.SymInt = environment.create_symintnode(expression, hint=None)
    return made


def new_float(mode: FakeTensorMode) -> torch.SymFloat:
    """A symbolic float of which nothing is known."""
    environment = mode.shape_env
    assert environment is not None
    with environment.ignore_fresh_unbacked_symbols():
        number: torch.SymFloat = environment.create_unbacked_symfloat()
    return number


def unbacked_symbols(number: Any) -> frozenset[Any]:
    """The symbols in a symbolic number that have no value in the call that is captured."""
    if not isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
        return frozenset()
    return frozenset(free_unbacked_symbols(number.node.expr))


def is_unbacked(expression: Any) -> bool:
    """Whether an expression has a symbol that stands for a number that depends on data."""
    return bool(free_unbacked_symbols(expression))


def within(number: torch.SymInt, bound: int) -> bool:
    """Whether a symbolic integer is known to be from ``-bound`` to ``bound``; free sizes count as small."""
    environment = number.node.shape_env
    unbounded = ValueRanges(-int_oo, int_oo)
    expression = number.node.expr
    small = {symbol: sympy.S.One for symbol in expression.free_symbols if not is_unbacked(symbol)}
    found = environment.bound_sympy(expression.xreplace(small))
    return bool(found != unbounded and found.lower >= -bound and found.upper <= bound)


def deferred_checks(environment: ShapeEnv) -> int:
    """How many conditions on unbacked numbers have been relied on that a call has to check."""
    return int(environment.num_deferred_runtime_asserts)


def constant_term(number: torch.SymInt) -> int:
    """The integer that a symbolic number has added to its symbols."""
    constant, _ = number.node.expr.as_coeff_Add()
    return int(constant) if constant.is_Integer else 0


class _NodesOfSizes(GraphAppendingTracer):
    """Appends nodes that compute sizes, whose values are computed with them."""

    def create_node(self, *call: Any, **keywords: Any) -> torch.fx.Node:
        node = super().create_node(*call, **keywords)
        target: Any = node.target
        arguments: Any = torch.fx.map_arg(node.args, lambda n: n.meta["example_value"])
        node.meta["example_value"] = target(*arguments)
        return node


def append_size(
    expression: Any, symbols: Mapping[Any, torch.fx.Node], graph: torch.fx.Graph
) -> torch.fx.Node:
    """Append the nodes that compute ``expression`` of the symbols' nodes; gives the last one."""
    tracer = _NodesOfSizes(graph)
    known = {symbol: torch.fx.Proxy(node, tracer) for symbol, node in symbols.items()}
    node: torch.fx.Node = sympy_interp(PythonReferenceAnalysis, known, expression).node
    return node


def runs_in_backward() -> bool:
    """Whether autograd's engine calls this, on this thread."""
    return bool(torch._C._current_graph_task_id() >= 0)
