"""A set of guards: ordered, checkable, explainable."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CellType
from typing import Any

from .compilation import compile_native, scope_maker
from .guard import Guard
from .native import GuardCheck, native_available
from .predicates.base import short_text
from .sources import Scope, Source
from .tree import Access, Node, Tree
from .weak_keys import WeakKey, weak_references


@dataclass(frozen=True)
class GuardFailure:
    """The first guard of a set that does not hold, what was expected and found, and what would help.

    ``hint`` is None where nothing general can be said.
    """

    guard: Guard
    expected: str
    found: str
    hint: str | None = None

    @property
    def source(self) -> Source:
        return self.guard.source

    def __str__(self) -> str:
        reason = self.guard.reason
        text = (
            f"{self.guard.source.name()}: expected {self.expected}, found {self.found}\n"
            f"  needed by {reason.file}:{reason.line}: {reason.text}"
        )
        return text if self.hint is None else f"{text}\n  to avoid it: {self.hint}"


class GuardSet:
    """Guards under which compiled code may be used again.

    Duplicates, and type guards that follow from another guard on the same value, are dropped.
    :attr:`guards` is in the order of checking: a value's guards before those of what is read from it,
    cheap ones first, comparisons of two values last.
    """

    def __init__(self, guards: Iterable[Guard]) -> None:
        self._tree = Tree(guards)
        self.guards: tuple[Guard, ...] = tuple(self._tree.guards())

    def __len__(self) -> int:
        return len(self.guards)

    def __iter__(self) -> Iterator[Guard]:
        return iter(self.guards)

    def references(self) -> tuple[weakref.ref[Any], ...]:
        """Weak references to the objects without which the set never holds again, each once."""
        found = [reference for guard in self.guards for reference in guard.predicate.references()]
        for node in self._tree.nodes():
            if node.access is Access.PYTHON:
                found.extend(_references_on_path(node.operand))
            else:
                found.extend(weak_references(node.operand))
        return tuple({id(held): held for held in found}.values())

    def compile(self, arguments: Sequence[str], free_variables: Sequence[str]) -> GuardCheck:
        """The set as one check, native where the extension is built.

        :param arguments: names of the frame's argument slots, in their order: positional, keyword-only,
            ``*args``, ``**kwargs``.
        :param free_variables: the code's ``co_freevars``.
        :raises ValueError: a source names an argument or free variable that the frame has not.
        """
        if native_available():
            return compile_native(self._tree, tuple(arguments), tuple(free_variables))
        return PythonGuardCheck(self, arguments, free_variables)

    def evaluate(self, scope: Scope) -> bool:
        """Whether every guard holds; in Python, the meaning that the native check is tested against."""
        return all(_holds(guard, scope) for guard in self.guards)

    def explain(self, scope: Scope) -> GuardFailure | None:
        """The first guard that does not hold, None when all hold.

        Reads every value again, so it may run properties that the check has run already.
        """
        for guard in self.guards:
            if not _holds(guard, scope):
                return GuardFailure(guard, *_expected_found_and_hint(guard, scope))
        return None

    def describe(self) -> str:
        """The tree of sources with the guards on each and the lines that need them."""
        lines = []
        for depth, node in _with_depth(self._tree.roots.values(), 0):
            lines.append("  " * depth + _node_text(node))
            lines.extend("  " * depth + "  - " + _guard_text(guard) for guard in node.guards)
        for guard in self._tree.relations:
            lines.append(f"{guard.source.name()} - {_guard_text(guard)}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return f"<GuardSet of {len(self.guards)} guards>"


class PythonGuardCheck:
    """A compiled guard set where the extension isn't built: the same answers, some hundred times slower."""

    def __init__(
        self, guard_set: GuardSet, arguments: Sequence[str], free_variables: Sequence[str]
    ) -> None:
        self._guard_set = guard_set
        self._arguments = tuple(arguments)
        self._make_scope: Callable[..., Scope] = scope_maker(free_variables)
        for node in guard_set._tree.nodes():
            names = {Access.ARGUMENT: self._arguments, Access.CLOSURE: tuple(free_variables)}
            if node.access in names and node.operand not in names[node.access]:
                raise ValueError(f"the frame has no {node.access.name.lower()} {node.operand!r}")

    def check(
        self,
        arguments: tuple[Any, ...],
        globals: dict[str, Any],
        builtins: Mapping[str, Any],
        closure: tuple[CellType, ...] | None,
        /,
    ) -> bool:
        if len(arguments) != len(self._arguments):
            raise ValueError(
                f"check() expects {len(self._arguments)} arguments in the tuple, "
                f"{len(arguments)} given"
            )
        by_name = dict(zip(self._arguments, arguments, strict=True))
        return self._guard_set.evaluate(self._make_scope(by_name, globals, builtins, closure))


def _references_on_path(source: Source | None) -> Iterator[WeakKey]:
    while source is not None:
        for known in (getattr(source, "key", None), getattr(source, "held", None)):
            yield from weak_references(known)
        source = getattr(source, "base", None)


def _holds(guard: Guard, scope: Scope) -> bool:
    try:
        return bool(guard.predicate.holds(guard.source.evaluate(scope), scope))
    except Exception:  # whatever it is, the guard does not hold
        return False


def _expected_found_and_hint(guard: Guard, scope: Scope) -> tuple[str, str, str | None]:
    expected = guard.predicate.expected_text()
    try:
        value = guard.source.evaluate(scope)
    except Exception as error:  # of an attribute or index that fails, the program's own too
        return expected, f"nothing there ({type(error).__name__}: {short_text(str(error))})", None
    try:
        if guard.predicate.holds(value, scope):
            return expected, "that, when asked a second time", None
        return (
            expected,
            guard.predicate.found_text(value, scope),
            guard.predicate.hint(guard.source, value),
        )
    except Exception as error:  # of the program's methods, such as ``__eq__``
        found = f"a check that raises {type(error).__name__}: {short_text(str(error))}"
        return expected, found, None


def _with_depth(nodes: Iterable[Node], depth: int) -> Iterator[tuple[int, Node]]:
    for node in nodes:
        yield depth, node
        yield from _with_depth(node.children.values(), depth + 1)


def _node_text(node: Node) -> str:
    if node.source is not None:
        return node.source.name()
    assert node.parent is not None
    return f"{_node_text(node.parent)}.__dict__"


def _guard_text(guard: Guard) -> str:
    reason = guard.reason
    kind = type(guard.predicate).__name__
    return (
        f"{kind}: {guard.predicate.expected_text()}  # {reason.file}:{reason.line}: {reason.text}"
    )
