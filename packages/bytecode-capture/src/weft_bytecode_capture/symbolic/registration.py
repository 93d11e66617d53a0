"""Registers every family of variables with the builder."""

from __future__ import annotations

import importlib

_FAMILIES = (
    "constant", "sequences", "mappings", "mapping_methods", "sets", "functions", "classes",
    "modules", "builtin_descriptors", "user_objects", "instances", "builtin_functions",
    "builtin_classes", "functools_values", "operator_values", "itertools_values", "deques",
    "copying", "tensor", "torch_function", "optimizer_functions", "nn_module", "torch_values",
    "autograd_functions", "context_managers", "opaque", "weak_references", "annotations",
)  # fmt: skip


def register_all() -> None:
    """Import the modules of all families: each registers its wrappers as it is imported."""
    for name in _FAMILIES:
        importlib.import_module(f"{__package__}.variables.{name}")
