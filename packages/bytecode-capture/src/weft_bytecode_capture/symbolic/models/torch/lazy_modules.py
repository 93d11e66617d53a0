"""Modules of torch.nn that know their sizes from their first input: capture gives them parameters.

Eager does so in the first call too, once and for all, and looks at the sizes of the input alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from ....unsupported import Unsupported
from ...graph.purity import draws
from ...protocol import Evaluator
from ...variables.base import Variable
from ..table import model
from .tensor import TensorVariable


class ParametersMade(Exception):
    """A module has parameters and another class now: the frame is evaluated anew."""


@model(vars(LazyModuleMixin)["_infer_parameters"])
def _infer_parameters(
    evaluator: Evaluator,
    self: Variable,
    module: Variable,
    args: Variable,
    kwargs: Variable | None = None,
) -> None:
    value: Any = getattr(module, "value", None)
    inputs = args.iterate(evaluator)
    named = kwargs is not None and not kwargs.is_none() and kwargs.length(evaluator) > 0
    is_plain = all(type(given) is TensorVariable for given in inputs) and not named
    graph = evaluator.graph
    changed = graph.is_in_region or graph.transforms.active or graph.modes.changed()
    draws_before = any(map(draws, graph.outermost.nodes))
    if module is not self or not _is_of_torch(value) or not is_plain or changed or draws_before:
        raise Unsupported("module under construction", f"first call of {module!r}")
    sizes = [_sizes(given) for given in inputs]
    evaluator.pure(value._infer_parameters, value, [torch.empty(s, device="meta") for s in sizes])
    raise ParametersMade


def _is_of_torch(module: Any) -> bool:
    if not isinstance(module, LazyModuleMixin) or not module.has_uninitialized_params():  # type: ignore[misc]
        return False
    function = type(module).initialize_parameters
    return str(function.__module__).startswith("torch.nn.modules.")


def _sizes(given: Any) -> list[int]:
    if not all(type(extent) is int for extent in given.fake.shape):
        raise Unsupported("module under construction", f"first call with {given!r}")
    return list(given.fake.shape)
