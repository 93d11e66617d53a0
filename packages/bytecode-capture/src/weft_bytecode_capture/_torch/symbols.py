"""What capture reaches of torch's symbolic numbers."""

from __future__ import annotations

import builtins
import importlib
import itertools
import sys
import threading
import types
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import sympy
import torch
from torch._guards import SLoc
from torch._guards import Source as TorchSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import _config
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StrictMinMaxConstraint,
    free_unbacked_symbols,
    guard_or_false,
    statically_known_true,
)
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols as has_unbacked_symbols
from torch.fx.proxy import GraphAppendingTracer
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.value_ranges import ValueRanges

from .rounded_sizes import rounded_up

__all__ = [
    "GuardOnDataDependentSymNode",
    "ShapeEnv",
    "guard_or_false",
    "has_unbacked_symbols",
    "statically_known_true",
]


def has_symbolic_layout(tensor: torch.Tensor) -> bool:
    """Whether a size, a stride or the offset is symbolic."""
    return bool(tensor._has_symbolic_sizes_strides)


def has_known_sizes(tensor: torch.Tensor) -> bool:
    """Whether sizes and strides are numbers; the offset may be symbolic, as of a row in a loop."""
    if not tensor._has_symbolic_sizes_strides:
        return True
    return all(type(number) is int for number in (*tensor.shape, *tensor.stride()))


def size_hint(number: int | torch.SymInt | torch.SymBool) -> int | None:
    """A size in the call that is being captured; None for one that depends on data."""
    if isinstance(number, int):
        return number
    known = number.node.has_hint() and not has_unbacked_symbols(number)
    return int(number.node.hint) if known else None


def size_in_some_call(number: int | torch.SymInt) -> int:
    """A size in the call that is being captured, where what depends on data is as large as it may well be."""
    known = size_hint(number)
    if known is not None:
        return known
    assert isinstance(number, torch.SymInt)
    unbacked = dict.fromkeys(unbacked_symbols(number), _ANY_SIZE)
    found = substituted(number, unbacked)
    return found if isinstance(found, int) else int(found.node.hint)


_ANY_SIZE = 7


_VALIDATOR = "torch.fx.experimental.validator"
"""The module that torch imports, and its compiler with it, when it makes a ``ShapeEnv``."""


SETTINGS = ("torch._dynamo.config", "torch._functorch.config")
"""Modules of what may be set about fake modes; while none is loaded, the environment says all."""


def import_what_fake_tensors_need() -> None:
    """Import what torch imports to compute on fake tensors and to make symbols of sizes."""
    if not all(name in sys.modules for name in SETTINGS):
        import_apart(_VALIDATOR)


def import_apart(name: str) -> None:
    """Import a module that torch imports as it computes on fake tensors, where it is not loaded.

    In a thread, since modules keep exceptions that importing them raised, and those the frames below.
    """
    if name in sys.modules:
        return
    thread = threading.Thread(target=importlib.import_module, args=(name,), name="weft-import")
    thread.start()
    thread.join()


def _import_but_validator(
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: tuple[str, ...] = (),
    level: int = 0,
) -> Any:
    """``__import__`` for those who only ask the validator whether it is on, which it is not."""
    if name == _VALIDATOR:
        return types.SimpleNamespace(translation_validation_enabled=lambda: False)
    return builtins.__import__(name, globals, locals, fromlist, level)


