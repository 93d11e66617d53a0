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
_ALIAS = re.compile(r"\(\w+!?(?: -> \w+)?\)")


def is_custom(operator: OpOverload) -> bool:
    """Whether ``operator`` is one of ``torch.library.custom_op``: autograd does not see what it writes."""
    return is_python_operator(operator)


# By name: a form lives as long as its definition.
_FORMS: dict[str, Any] = {}


@functools.cache
def functional_form(operator: OpOverload, listed: int | None = None) -> OpOverload:
    """The operator that gives the results of ``operator``, then the new values of what that writes.

    ``listed``: the one result is a list of so many tensors, which the form gives as results of its own.

    Raises :class:`Unsupported` where what is written is a list, or may be None.
    """
    arguments = schema_arguments(operator)
    written = [k for k, argument in enumerate(arguments) if _is_written(argument)]
    for k in written:
        if str(arguments[k].type) != "Tensor":
            raise Unsupported(
                "custom operator that writes to a list or an optional tensor",
                str(operator),
                "give it each tensor as an argument of its own",
            )
    name = f"{operator.namespace}__{operator._opname}"
    if operator._overloadname != "default":
        name += f"__{operator._overloadname}"
    if listed is not None:
        name += f"__{listed}"
    signature = _ALIAS.sub("", str(operator._schema)).partition("(")[2].rpartition(") -> ")[0]
    results = [str(result.type) for result in operator._schema.returns]
    if listed is not None:
        results = ["Tensor"] * listed
    results += ["Tensor"] * len(written)
    schema = f"({signature}) -> ({', '.join(results)})"
    run = _copying(operator, [arguments[k].name for k in written])
    made = torch.library.custom_op(f"{_NAMESPACE}::{name}", run, mutates_args=(), schema=schema)
    made.register_fake(run)
    _FORMS[name] = made
    form: OpOverload = getattr(getattr(torch.ops, _NAMESPACE), name).default
    return form


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _copying(operator: OpOverload, written: Sequence[str]) -> Callable[..., Any]:
    arguments = schema_arguments(operator)

    def run(*args: Any, **kwargs: Any) -> Any:
        given = kwargs | {a.name: value for a, value in zip(arguments, args, strict=False)}
        given |= {name: given[name].clone() for name in written}
        positional = [given[a.name] for a in arguments if a.name in given and not a.kwarg_only]
        keywords = {a.name: given[a.name] for a in arguments if a.name in given and a.kwarg_only}
        results = operator(*positional, **keywords)
        plain = results if isinstance(results, (tuple, list)) else (results,)
        every = (*(r for r in plain if r is not None), *(given[name] for name in written))
        return every if len(every) > 1 else every[0]

    return run
