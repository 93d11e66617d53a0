"""The private torch API that this package uses, in one place.  Checked on torch 2.13."""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
import torch.fx
from torch._C import _functorch
from torch._C._functorch import is_functorch_wrapped_tensor as is_of_level
from torch._decomp.decompositions import upsample_compute_output_size
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    ShapeEnv,
    free_unbacked_symbols,
    statically_known_true,
)
from torch.fx.proxy import GraphAppendingTracer
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
    _pop_mode_temporarily,
)
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.value_ranges import ValueRanges

from ..unsupported import Unsupported
from .whole_operators import composed_of_others, is_list_operator, run_by_element

__all__ = [
    "DATA_DEPENDENT_ERRORS",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "LazyGraphModule",
    "OpOverload",
    "OpOverloadPacket",
    "as_symbol",
    "assume",
    "composed_of_others",
    "enter_autocast",
    "errors_unlogged",
    "exit_autocast",
    "expression_nodes",
    "expression_of",
    "is_innermost",
    "is_list_operator",
    "is_of_level",
    "is_python_operator",
    "keeping_version",
    "known_bounds",
    "known_equal",
    "known_true",
    "lazily_negated",
    "leaving_transforms",
    "new_fake_mode",
    "new_integer",
    "nodes_of_autograd_made",
    "number_hint",
    "number_of_node",
    "python_function",
    "pytree",
    "refuse_writes",
    "resized_shape",
    "result_count_of_node",
    "run_by_element",
    "saved_tensor_hooks_enabled",
    "schema_arguments",
    "set_grad_enabled",
    "share_version",
    "size_hint",
    "storage_identity",
    "version_of",
    "view_base",
    "without_innermost_mode",
    "without_modes",
    "without_python_forms",
    "write_refusal",
]

# What FakeTensorMode raises where a result's value or shape depends on the data.
DATA_DEPENDENT_ERRORS: tuple[type[Exception], ...] = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    GuardOnDataDependentSymNode,
)

enter_autocast: Callable[..., Any] = torch.amp.autocast_mode._enter_autocast
exit_autocast: Callable[..., Any] = torch.amp.autocast_mode._exit_autocast
set_grad_enabled = torch._C._set_grad_enabled


@contextlib.contextmanager
def errors_unlogged() -> Iterator[None]:
    """Keep fake tensors from logging the errors of bad arguments, which are raised anyway."""
    logger, thread = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)


_kinds: Any = _functorch.TransformType
_LEAVE: dict[Any, Callable[[], int]] = {
    _kinds.Vmap: _functorch._vmap_decrement_nesting,
    _kinds.Grad: _functorch._grad_decrement_nesting,
    _kinds.Jvp: _functorch._jvp_decrement_nesting,
}


@contextlib.contextmanager
def leaving_transforms(graph: torch.fx.Graph) -> Iterator[None]:
    """An error leaves the levels of function transforms that ``graph``, which is run, has entered."""
    depth = _functorch.get_dynamic_layer_stack_depth()
    allowed = _functorch.get_inplace_requires_grad_allowed()
    forward_mode = torch._C._is_fwd_grad_enabled()
    try:
        yield
    except BaseException:  # after an interrupt too
        while _functorch.get_dynamic_layer_stack_depth() > depth:
            _LEAVE[_functorch.peek_interpreter_stack().key()]()
        _functorch.set_inplace_requires_grad_allowed(allowed)
        torch._C._set_fwd_grad_enabled(forward_mode)
        if any(node.target is torch._C._enter_dual_level for node in graph.nodes):
            with contextlib.suppress(RuntimeError):  # there is one already, and never two
                torch._C._enter_dual_level()
            torch._C._exit_dual_level(level=0)
        raise


