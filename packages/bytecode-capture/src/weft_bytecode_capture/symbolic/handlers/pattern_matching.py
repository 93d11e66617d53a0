"""Opcodes of ``match`` statements."""

from __future__ import annotations

from ...unsupported import Unsupported
from ..decode import DecodedInstruction, handles
from ..evaluator import FrameEvaluator
from ..models.builtins.class_checks import is_instance
from ..models.containers.sequences import TupleVariable
from ..models.objects.classes import ClassVariable
from ..models.objects.opaque import OpaqueVariable
from ..models.objects.user_objects import UserObjectVariable
from ..variables.base import Variable
from ..variables.constant import ConstantVariable
from ..variables.hashing import element_key
from ..variables.keys import HashedKey

# Bits of a class's ``__flags__``, which collections.abc sets too: what the instructions look at.
_SEQUENCE = 1 << 5
_MAPPING = 1 << 6
_MATCH_SELF = 1 << 22  # a single positional sub-pattern matches the subject itself


def _match_flag(evaluator: FrameEvaluator, flag: int) -> None:
    top = evaluator.stack[-1]
    assert top is not None
    evaluator.stack.append(ConstantVariable(bool(top.python_type().__flags__ & flag)))


@handles("MATCH_SEQUENCE")
def _match_sequence(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    _match_flag(evaluator, _SEQUENCE)


@handles("MATCH_MAPPING")
def _match_mapping(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    _match_flag(evaluator, _MAPPING)


@handles("MATCH_KEYS")
def _match_keys(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """Push a tuple of the values of the keys, None if one is absent."""
    subject, keys = evaluator.stack[-2:]
    assert subject is not None
    assert keys is not None
    absent = UserObjectVariable(object)
    seen: set[HashedKey] = set()
    values: list[Variable] = []
    for key in keys.iterate(evaluator):
        hashed = element_key(evaluator, key)
        if hashed in seen:
            evaluator.raise_error(
                ValueError, f"mapping pattern checks duplicate key ({key.snapshot()!r})"
            )
        seen.add(hashed)
        value = subject.call_method(evaluator, "get", [key, absent], {})
        if value is absent:
            evaluator.stack.append(ConstantVariable(None))
            return
        values.append(value)
    evaluator.stack.append(TupleVariable(values))


@handles("MATCH_CLASS")
def _match_class(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """Push a tuple of the attributes that the sub-patterns are about, None if there is no match."""
    subject, kind, names = evaluator.pop_many(3)
    if not isinstance(kind, ClassVariable):
        if isinstance(kind, OpaqueVariable):
            raise Unsupported("match against an unknown class", repr(kind))
        evaluator.raise_error(TypeError, "called match pattern must be a class")
    if not is_instance(evaluator, subject, kind).truth(evaluator):
        evaluator.stack.append(ConstantVariable(None))
        return
    values, attributes = _positional(evaluator, instruction.argument, subject, kind)
    attributes.extend(names.as_constant())
    for place, name in enumerate(attributes):
        if name in attributes[:place]:
            evaluator.raise_error(
                TypeError,
                f"{kind.value.__name__}() got multiple sub-patterns for attribute {name!r}",
            )
        value = subject.find_attribute(evaluator, name)
        if value is None:
            evaluator.stack.append(ConstantVariable(None))
            return
        values.append(value)
    evaluator.stack.append(TupleVariable(values))


def _positional(
    evaluator: FrameEvaluator, count: int, subject: Variable, kind: ClassVariable
) -> tuple[list[Variable], list[str]]:
    """What positional sub-patterns match against: the subject itself, or attributes by name."""
    if not count:
        return [], []
    accepted: list[Variable] = []
    found = kind.find_attribute(evaluator, "__match_args__")
    itself = found is None and bool(kind.value.__flags__ & _MATCH_SELF)
    if found is not None:
        if found.python_type() is not tuple:
            evaluator.raise_error(
                TypeError,
                f"{kind.value.__name__}.__match_args__ must be a tuple "
                f"(got {found.python_type().__name__})",
            )
        accepted = found.iterate(evaluator)
    allowed = 1 if itself else len(accepted)
    if allowed < count:
        evaluator.raise_error(
            TypeError,
            f"{kind.value.__name__}() accepts {allowed} positional "
            f"sub-pattern{'' if allowed == 1 else 's'} ({count} given)",
        )
    if itself:
        return [subject], []
    for name in accepted[:count]:
        if name.python_type() is not str:
            evaluator.raise_error(
                TypeError,
                f"__match_args__ elements must be strings (got {name.python_type().__name__})",
            )
    return [], [name.as_constant() for name in accepted[:count]]