def _without_validator(function: Callable[..., None]) -> Callable[..., None]:
    """``function`` of torch's, which does not import the validator."""
    own = {**vars(builtins), "__import__": _import_but_validator}
    made = types.FunctionType(
        function.__code__,
        {**function.__globals__, "__builtins__": own},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class SourcelessShapeEnv(ShapeEnv):
    """A ShapeEnv that does not note which line asked: weft's relations say which of the user's did.

    To tell the user's lines from its own, torch imports its compiler when the first symbol is made, which
    takes longer than capturing a small model; and when the environment itself is made, to learn that its
    guards are not to be validated.
    """

    def __init__(self, **options: Any) -> None:
        self._begin(ShapeEnv.__init__, options)

    def _init(self, **options: Any) -> None:
        self._begin(ShapeEnv._init, options)

    def _begin(self, function: Callable[..., None], options: dict[str, Any]) -> None:
        is_validated = _VALIDATOR in sys.modules or _config.translation_validation
        (function if is_validated else _without_validator(function))(self, **options)

    def replace(self, expr: Any) -> Any:  # type: ignore[override]  # torch's has a cache
        """As torch's, which puts in what symbols are known to be; and with multiples seen as such."""
        return super().replace(rounded_up(expr))

    def _set_replacement(self, a: Any, tgt: Any, msg: str) -> None:
        """As torch's, but what data decides stays a symbol: a call checks that it is what was relied on."""
        if tgt.is_number and free_unbacked_symbols(a):
            return
        super()._set_replacement(a, tgt, msg)

    def _get_stack_summary(
        self, is_debug: bool = False, framework_loc: str | None = None
    ) -> tuple[SLoc, str]:
        return SLoc(framework_loc or "", None), ""

    def _log_create_unbacked_symbol(self, *arguments: Any, **keywords: Any) -> None:
        """Note nothing of an unbacked symbol either."""


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
    import_what_fake_tensors_need()
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


def assume(condition: bool | torch.SymBool) -> None:
    """Let what is asked of symbolic integers from now on be answered as if ``condition`` held always.

    A size that data decides, of one element at most, is not known to be 1 by it: outside a loop it may be 0.
    """
    ranges = condition.node.shape_env.var_to_range if isinstance(condition, torch.SymBool) else {}
    before = {symbol: ranges[symbol] for symbol in free_unbacked_symbols(condition)}
    torch._check(condition)
    ranges.update((symbol, r) for symbol, r in before.items() if ranges[symbol].is_singleton())


def assume_relation(environment: ShapeEnv, relation: Any) -> None:
    """The same of a relation of SymPy's."""
    assume(environment.create_symboolnode(relation))


def same_relation(left: Any, right: Any) -> bool:
    """Whether two relations of whole numbers, none below zero, say the same."""
    first = _above_zero(left)
    return first is not None and bool(first == _above_zero(right))


def _above_zero(relation: Any) -> Any:
    """What is at least 0 where an inequality holds; None for other relations."""
    if isinstance(relation, sympy.Ne) and relation.rhs == 0:
        relation = sympy.Gt(relation.lhs, 0)
    if not isinstance(relation, (sympy.Gt, sympy.Ge, sympy.Lt, sympy.Le)):
        return None
    rest = sympy.expand(relation.gts - relation.lts)
    return rest - 1 if isinstance(relation, (sympy.Gt, sympy.Lt)) else rest


def is_known_contiguous(fake: torch.Tensor) -> bool:
    """Whether a fake tensor is contiguous whatever a size that depends on data comes to."""
    try:
        return fake.is_contiguous()
    except GuardOnDataDependentSymNode:  # a transposed one is where the size is 1
        return False


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


_SMALL_SIZES = (sympy.Integer(1), sympy.Integer(1 << 10))
"""What stands for a size that counts as small: the second where a divisor is zero with the first."""


def within(number: torch.SymInt, bound: int, sizes: frozenset[Any] = frozenset()) -> bool:
    """Whether a symbolic integer is known to be from ``-bound`` to ``bound``; free sizes count as small.

    So do ``sizes``, those that depend on data.
    """
    environment = number.node.shape_env
    unbounded = ValueRanges(-int_oo, int_oo)
    expression = number.node.expr
    free = expression.free_symbols
    small = [s for s in free if s in sizes or not is_unbacked(s)]
    for size in _SMALL_SIZES:
        try:
            example = expression.xreplace(dict.fromkeys(small, size))
        except ZeroDivisionError:  # as of rows // (length // 8)
            continue
        found = environment.bound_sympy(example)
        return bool(found != unbounded and found.lower >= -bound and found.upper <= bound)
    return False


def deferred_checks(environment: ShapeEnv) -> int:
    """How many conditions on unbacked numbers have been relied on that a call has to check."""
    return int(environment.num_deferred_runtime_asserts)


def number_of_symbols(environment: ShapeEnv) -> int:
    """How many symbols have been made."""
    return len(environment.var_to_range)


def checks_on_first(environment: ShapeEnv, count: int) -> int:
    """How many of the deferred checks ask for data, by any of the first ``count`` symbols."""
    if not environment.num_deferred_runtime_asserts:
        return 0
    first = {s for s in itertools.islice(environment.var_to_range, count) if is_unbacked(s)}
    checks = itertools.chain.from_iterable(environment.deferred_runtime_asserts.values())
    return sum(not first.isdisjoint(check.expr.free_symbols) for check in checks)


def least_that_decides(condition: Any, size: Any) -> int | None:
    """From which value of ``size`` on, 1 or 2, a condition has one answer (both are SymPy's); or None."""
    if not size.is_Symbol or not is_unbacked(size) or free_unbacked_symbols(condition) != {size}:
        return None
    more = sympy.Dummy(integer=True, nonnegative=True)
    answers = {least: condition.subs(size, more + least) for least in (1, 2)}
    return next((n for n, answer in answers.items() if answer in (sympy.true, sympy.false)), None)


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


def substituted(number: torch.SymInt, values: Mapping[Any, int]) -> int | torch.SymInt:
    """An integer with ``values`` in the place of symbols; the others stay symbolic."""
    environment: ShapeEnv = number.node.shape_env
    expression = number.node.expr.xreplace(
        {symbol: sympy.Integer(value) for symbol, value in values.items()}
    )
    if expression.is_Integer:
        return int(expression)
    known = environment.size_hint(expression)
    hint = None if known is None else int(known)  # SymPy's own class is refused
    made: int | torch.SymInt = environment.create_symintnode(expression, hint=hint)
    return made
