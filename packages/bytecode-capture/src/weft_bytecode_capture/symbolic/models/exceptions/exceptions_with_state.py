"""Exceptions whose classes in C keep more than the arguments: OSError, ImportError and their kin.

What they keep is read from an equal exception, which is made of the constants that the constructor was given.
"""

from __future__ import annotations

from typing import Any

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from .exception_objects import ExceptionVariable, bare_exception, snapshots


class ExceptionWithStateVariable(ExceptionVariable):
    """``given`` and ``keywords`` are what its constructor was given, ``args`` the first of these."""

    def __init__(self, equal: BaseException, given: Arguments, keywords: Keywords) -> None:
        super().__init__(type(equal), list(given[: len(equal.args)]))
        self._equal = equal
        self._given = list(given)
        self.keywords = dict(keywords)

    @property
    def given(self) -> Arguments:
        return self._given

    def field(self, evaluator: Evaluator, name: str) -> Variable:
        if hasattr(BaseException, name):
            return super().field(evaluator, name)
        return evaluator.wrap_result(evaluator.pure(getattr, self._equal, name))

    def generic_set_attribute(
        self, evaluator: Evaluator, name: str, value: Variable | None
    ) -> None:
        if name == "args":
            raise Unsupported("attribute write", f"{self!r}.{name}")
        super().generic_set_attribute(evaluator, name, value)

    def require_initialised_by(self, arguments: Arguments, keywords: Keywords) -> None:
        """``__init__`` of what ``__new__`` has made of the same arguments."""
        positional = zip(self._given, arguments, strict=False)
        same = len(arguments) == len(self._given) and all(a is b for a, b in positional)
        if not same or keywords.keys() != self.keywords.keys():
            raise Unsupported("exception class with a constructor", repr(self))


def new_with_state(
    evaluator: Evaluator, kind: type[BaseException], arguments: Arguments, keywords: Keywords
) -> Variable:
    """An instance; ``OSError(number, text)`` makes one of the class that stands for the number.

    :raises Unsupported: it is given nothing where ``__init__``, which need not follow, takes more.
    """
    values, named = [argument.snapshot() for argument in arguments], snapshots(keywords)
    if not (values or named):
        try:
            bare_exception(kind, [], {})
        except TypeError as error:
            raise Unsupported("exception class with a constructor", repr(kind)) from error
    equal: Any = evaluator.pure(bare_exception, kind, values, named)
    return ExceptionWithStateVariable(equal, arguments, keywords)
