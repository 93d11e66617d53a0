"""The private torch API that this package uses, in one place.  Checked on torch 2.13."""

from __future__ import annotations

import sys
from typing import Any

import sympy
import torch.distributed
from sympy import srepr
from torch._C import _set_grad_enabled as SET_GRADIENTS
from torch._C._functorch import is_functorch_wrapped_tensor as stands_for_others
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.modules.module import _has_any_global_hook as has_global_hooks
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges
from weft_bytecode_capture import FakeLayout, FakeModeOnDemand

__all__ = [
    "BROADCASTS",
    "NATIVE_MODULES",
    "REGION_OPERATORS",
    "SET_GRADIENTS",
    "SYMBOLIC_TYPES",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "LazyGraphModule",
    "OpOverload",
    "OpOverloadPacket",
    "add_symbol",
    "data_parallel_bucket_bytes",
    "describe_environment",
    "describe_opaque_operator",
    "expression_of",
    "fake_mode_of",
    "fake_tensor",
    "has_global_hooks",
    "module_class_of_torch_compile",
    "rely_on",
    "stands_for_others",
    "symbolic_number",
    "symbols_of_capture",
]

_operators = torch.ops.higher_order
REGION_OPERATORS = (_operators.cond, _operators.while_loop, _operators.associative_scan)
"""Branches, loops and scans in a graph."""

SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)

TRACED_THROUGH = (
    "CompositeImplicitAutograd", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA"
)  # fmt: skip
"""Dispatch keys of kernels that call other operators, also where no gradient is recorded."""

NATIVE_MODULES = ("torch", "torch._C")
"""Modules in which functions and methods are found that name none."""


def _operators_of_broadcast() -> tuple[Any, ...]:
    if not torch.distributed.is_available():
        return ()
    packet: Any = torch.ops._c10d_functional.broadcast
    return packet, packet.default


BROADCASTS = _operators_of_broadcast()


def module_class_of_torch_compile() -> type | None:
    """The class of modules that ``torch.compile`` gives; None where the program has not loaded it."""
    found = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
    return found if isinstance(found, type) else None


def data_parallel_bucket_bytes() -> int | None:
    """Bytes of gradients that the data parallel module around this call sends at once, None without one."""
    if not torch.distributed.is_available():
        return None
    from torch.nn.parallel import DistributedDataParallel

    kind: Any = DistributedDataParallel
    module = kind._get_active_ddp_module()
    return None if module is None else int(module.bucket_bytes_cap)