def copy_all(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy the second of each pair to the first, of which autograd isn't told, in few calls."""
    targets, values = [], []
    with torch.no_grad():
        for target, value in pairs:
            if target.is_conj() or target.is_neg():  # torch writes to no list with such a tensor
                target.copy_(value)
            else:
                targets.append(target)
                values.append(value)
        if targets:
            torch._foreach_copy_(targets, values)


def resized_shape(shape: Sequence[Any], factors: Sequence[float]) -> list[Any]:
    """The last sizes of an image that is resized by ``factors``."""
    found: list[Any] = upsample_compute_output_size(shape, None, factors)
    return found


def without_python_forms() -> contextlib.AbstractContextManager[None]:
    """A context without the forms in Python that operators have above autograd, for symbolic sizes."""
    context: contextlib.AbstractContextManager[None] = torch._C._DisablePythonDispatcher()
    return context


def view_base(tensor: torch.Tensor) -> torch.Tensor:
    """What autograd takes ``tensor`` as a view of: itself, if of nothing else."""
    base: torch.Tensor | None = tensor._base
    return tensor if base is None else base


class WriteRefusal(enum.Enum):
    """Why autograd refuses writes to a view where it records them; the names are torch's."""

    MULTI_OUTPUT_NODE = "an operator gave it beside other views"
    NO_GRAD_MODE = "made with gradients disabled"
    INFERENCE_MODE = "made in inference mode"


def write_refusal(tensor: torch.Tensor) -> WriteRefusal | None:
    """Why autograd refuses writes to ``tensor`` where it records them: by how the view was made."""
    if tensor.is_inference() or not tensor._is_view():
        return None
    autograd: Any = torch._C._autograd
    return WriteRefusal.__members__.get(autograd._get_creation_meta(tensor).name)


def lazily_negated(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the negative values, as the imaginary part of a lazy conjugate is."""
    return torch._neg_view(tensor)


def refuse_writes(view: torch.Tensor, refusal: WriteRefusal) -> None:
    """Let autograd refuse writes to a view."""
    if not view.is_inference() and view._is_view():
        autograd: Any = torch._C._autograd
        autograd._set_creation_meta(view, autograd.CreationMeta.__members__[refusal.name])


def saved_tensor_hooks_enabled() -> bool:
    """Whether hooks for the tensors that autograd saves may be set."""
    autograd: Any = torch._C._autograd
    return bool(autograd._saved_tensors_hooks_is_enabled())


def number_of_node(node: Any) -> int:
    """How many nodes of autograd's graph its thread had made before ``node``."""
    return int(node._sequence_nr())


def result_count_of_node(node: Any) -> int:
    """How many results of a node of autograd's graph can have gradients."""
    return len(node._input_metadata)


def nodes_of_autograd_made() -> int:
    """How many nodes of autograd's graph this thread has made: the number of the next."""
    return int(torch._C._autograd._get_sequence_nr())


assert_tensor_metadata = torch._assert_tensor_metadata
"""Reads a tensor, and compares what it is told of its size, strides, dtype, device and layout."""


def without_levels(tensor: torch.Tensor) -> torch.Tensor:
    """What function transforms have wrapped: of ``vmap`` the tensor with the mapped dimension."""
    while is_of_level(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


class DispatchMode(TorchDispatchMode):
    """A dispatch mode for threads on which torch compiles no frame: it is not told to leave calls alone."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def is_innermost(mode: DispatchMode) -> bool:
    """Whether ``mode`` is the first that is told of operators."""
    return _get_current_dispatch_mode() is mode


def without_innermost_mode() -> contextlib.AbstractContextManager[Any]:
    """A context in which the first mode that is told of operators is told of none."""
    context: contextlib.AbstractContextManager[Any] = _pop_mode_temporarily()
    return context


def storage_identity(tensor: torch.Tensor) -> int:
    """A number that two tensors have in common exactly if they share storage."""
    return int(without_levels(tensor).untyped_storage()._cdata)


def is_python_operator(operator: OpOverload) -> bool:
    """Whether ``operator`` was defined by ``torch.library.custom_op``."""
    return operator._schema.name in torch._library.custom_ops.OPDEFS


@functools.cache
def base_name(operator: OpOverload) -> str:
    """What torch.fx calls nodes of ``operator``, which it makes of the operator's name for each node."""
    return torch.fx.Graph()._target_to_str(operator)


@functools.cache
def schema_arguments(operator: OpOverload) -> tuple[Any, ...]:
    """The arguments of an operator's schema, in order (``torch._C.Argument``)."""
    return tuple(operator._schema.arguments)


def expression_of(number: Any) -> Any:
    """A symbolic number's SymPy expression, with what is known by now put in."""
    return number.node.expr


def known_true(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on sizes holds for all that they may be."""
    return bool(statically_known_true(condition))


def known_at_most(left: Any, right: Any) -> bool:
    """Whether one size is at most the other for all that they may be.

    What is between them may be a product, ``s * (n - 1 - i)`` of a row ``i`` of ``n``, of which no factor is
    negative.
    """
    between = right - left
    if known_true(between >= 0) or not isinstance(between, torch.SymInt):
        return known_true(between >= 0)
    environment = between.node.shape_env
    sign, factors = sympy.factor(between.node.expr).as_coeff_mul()
    if sign < 0:
        place = next((k for k, f in enumerate(factors) if f.is_Add), 0)
        factors = (*factors[:place], -factors[place], *factors[place + 1 :])
    made = (environment.create_symintnode(factor, hint=None) for factor in factors)
    return all(known_true(number >= 0) or known_true(number > -1) for number in made)


def known_equal(left: Any, right: Any) -> bool:
    """Whether two sizes are equal in every call; symbolic ones are not compared as they fall now."""
    if left is right or (type(left) is type(right) is int):
        return bool(left == right)
    if type(left) is type(right) is torch.SymInt and expression_of(left) == expression_of(right):
        return True  # comparing them makes an expression each time
    return bool(statically_known_true(left == right))


def size_hint(number: Any) -> int:
    """A size in the call that is being compiled; nothing may be concluded from it for other calls.

    Sizes that depend on data are taken to be middling.
    """
    if isinstance(number, int):
        return number
    if number.node.expr.is_number:  # as the elements of (u0, 0), whose hint is missing
        return int(number.node.expr)
    unknown = free_unbacked_symbols(number.node.expr)
    if not unknown and number.node.hint is not None:
        return int(number.node.hint)
    environment = number.node.shape_env
    expression = number.node.expr.subs(dict.fromkeys(unknown, _MIDDLING))
    known = environment.create_symintnode(expression, hint=None)
    return int(known if isinstance(known, int) else known.node.hint)


_MIDDLING = 64


def number_hint(number: Any) -> Any:
    """A number in the call that is being compiled; None for one that depends on data."""
    if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        node = number.node
        return node.hint if node.has_hint() and not free_unbacked_symbols(node.expr) else None
    return number


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Let operators run on real tensors as they do outside every mode, gradients and autocast included."""
    disabled: Any = torch._C._DisableAutocast
    with _disable_current_modes(), torch.no_grad(), disabled():
        yield


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """Let composite operators be made of torch's own ones."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def is_data_dependent(symbol: Any) -> bool:
    """Whether a symbol stands for a number that depends on data."""
    return bool(free_unbacked_symbols(symbol))


def data_dependent_symbols(numbers: Sequence[Any]) -> dict[Any, torch.SymInt]:
    """The integers that depend on data and that the symbolic ``numbers`` are computed from, by symbol."""
    return {
        symbol: number.node.shape_env.create_symintnode(symbol, hint=None)
        for number in numbers
        if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool))
        for symbol in free_unbacked_symbols(number.node.expr)
    }


def with_value(number: Any, symbol: Any, value: int) -> Any:
    """A number, or the expression that a symbolic one is where ``symbol`` is ``value``."""
    return number.node.expr.subs(symbol, value) if isinstance(number, torch.SymInt) else number


def is_zero(expression: Any) -> bool:
    """Whether an expression, or a number, is zero whatever its symbols are."""
    return bool(sympy.expand(expression) == 0)


def at_least_one(size: Any) -> Any:
    """A size that depends on data, or else 1 where it is 0; another size as it is."""
    if isinstance(size, int) or not free_unbacked_symbols(size.node.expr):
        return size
    return torch.sym_max(size, 1)


def is_empty(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no elements in any call."""
    return any(known_equal(size, 0) for size in tensor.shape)


def _called(function: Callable[..., Any], *operands: Any) -> Any:
    """What a call gives, or its node where an operand is a proxy: Python's functions take none."""
    for operand in operands:
        if isinstance(operand, torch.fx.Proxy):
            return operand.tracer.create_proxy("call_function", function, operands, {})
    return function(*operands)


class _NodeAnalysis(PythonReferenceAnalysis):
    """What SymPy functions are on a graph's proxies, where torch's own analysis is for numbers only."""

    @staticmethod
    def int_truediv(left: Any, right: Any) -> Any:
        return left / right

    @staticmethod
    def trunc_to_int(value: Any, dtype: torch.dtype) -> Any:
        return _called(math.trunc, value)

    @staticmethod
    def floor_to_int(value: Any, dtype: torch.dtype) -> Any:
        return _called(math.floor, value)

    @staticmethod
    def ceil_to_int(value: Any, dtype: torch.dtype) -> Any:
        return _called(math.ceil, value)

    @staticmethod
    def round_to_int(value: Any, dtype: torch.dtype) -> Any:
        return _called(round, value)

    @staticmethod
    def expr_cond_pair(value: Any, condition: Any) -> tuple[Any, Any]:
        return value, condition

    @staticmethod
    def piecewise(*pairs: tuple[Any, Any]) -> Any:
        result = pairs[-1][0]
        for value, condition in reversed(pairs[:-1]):
            result = _called(torch.sym_ite, condition, value, result)
        return result


def as_symbol(part: Any, expression: Any) -> tuple[Any, Any]:
    """A symbol that stands for ``part``, an expression, and ``expression`` with it in the place of that."""
    kind = type(next(iter(part.free_symbols)))
    symbol = kind(f"({part})", integer=True, nonnegative=True)
    return symbol, expression.subs(part, symbol)


def expression_nodes(
    expression: Any,
    symbols: Mapping[Any, torch.fx.Node],
    graph: torch.fx.Graph,
    before: torch.fx.Node,
) -> torch.fx.Node:
    """Insert the nodes that compute ``expression`` of the symbols' nodes; gives the last one."""
    tracer = GraphAppendingTracer(graph)
    known = {symbol: torch.fx.Proxy(node, tracer) for symbol, node in symbols.items()}
    with graph.inserting_before(before):
        result = sympy_interp(_NodeAnalysis, known, expression)
    node: torch.fx.Node = result.node
    return node


def python_function(expression: Any, symbols: Sequence[Any]) -> Callable[..., Any]:
    """A function of numbers, in the order of ``symbols``, that gives the expression's value."""
    source = PythonPrinter().doprint(expression)
    code = compile(f"lambda {', '.join(map(str, symbols))}: {source}", __file__, "eval")
    function: Callable[..., Any] = eval(code, {"math": math, "torch": torch})
    return function


def is_erased(node: torch.fx.Node) -> bool:
    """Whether a node has been taken out of its graph."""
    return bool(node._erased)


class DeferredChecks:
    """The conditions on numbers that depend on data which the fake mode has come to rely on."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._environment = mode.shape_env
        self._count = self._known()
        self._seen = {id(check) for check in self._all()}

    def _known(self) -> int:
        environment = self._environment
        return 0 if environment is None else int(environment.num_deferred_runtime_asserts)

    def _all(self) -> list[Any]:
        environment = self._environment
        if environment is None:
            return []
        return [check for row in environment.deferred_runtime_asserts.values() for check in row]

    def new(self) -> list[torch.SymBool]:
        """Those since the last time it was asked."""
        if self._known() == self._count:
            return []
        self._count = self._known()
        assert self._environment is not None
        found = []
        for check in self._all():
            if id(check) not in self._seen:
                self._seen.add(id(check))
                found.append(self._environment.create_symboolnode(check.expr))
        return found


def new_fake_mode(numbers: Sequence[Any] = ()) -> FakeTensorMode:
    """A fake mode in which ``numbers`` have their meaning, the symbolic ones among them.

    Without any it can make symbolic integers, but refuses results whose shape depends on data.
    """
    for number in numbers:
        if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
            return FakeTensorMode(shape_env=number.node.shape_env)
    return FakeTensorMode(
        shape_env=ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    )


def known_bounds(number: int | torch.SymInt) -> tuple[int | None, int | None]:
    """The least and the greatest value that an integer may have in any call (None: unbounded)."""
    if isinstance(number, int):
        return number, number
    found = number.node.shape_env.bound_sympy(number.node.expr)
    ends = [int(end) if end.is_Integer else None for end in (found.lower, found.upper)]
    return ends[0], ends[1]


def assume(condition: bool | torch.SymBool) -> None:
    """Let what is asked of symbolic integers from now on be answered as if ``condition`` held always.

    A size that data decides, of one element at most, is not known to be 1 by it: outside a loop it may be 0.
    """
    ranges = condition.node.shape_env.var_to_range if isinstance(condition, torch.SymBool) else {}
    before = {symbol: ranges[symbol] for symbol in free_unbacked_symbols(condition)}
    torch._check(condition)
    ranges.update((symbol, r) for symbol, r in before.items() if ranges[symbol].is_singleton())


def new_integer(mode: FakeTensorMode, low: int | None, high: int | None) -> torch.SymInt:
    """A symbolic integer of which nothing is known but its bounds (None: unbounded), both included.

    A decision that its value would have to make raises one of ``DATA_DEPENDENT_ERRORS``.
    """
    env = mode.shape_env
    if env is None:
        raise Unsupported("loop counter", "the fake mode has no ShapeEnv")
    with env.ignore_fresh_unbacked_symbols():
        integer = env.create_unbacked_symint()
    env.var_to_range[integer.node.expr] = ValueRanges(
        -int_oo if low is None else low, int_oo if high is None else high
    )
    return integer


def keeping_version(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Writes to ``tensor`` in the block are not counted."""
    return torch.autograd.grad_mode._unsafe_preserve_version_counter(tensor)


def alias_of_one_version(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` without its history, with writes counted as its own: in a dispatch mode too.

    There ``detach`` runs below what counts writes.
    """
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return tensor.detach()


def version_of(tensor: torch.Tensor) -> int:
    """How many writes autograd has counted, 0 for inference tensors."""
    return 0 if tensor.is_inference() else tensor._version


def share_version(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether autograd counts writes to one tensor as writes to the other; not for inference tensors."""
    with keeping_version(left):
        before = right._version
        torch.autograd.graph.increment_version(left)
        return bool(right._version != before)
