"""Guards on one dict that its version decides: run again by the native check only when it has changed.

An exact dict has a version (PEP 509) that is unique among all dicts and changes whenever an item is set,
replaced or deleted. While it stands, the dict has the keys and the very objects that it had. So what follows
from keys and from the identity of items holds again if it has held: ``IsObject``, ``DictContains``, the
dict's own length; equality to a constant too, since constants are immutable, and the type of an object
whose class cannot be assigned. That is most of what is guarded of an ``nn.Module``: one comparison for all of
a module's flags, its submodules' identity and the names that it must not have.

Not so the metadata of parameters, which change in place (``p.data = ...``): it is checked each time, as is
the length of containers among the items (a module's hooks), which the section keeps track of natively.

CPython has dict versions up to 3.12; on later ones every guard is checked each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .guard import Guard
from .merged_tree import MergedNode, MergedTree
from .predicates.containers import LengthIs
from .tree import Access, Tree


@dataclass(frozen=True)
class Section:
    """Of one dict: guards on its keys, items that its version decides, and items whose length is guarded.

    All trees that have the dict have all of them, and nothing else reads the items.
    """

    own: tuple[Guard, ...]
    constant: tuple[MergedNode, ...]
    lengths: tuple[MergedNode, ...]

    @property
    def steps(self) -> int:
        """How many steps there are: a load and checks for an item."""
        items = (*self.constant, *self.lengths)
        return len(self.own) + sum(1 + len(item.guards) for item in items)


class Sections:
    """Finds the sections of merged trees."""

    def __init__(self, merged: MergedTree, trees: Sequence[Tree]) -> None:
        self._read_elsewhere = {
            merged.place(tree.node(source))
            for tree in trees
            for guard in tree.relations
            for source in (guard.source, *guard.predicate.sources())
        }

    def of(self, place: MergedNode) -> Section | None:
        """The section of a place where a dict may be; None where there would be next to nothing in it."""
        items = [child for child in place.children if self._is_alone(child, place)]
        if not items:
            return None
        constant = tuple(
            item for item in items if all(g.predicate.is_lasting for g, _ in item.guards)
        )
        lengths = tuple(item for item in items if _is_length(item))
        own = tuple(
            guard
            for guard, trees in place.guards
            if trees == place.trees and guard.predicate.follows_from_keys
        )
        section = Section(own, constant, lengths)
        return section if section.steps > 3 else None

    def _is_alone(self, item: MergedNode, place: MergedNode) -> bool:
        """Whether nothing is read of the item but what its guards say, in all trees that have the dict."""
        return (
            item.access is Access.ITEM
            and type(item.node.operand) is str
            and not item.children
            and item not in self._read_elsewhere
            and all(trees == place.trees for trees in (item.trees, *(t for _, t in item.guards)))
        )


def _is_length(item: MergedNode) -> bool:
    return len(item.guards) == 1 and isinstance(item.guards[0][0].predicate, LengthIs)
