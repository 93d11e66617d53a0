"""The base class of what the symbolic evaluator keeps on its stack and in its locals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch.fx
from weft_guards import Reason, Source

from ...unsupported import Unsupported
from ..protocol import Evaluator

if TYPE_CHECKING:
    from ...frame.emitter import Emitter
    from .keys import HashedKey


Arguments = list["Variable"]
Keywords = dict[str, "Variable"]
"""The positional arguments of a call, and its keyword arguments by name."""


class Variable:
    """One Python object as the evaluator knows it.

    A variable stands for an object *by identity*: two references to one object are one variable, and a
    mutable object's variable is mutated in place as the program mutates the object.  There is no rollback:
    when the evaluator meets something unsupported inside an instruction of the root frame, it starts the
    frame again from its beginning and stops just before that instruction (the graph break).

    ``source`` says where an object that existed before the frame was found (None for objects made during
    evaluation).  A variable with a source is read lazily and every fact used about it is guarded at the
    moment of use through ``evaluator.guard(source, predicate)``.

    Every method that evaluates user-visible behaviour takes the evaluator first.  The defaults raise
    :class:`Unsupported` (never guess); a Python-level exception of the captured program is raised by
    ``evaluator.raise_exception(exception_variable)``.
    """

    source: Source | None = None
    # The exact type of the object, where the variable or its class says it.
    kind: Any = None

    # Whether its class may have a ``__torch_function__``.
    may_override = False
    # The graph node whose value this object is, for tensors and numbers that the graph computes.  Such a
    # variable without a source becomes an output of the graph when it is alive at the end.
    node: torch.fx.Node | None = None

    # What the code after the graph loads in its place: of a region's results, what a choice gives.
    loaded_instead: Variable | None = None

    def python_type(self) -> type:
        """The exact type of the object."""
        kind: type | None = self.kind
        if kind is None:
            raise Unsupported("type of value unknown", repr(self))
        return kind

    def operand_type(self) -> type:
        """A type that does for the object what its own does where it is an operand."""
        return self.python_type()

    def is_constant(self) -> bool:
        """Whether :meth:`as_constant` gives the Python object itself, an immutable constant."""
        return False

    def as_constant(self) -> Any:
        raise Unsupported("value is not a constant", repr(self))

    def is_made_of_numbers(self) -> bool:
        """Whether it is a constant for these numbers only: the code after the graph makes it of them."""
        return False

    def as_operand(self, evaluator: Evaluator) -> Variable | None:
        """The number that operators of torch take it for, if that is another variable."""
        return None

    def is_none(self) -> bool:
        return self.is_constant() and self.as_constant() is None

    def is_not_implemented(self) -> bool:
        return self.is_constant() and self.as_constant() is NotImplemented

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        """``getattr(self, name)``; raises AttributeError in the captured program as Python does."""
        raise Unsupported("attribute read", f"{self!r}.{name}")

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        raise Unsupported("attribute write", f"{self!r}.{name}")

    def delete_attribute(self, evaluator: Evaluator, name: str) -> None:
        raise Unsupported("attribute deletion", f"{self!r}.{name}")

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        raise Unsupported("call", f"{self!r}(...)")

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        """``self.name(*arguments, **keywords)``; special methods included (``__getitem__``, ``__add__``)."""
        return self.get_attribute(evaluator, name).call(evaluator, arguments, keywords)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        """``self <operator> other``, or ``other <operator> self`` if ``reflected``.

        ``operator`` is a name of the ``operator`` module without underscores ("add", "matmul", "lt",
        "iadd" ...).  None means NotImplemented: the evaluator then tries the other operand.
        """
        if operator in ("eq", "ne"):
            equal = self.equals(evaluator, other)
            return None if equal is None else evaluator.wrap_constant(equal is (operator == "eq"))
        return None

    def equals(self, evaluator: Evaluator, other: Variable) -> bool | None:
        """Whether ``self == other``, of a class with no other operators; None means NotImplemented."""
        return None

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        """All elements of an iterable of known length, in order (unpacking, ``list(x)``, ``for``)."""
        from .missing_methods import require_method

        require_method(evaluator, self, "__iter__")
        raise Unsupported("iteration", repr(self))

    def tuple_elements(self, evaluator: Evaluator) -> list[Variable]:
        """The elements as ``tuple()`` and a call's ``*`` take them."""
        return self.iterate(evaluator)

    def iterator(self, evaluator: Evaluator) -> Variable:
        """``iter(self)``."""
        return evaluator.sequence_iterator(self, self.iterate(evaluator))

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        """``self is other`` where several variables may stand for one object; None: by variable."""
        return None

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        """The object as a key of dicts and sets (constants are dealt with before)."""
        if self.python_type().__hash__ is None:
            unhashable(evaluator, self)
        raise Unsupported("hash of a value", repr(self))

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        """The iterator's next element; None when it is exhausted."""
        from .missing_methods import require_method

        require_method(evaluator, self, "__next__")
        raise Unsupported("next()", repr(self))

    def find_attribute(self, evaluator: Evaluator, name: str) -> Variable | None:
        """``getattr(self, name)``; None where that raises AttributeError."""
        from ..captured_exception import CapturedException

        try:
            return self.get_attribute(evaluator, name)
        except CapturedException as error:
            if issubclass(error.exception.python_type(), AttributeError):
                return None
            raise

    def snapshot(self) -> Any:
        """A Python value equal to this one, of constants all the way down, for pure functions.

        Unlike :meth:`as_constant` also of mutable containers: the copy must not escape.
        """
        return self.as_constant()

    def printable(self, evaluator: Evaluator) -> Any:
        """A Python value that prints as this one does, for use at once."""
        return self.snapshot()

    def truth(self, evaluator: Evaluator) -> bool:
        """``bool(self)``, guarded as needed; true of a class that says nothing else."""
        kind = self.python_type()
        if hasattr(kind, "__bool__") or hasattr(kind, "__len__"):
            raise Unsupported("truth value", repr(self))
        return True

    def length(self, evaluator: Evaluator) -> int:
        from .missing_methods import require_method

        require_method(evaluator, self, "__len__")
        raise Unsupported("len()", repr(self))

    def length_variable(self, evaluator: Evaluator) -> Variable:
        """What ``len`` gives."""
        return evaluator.wrap_constant(self.length(evaluator))

    def reconstruct(self, emitter: Emitter) -> None:
        """Emit code that pushes this object.

        Called at most once per variable and frame for an object without a usable source: the emitter keeps
        identity by storing the object in a temporary (use ``emitter.load_variable`` for parts).  An object
        with a source that needs no rebuilding is loaded from the source by the emitter itself.
        """
        raise Unsupported("value cannot be rebuilt after a graph", repr(self))

    def reason(self, evaluator: Evaluator) -> Reason:
        return evaluator.current_reason()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source.name() if self.source else ''})"


def unhashable(evaluator: Evaluator, variable: Variable) -> NoReturn:
    """The TypeError of a list or dict used as a key."""
    evaluator.raise_error(TypeError, f"unhashable type: {variable.python_type().__name__!r}")
