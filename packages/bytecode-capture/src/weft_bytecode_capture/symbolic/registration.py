"""Registers every family of variables with the builder."""

from __future__ import annotations

import functools
import importlib
from importlib.util import find_spec

from .builder import register_late

_FAMILIES = (
    "builtins", "constant", "sequences", "data_checks", "mappings", "mapping_methods", "sets", "functions",
    "bound_methods", "classes", "modules", "builtin_descriptors", "user_objects", "object_methods",
    "instances", "builtin_functions", "builtin_classes", "functools_values", "operator_values",
    "itertools_values", "itertools_shared", "itertools_combinations", "deques", "copying", "tensor",
    "subclass_tensors", "torch_overrides", "torch_function", "nn_module", "torch_values",
    "tensor_comparisons", "control_flow_operators", "associative_scans", "optimizer_functions",
    "autograd_functions", "checkpoints", "gradient_calls", "transforms", "context_managers", "opaque",
    "process_groups", "weak_references", "annotations", "tracing",
    "exception_classes", "regular_expressions", "enumerations", "strings", "byte_buffers",
    "varying_functions", "scripted_functions", "unread_tuples",
)  # fmt: skip
_POLYFILLS = ("standard_library", "python_versions", "regular_expressions", "transforms")
_LATE = {"flexible_attention": "torch.nn.attention.flex_attention"}  # when this module is met
_OPTIONAL = {"numpy_values": "numpy"}  # with the package that they are about


def register_all() -> None:
    """Import the modules of all families: each registers its wrappers as it is imported."""
    for name in (*_FAMILIES, *(n for n, needed in _OPTIONAL.items() if find_spec(needed))):
        importlib.import_module(f"{__package__}.variables.{name}")
    for name in _POLYFILLS:
        importlib.import_module(f"{__package__}.polyfills.{name}")
    for name, module in _LATE.items():
        family = f"{__package__}.variables.{name}"
        register_late(module)(functools.partial(importlib.import_module, family))  # type: ignore[arg-type]
