"""The tree of a guard set: sources that share a prefix share its nodes; guards hang on the nodes.

The order of the tree is the order of checking.  A node's own guards come before its children, so that a
value's type is known to be right before anything is read from it; cheap subtrees come before costly ones,
and of equal ones arguments come first, since they differ most often between calls.  Guards that compare
two values come last.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from .constants import constant_key, is_constant
from .guard import Guard
from .predicates.base import PYTHON_COST
from .predicates.objects import TypeIs
from .sources import (
    ArgumentSource,
    AttributeSource,
    CellContentsSource,
    ClosureSource,
    ConstantSource,
    DictKeySource,
    GlobalSource,
    GlobalStateSource,
    InstanceDictSource,
    ItemSource,
    Source,
    TypeSource,
)
from .weak_keys import KeyOfParts, is_weak


class Access(enum.IntEnum):  # whose hash C computes
    """How a node's value is got: from the frame or from the parent's value."""

    ARGUMENT = enum.auto()
    GLOBAL_STATE = enum.auto()
    CLOSURE = enum.auto()
    GLOBAL = enum.auto()
    CONSTANT = enum.auto()
    ATTRIBUTE = enum.auto()
    INSTANCE_DICT = enum.auto()
    ITEM = enum.auto()
    DICT_KEY = enum.auto()
    TYPE = enum.auto()
    CELL = enum.auto()
    PYTHON = enum.auto()  # a source of a type not known here, evaluated as a whole


AccessStep = tuple[Access, Any]  # how, and the name, key, index or object that it takes

# One entry a source type: the steps from its base (or the frame) to its value.  The second step of
# InstanceDictSource hangs below the dict, which all attributes of an instance share.
_STEPS: dict[type[Source], Callable[[Any], tuple[AccessStep, ...]]] = {
    ArgumentSource: lambda source: ((Access.ARGUMENT, source.argument),),
    ClosureSource: lambda source: ((Access.CLOSURE, source.variable),),
    GlobalSource: lambda source: ((Access.GLOBAL, source.variable),),
    GlobalStateSource: lambda source: ((Access.GLOBAL_STATE, None),),
    ConstantSource: lambda source: ((Access.CONSTANT, source.held),),
    AttributeSource: lambda source: ((Access.ATTRIBUTE, source.attribute),),
    InstanceDictSource: lambda source: (
        ((Access.INSTANCE_DICT, None),)
        if source.key is None
        else ((Access.INSTANCE_DICT, None), (Access.ITEM, source.key))
    ),
    ItemSource: lambda source: ((Access.ITEM, source.key),),
    DictKeySource: lambda source: ((Access.DICT_KEY, source.index),),
    TypeSource: lambda source: ((Access.TYPE, None),),
    CellContentsSource: lambda source: ((Access.CELL, None),),
}


def _has_parts(source: Source) -> bool:
    known = source.key if type(source) is ItemSource else getattr(source, "held", None)
    return type(known) is KeyOfParts


@dataclass(eq=False)
class Node:
    """One place on the way to guarded values."""

    access: Access
    operand: Any
    # Weak, or the objects that guards know would wait for a collection.
    above: weakref.ref[Node] | None
    source: Source | None  # None for a place that only lies on the way (an instance's dict)
    guards: list[Guard] = field(default_factory=list)
    children: dict[Hashable, Node] = field(default_factory=dict)
    cost: int = 0

    @property
    def parent(self) -> Node | None:
        """The place that this one is read from, while its tree lives."""
        return None if self.above is None else self.above()

    def own_cost(self) -> int:
        """The cost of getting the value, in the unit of :attr:`Predicate.cost`."""
        return 1 + (PYTHON_COST if self.access is Access.PYTHON else 0)


def _operand_key(access: Access, operand: Any) -> Hashable:
    if is_weak(operand):  # not by an address, at which another object may be once it has died
        return access, operand
    if access is Access.CONSTANT:
        return access, id(operand)
    if access is Access.ITEM:
        # 1, 1.0 and True are one key for a dict but not for every __getitem__.
        key = constant_key(operand) if is_constant(operand) else id(operand)
        return access, key
    return access, operand


def predicate_key(guard: Guard) -> Hashable:
    """Equal for two guards on one value that say the same, while the objects in both live."""
    return type(guard.predicate), guard.predicate.identity()


def _implied(guard: Guard, guards: Iterable[Guard]) -> bool:
    """Whether a type guard follows from another guard on the same value."""
    if not isinstance(guard.predicate, TypeIs):
        return False
    kind = guard.predicate.expected
    return any(other.predicate.implies_type(kind) for other in guards)


class Tree:
    """Nodes and guards, without duplicates, in the order of checking."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        self.roots: dict[Hashable, Node] = {}
        self.relations: list[Guard] = []
        # Keys hold addresses of objects that only the guards keep alive.
        self._given = tuple(guards)
        # By the address of a source, which is held beside: paths share the objects of what they begin with.
        self._found: dict[int, tuple[Source, Node]] = {}
        seen: set[Hashable] = set()
        for guard in self._given:
            node = self.node(guard.source)
            key = (id(node), predicate_key(guard))
            if key in seen:
                continue
            seen.add(key)
            others = guard.predicate.sources()
            if others:
                for other in others:
                    self.node(other)
                self.relations.append(guard)
            else:
                node.guards.append(guard)
        self.roots = self._arranged(self.roots)

    def node(self, source: Source) -> Node:
        """The node of a source, made when it is new."""
        found = self._found.get(id(source))
        if found is None:
            found = self._found[id(source)] = source, self._walked(source)
        return found[1]

    def _walked(self, source: Source) -> Node:
        make_steps = _STEPS.get(type(source))
        if make_steps is None or _has_parts(source):
            return self._child(None, (Access.PYTHON, source), source)
        base: Source | None = getattr(source, "base", None)
        node = None if base is None else self.node(base)
        steps = make_steps(source)
        for step in steps[:-1]:
            node = self._child(node, step, None)
        return self._child(node, steps[-1], source)

    def _child(self, parent: Node | None, step: AccessStep, source: Source | None) -> Node:
        children = self.roots if parent is None else parent.children
        key = _operand_key(*step)
        if key not in children:
            above = None if parent is None else weakref.ref(parent)
            children[key] = Node(*step, above, source)
        return children[key]

    def _arranged(self, nodes: dict[Hashable, Node]) -> dict[Hashable, Node]:
        for node in nodes.values():
            if len(node.guards) > 1:
                kept = [guard for guard in node.guards if not _implied(guard, node.guards)]
                node.guards = sorted(kept, key=lambda guard: guard.predicate.cost)
            cost = node.own_cost()
            for guard in node.guards:
                cost += guard.predicate.cost
            if node.children:
                node.children = self._arranged(node.children)
                for child in node.children.values():
                    cost += child.cost
            node.cost = cost
        if len(nodes) < 2:
            return nodes
        return dict(sorted(nodes.items(), key=lambda entry: rank(entry[1])))

    def nodes(self) -> Iterator[Node]:
        """All nodes, each after its parent, in the order of checking."""
        stack = list(reversed(self.roots.values()))
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def guards(self) -> Iterator[Guard]:
        """All guards in the order of checking."""
        for node in self.nodes():
            yield from node.guards
        yield from self.relations


class Ranked(Protocol):
    """What has a place among its siblings."""

    cost: int

    @property
    def access(self) -> Access: ...


def rank(node: Ranked) -> tuple[int, int]:
    """The order among siblings: costs within a factor of two count as equal."""
    return node.cost.bit_length(), node.access.value