def expression_of(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """A symbolic number's SymPy expression, with what is known by now put in."""
    return number.node.expr


def describe_environment(environment: Any) -> str:
    """What a ShapeEnv knows of its symbols, but not their values in this call."""
    symbols = [
        f"{symbol} {symbol.is_integer} {symbol.is_positive} {symbol.is_nonnegative} {bounds}"
        for symbol, bounds in environment.var_to_range.items()
    ]
    replaced = [f"{symbol} = {srepr(expr)}" for symbol, expr in environment.replacements.items()]
    guards = [srepr(guard.expr) for guard in environment.guards]
    deferred = [
        f"{symbol}: {[srepr(check.expr) for check in checks]}"
        for symbol, checks in environment.deferred_runtime_asserts.items()
    ]
    return "\n".join([*symbols, *replaced, *guards, *deferred])


def symbols_of_capture(
    environment: Any,
) -> tuple[list[tuple[Any, int | None, int | None, int]], list[Any]]:
    """The backed symbols of a ShapeEnv (least value, greatest, value in the capture), and its relations.

    Symbols that are known to be others are relations too.
    """
    values = _values_of(environment)
    symbols, relations = [], []
    for symbol, bounds in environment.var_to_range.items():
        if symbol in values:
            low, high = (int(b) if b.is_Integer else None for b in (bounds.lower, bounds.upper))
            symbols.append((symbol, low, high, int(values[symbol])))
            relations += [symbol >= n for n in (low,) if n is not None]
            relations += [symbol <= n for n in (high,) if n is not None]
    relations += [guard.expr for guard in environment.guards]
    found = {environment.replace(relation): None for relation in relations}
    return symbols, [relation for relation in found if relation != True]  # noqa: E712, SymPy's


def fake_mode_of(symbols: Any) -> FakeTensorMode:
    """A mode with a ShapeEnv of these symbols, as :func:`symbols_of_capture` gives them.

    Without symbols there is none yet (:func:`environment_of`): making one loads torch's compiler.
    """
    if not symbols:
        return FakeModeOnDemand(static_shapes=True)
    environment = ShapeEnv()
    for symbol, low, high, value in symbols:
        bounds = ValueRanges(-int_oo if low is None else low, int_oo if high is None else high)
        environment.var_to_range[symbol] = bounds
        _values_of(environment)[symbol] = sympy.Integer(value)
    return FakeTensorMode(shape_env=environment)


def environment_of(mode: FakeTensorMode) -> ShapeEnv:
    """The ShapeEnv of a mode, made for what is no argument's size: the counter of a loop."""
    if mode.shape_env is None:
        mode.shape_env = ShapeEnv()
    return mode.shape_env


def _values_of(environment: Any) -> Any:
    """What each symbol with a value is in the capture; torch has renamed it."""
    if hasattr(environment, "backed_var_to_val"):
        return environment.backed_var_to_val
    return environment.var_to_val


def describe_opaque_operator(operator: OpOverload) -> str | None:
    """Schema and tags of an operator of the user's that graphs without gradients hold as one call.

    None for one that may be traced through or writes to its operands: then its code is part of a program.
    """
    name = operator._schema.name
    keys: tuple[str, ...] = TRACED_THROUGH
    if name not in torch._library.custom_ops.OPDEFS:  # those record gradients, and do nothing else
        keys = (*keys, "Autograd")
    has_kernel: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    if operator.py_kernels or any(has_kernel(operator.name(), key) for key in keys):
        return None
    return None if operator._schema.is_mutable else f"{operator._schema} {operator.tags}"


def add_symbol(environment: Any, symbol: Any, bounds: Any) -> bool:
    """Make ``symbol``, a number without a value, one of a ShapeEnv; False where that has another next."""
    create = environment.create_unbacked_symint
    if not symbol.is_integer:
        create = environment.create_unbacked_symfloat
    with environment.ignore_fresh_unbacked_symbols():
        made = create().node.expr
    environment.var_to_range[made] = bounds
    return bool(made == symbol)


def rely_on(environment: Any, condition: Any) -> bool:
    """Whether a condition on symbols holds in this call, which becomes a relation of the ShapeEnv."""
    return bool(environment.create_symboolnode(condition))


def symbolic_number(environment: Any, kind: type, expression: Any) -> Any:
    """The number of an expression: a SymInt, SymFloat or SymBool, as ``kind`` is; plain if it is constant."""
    if kind is torch.SymInt:
        return environment.create_symintnode(expression, hint=None)
    if kind is torch.SymFloat:
        return environment.create_symfloatnode(expression, hint=None)
    return environment.create_symboolnode(expression)


def fake_tensor(
    fake_mode: FakeTensorMode, size: Any, stride: Any, offset: Any, dtype: Any, device: Any
) -> torch.Tensor:
    """A fake tensor of that layout, in a storage of its own."""
    is_plain = all(type(n) is int for n in (*size, *stride, offset))
    if is_plain and isinstance(fake_mode, FakeModeOnDemand):
        return fake_mode.new_fake(FakeLayout(tuple(size), tuple(stride), offset, dtype, device))
    with fake_mode:
        if isinstance(offset, int) and offset == 0:
            return torch.empty_strided(size, stride, dtype=dtype, device=device)
        is_empty = any(isinstance(n, int) and n == 0 for n in size)
        last = 0 if is_empty else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        base = torch.empty((offset + last,), dtype=dtype, device=device)
        return torch.as_strided(base, size, stride, offset)
