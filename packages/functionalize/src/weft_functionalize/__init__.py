"""Functionalization of FX graphs by TensorSSA.

:func:`functionalize` converts a torch-level ``fx.GraphModule``, which may write to tensors and take
views, into a :class:`FunctionalGraph` of pure ATen operators.  :func:`wrap` gives a compiled form of that
graph the effects of the original: inputs written back, outputs that alias inputs or one another.
"""

from __future__ import annotations

from ._torch import DispatchMode as DispatchMode
from ._torch import assume as assume
from ._torch import is_empty as is_empty
from ._torch import known_equal as known_equal
from ._torch import known_true as known_true
from ._torch import new_integer as new_integer
from ._torch import size_hint as size_hint
from ._torch import storage_identity as storage_identity
from .conversion import functionalize as functionalize
from .counted_changes import count_writes as count_writes
from .functional_graph import Constant as Constant
from .functional_graph import FunctionalGraph as FunctionalGraph
from .functional_graph import HeldValues as HeldValues
from .functional_graph import InputDescriptor as InputDescriptor
from .functional_graph import InputKind as InputKind
from .functional_graph import Number as Number
from .functional_graph import OutputDescriptor as OutputDescriptor
from .functional_graph import OutputKind as OutputKind
from .functional_graph import SameAsInput as SameAsInput
from .functional_graph import SameAsOutput as SameAsOutput
from .functional_graph import SharedBase as SharedBase
from .functional_graph import ViewOfInput as ViewOfInput
from .functional_graph import ViewOfOutput as ViewOfOutput
from .functional_graph import WholeOutput as WholeOutput
from .gradient_history import is_unrecorded_view as is_unrecorded_view
from .gradient_rules import FunctionalBackward as FunctionalBackward
from .gradient_rules import drop_gradient_rules as drop_gradient_rules
from .gradient_rules import is_gradient_rule as is_gradient_rule
from .loop_reach import reached_after as reached_after
from .new_nodes import append_call as append_call
from .options import FunctionalizeOptions as FunctionalizeOptions
from .options import StepObserver as StepObserver
from .python_forms import as_kernels_compute as as_kernels_compute
from .refused_operands import check_operands as check_operands
from .regions import GIVES_ZERO_GRADIENTS as GIVES_ZERO_GRADIENTS
from .run_again import run_again as run_again
from .runtime import bind as bind
from .runtime import wrap as wrap
from .symbolic_numbers import SYMBOLIC_TYPES as SYMBOLIC_TYPES
from .symbolic_numbers import NumberNodes as NumberNodes
from .symbolic_numbers import data_dependent_sizes as data_dependent_sizes
from .symbolic_numbers import is_float_symbol as is_float_symbol
from .symbolic_numbers import symbols_given_by as symbols_given_by
from .symbolic_numbers import symbols_of as symbols_of
from .symbolic_numbers import with_numbers as with_numbers
from .tensor_map import TensorMap as TensorMap
from .tensor_ssa.block_text import format_block as format_block
from .tensor_ssa.inner_gradients import inner_gradients as inner_gradients
from .tensor_ssa.interpreter import interpret as interpret
from .tensor_ssa.kept_history import keep_history as keep_history
from .tensor_ssa.verifier import VerificationError as VerificationError
from .tensor_ssa.verifier import verify_functional as verify_functional
from .unsupported import Unsupported as Unsupported
