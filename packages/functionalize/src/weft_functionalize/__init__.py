"""Functionalization of FX graphs by TensorSSA.

:func:`functionalize` converts a torch-level ``fx.GraphModule``, which may write to tensors and take
views, into a :class:`FunctionalGraph` of pure ATen operators.  :func:`wrap` gives a compiled form of that
graph the effects of the original: inputs written back, outputs that alias inputs or one another.
"""

from __future__ import annotations

from ._torch import (
    DispatchMode,
    assume,
    base_name,
    is_empty,
    known_equal,
    known_true,
    new_integer,
    size_hint,
    storage_identity,
)
from .conversion import functionalize
from .functional_graph import (
    Constant,
    FunctionalGraph,
    HeldValues,
    InputDescriptor,
    InputKind,
    Number,
    OutputDescriptor,
    OutputKind,
    SameAsInput,
    SameAsOutput,
    SharedBase,
    ViewOfInput,
    ViewOfOutput,
    WholeOutput,
)
from .gradient_history import is_unrecorded_view
from .gradient_rules import FunctionalBackward, drop_gradient_rules, is_gradient_rule
from .loop_reach import reached_after
from .options import FunctionalizeOptions, StepObserver
from .python_forms import as_kernels_compute
from .refused_operands import check_operands
from .regions import GIVES_ZERO_GRADIENTS
from .run_again import run_again
from .runtime import bind, count_writes, wrap
from .symbolic_numbers import (
    SYMBOLIC_TYPES,
    NumberNodes,
    data_dependent_sizes,
    is_float_symbol,
    symbols_given_by,
    symbols_of,
    with_numbers,
)
from .tensor_map import TensorMap
from .tensor_ssa.block_text import format_block
from .tensor_ssa.inner_gradients import inner_gradients
from .tensor_ssa.interpreter import interpret
from .tensor_ssa.kept_history import keep_history
from .tensor_ssa.verifier import VerificationError, verify_functional
from .unsupported import Unsupported

__all__ = [
    "GIVES_ZERO_GRADIENTS",
    "SYMBOLIC_TYPES",
    "Constant",
    "DispatchMode",
    "FunctionalBackward",
    "FunctionalGraph",
    "FunctionalizeOptions",
    "HeldValues",
    "InputDescriptor",
    "InputKind",
    "Number",
    "NumberNodes",
    "OutputDescriptor",
    "OutputKind",
    "SameAsInput",
    "SameAsOutput",
    "SharedBase",
    "StepObserver",
    "TensorMap",
    "Unsupported",
    "VerificationError",
    "ViewOfInput",
    "ViewOfOutput",
    "WholeOutput",
    "as_kernels_compute",
    "assume",
    "base_name",
    "bind",
    "check_operands",
    "count_writes",
    "data_dependent_sizes",
    "drop_gradient_rules",
    "format_block",
    "functionalize",
    "inner_gradients",
    "interpret",
    "is_empty",
    "is_float_symbol",
    "is_gradient_rule",
    "is_unrecorded_view",
    "keep_history",
    "known_equal",
    "known_true",
    "new_integer",
    "reached_after",
    "run_again",
    "size_hint",
    "storage_identity",
    "symbols_given_by",
    "symbols_of",
    "verify_functional",
    "with_numbers",
    "wrap",
]
