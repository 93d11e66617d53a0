"""Opcodes of ``match`` statements."""

from __future__ import annotations

import collections.abc

from ...unsupported import Unsupported
from ..decode import Instruction, handles
from ..evaluator import Evaluator
from ..variables.base import Variable
from ..variables.classes import ClassVariable
from ..variables.constant import ConstantVariable
from ..variables.sequences import TupleVariable

# Builtin classes whose single positional sub-pattern matches the subject itself.
_SELF_MATCHING = (
    bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple,
)  # fmt: skip


@handles("MATCH_SEQUENCE")
def _match_sequence(evaluator: Evaluator, instruction: Instruction) -> None:
    top = evaluator.stack[-1]
    assert top is not None
    kind = top.python_type()
    matches = issubclass(kind, collections.abc.Sequence) and not issubclass(
        kind, (str, bytes, bytearray)
    )
    evaluator.stack.append(ConstantVariable(matches))


@handles("MATCH_MAPPING")
def _match_mapping(evaluator: Evaluator, instruction: Instruction) -> None:
    top = evaluator.stack[-1]
    assert top is not None
    matches = issubclass(top.python_type(), collections.abc.Mapping)
    evaluator.stack.append(ConstantVariable(matches))


@handles("MATCH_KEYS")
def _match_keys(evaluator: Evaluator, instruction: Instruction) -> None:
    subject, keys = evaluator.stack[-2:]
    assert subject is not None
    assert keys is not None
    values: list[Variable] = []
    for key in keys.iterate(evaluator):
        if not subject.call_method(evaluator, "__contains__", [key], {}).truth(evaluator):
            evaluator.stack.append(ConstantVariable(None))
            return
        values.append(subject.call_method(evaluator, "__getitem__", [key], {}))
    evaluator.stack.append(TupleVariable(values))


@handles("MATCH_CLASS")
def _match_class(evaluator: Evaluator, instruction: Instruction) -> None:
    subject, kind, names = evaluator.pop_many(3)
    if not isinstance(kind, ClassVariable):
        raise Unsupported("match against an unknown class", repr(kind))
    if not issubclass(subject.python_type(), kind.value):
        evaluator.stack.append(ConstantVariable(None))
        return
    count = instruction.argument
    values: list[Variable] = []
    if (
        count == 1
        and issubclass(kind.value, _SELF_MATCHING)
        and "__match_args__" not in dir(kind.value)
    ):
        values.append(subject)
        count = 0
    attributes: list[str] = []
    if count:
        accepted = kind.get_attribute(evaluator, "__match_args__").as_constant()
        if len(accepted) < count:
            raise Unsupported("match with too many positional patterns", repr(kind))
        attributes.extend(accepted[:count])
    attributes.extend(names.as_constant())
    for name in attributes:
        if not subject.has_attribute(evaluator, name):
            evaluator.stack.append(ConstantVariable(None))
            return
        values.append(subject.get_attribute(evaluator, name))
    evaluator.stack.append(TupleVariable(values))
