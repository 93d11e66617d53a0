"""Functionalization of FX graphs by TensorSSA.

:func:`functionalize` converts a torch-level ``fx.GraphModule``, which may write to tensors and take
views, into a :class:`FunctionalGraph` of pure ATen operators.  :func:`wrap` gives a compiled form of that
graph the effects of the original: inputs written back, outputs that alias inputs or one another.
"""

from __future__ import annotations

from .conversion import functionalize
from .functional_graph import (
    Constant,
    FunctionalGraph,
    InputDescriptor,
    InputKind,
    OutputDescriptor,
    OutputKind,
    SameAsInput,
    SameAsOutput,
    ViewOfInput,
    ViewOfOutput,
)
from .options import FunctionalizeOptions
from .runtime import bind, wrap
from .tensor_ssa.verifier import VerificationError, verify_functional
from .unsupported import Unsupported

__all__ = [
    "Constant",
    "FunctionalGraph",
    "FunctionalizeOptions",
    "InputDescriptor",
    "InputKind",
    "OutputDescriptor",
    "OutputKind",
    "SameAsInput",
    "SameAsOutput",
    "Unsupported",
    "VerificationError",
    "ViewOfInput",
    "ViewOfOutput",
    "bind",
    "functionalize",
    "verify_functional",
    "wrap",
]
