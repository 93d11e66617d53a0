"""Functional forms of the operators of libraries that write: copy what is written, call, give the copies.

torch makes such forms for its own operators only.  The form of ``library::name`` is the operator
``weft_functional::library__name``, which is registered when it is first asked for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._torch import OpOverload, is_python_operator, schema_arguments
from ..unsupported import Unsupported

_NAMESPACE = "weft_functional"
_TORCH = frozenset(
    {"aten", "prim", "prims", "quantized", "profiler", "inductor", "_c10d_functional", "c10d"}
)
"""Namespaces of operators that torch brings."""

_ALIAS = re.compile(r"\([\w$]+!?(?: -> \w*)?\)")


def is_custom(operator: OpOverload) -> bool:
    """Whether ``operator`` is one of ``torch.library.custom_op``: autograd does not see what it writes."""
    return is_python_operator(operator)


def is_from_library(operator: OpOverload) -> bool:
    """Whether ``operator`` is a library's, however that has defined it: torch has no other form of it."""
    return is_custom(operator) or operator.namespace not in _TORCH


# By name: a form lives as long as its definition.
_FORMS: dict[str, Any] = {}


@functools.cache
def functional_form(
    operator: OpOverload, written: tuple[int | None, ...], listed: int | None = None
) -> OpOverload:
    """The operator that gives the results of ``operator``, then the new values of what that writes.

    ``written``: for each argument that is written how many tensors it lists, 0 where it is absent, None where
    it is a tensor.  ``listed``: the one result is a list of so many tensors, which the form gives as results
    of its own, as it does all values.  Results that are written arguments are left out.

    Raises :class:`Unsupported` where there is nothing that the form would give.
    """
    arguments = [argument for argument in schema_arguments(operator) if _is_written(argument)]
    name = f"{operator.namespace}__{operator._opname}"
    if operator._overloadname != "default":
        name += f"__{operator._overloadname}"
    if any(number is not None for number in written):
        name += "__of_" + "_".join(str(number) for number in written)
    if listed is not None:
        name += f"__{listed}"
    signature = _ALIAS.sub("", str(operator._schema)).partition("(")[2].rpartition(") -> ")[0]
    results = [str(r.type) for r in operator._schema.returns if r.alias_info is None]
    if listed is not None:
        results = ["Tensor"] * listed
    results += ["Tensor"] * sum(1 if number is None else number for number in written)
    if not results:
        raise Unsupported("operator that writes nothing and gives nothing", str(operator))
    schema = f"({signature}) -> ({', '.join(results)})"
    run = _copying(operator, [argument.name for argument in arguments])
    made = torch.library.custom_op(f"{_NAMESPACE}::{name}", run, mutates_args=(), schema=schema)
    made.register_fake(run)
    _FORMS[name] = made
    form: OpOverload = getattr(getattr(torch.ops, _NAMESPACE), name).default
    return form


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _copying(operator: OpOverload, written: Sequence[str]) -> Callable[..., Any]:
    arguments = schema_arguments(operator)
    is_new = [result.alias_info is None for result in operator._schema.returns]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = kwargs | {a.name: value for a, value in zip(arguments, args, strict=False)}
        copies = {name: _copied(given.get(name)) for name in written}
        given |= {name: copy for name, copy in copies.items() if name in given}
        positional = [given[a.name] for a in arguments if a.name in given and not a.kwarg_only]
        keywords = {a.name: given[a.name] for a in arguments if a.name in given and a.kwarg_only}
        results = operator(*positional, **keywords)
        several = isinstance(results, (tuple, list))
        plain = results if several else (results,)
        if len(is_new) > 1 or not several:
            plain = [r for r, new in zip(plain, is_new, strict=False) if new]
        values = [v for copy in copies.values() for v in (copy if type(copy) is list else [copy])]
        every = tuple(value for value in (*plain, *values) if value is not None)
        return every if len(every) > 1 else every[0]

    return run


def _copied(given: Any) -> Any:
    """A copy of a tensor, of those in a list; None of what is absent."""
    if isinstance(given, (list, tuple)):
        return [value.clone() for value in given]
    return None if given is None else given.clone()
