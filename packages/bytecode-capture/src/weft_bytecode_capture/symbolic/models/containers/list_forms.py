"""What a control-flow region knows of a list beside its elements, or in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...protocol import Evaluator

if TYPE_CHECKING:
    from ...variables.base import Variable
    from .sequences import ListVariable


class ListForm:
    """What a list asks before it answers by its elements, which it does where None is given."""

    hides_elements = False

    def state(self) -> tuple[Any, ...]:
        """What the program may change of the list without changing its elements."""
        return ()

    def look(self, target: ListVariable) -> None:
        """Its elements are needed."""

    def truth(self) -> bool | None:
        return None

    def length(self) -> Variable | None:
        return None

    def get_item(
        self, evaluator: Evaluator, target: ListVariable, key: Variable
    ) -> Variable | None:
        return None

    def append(self, item: Variable) -> bool:
        """Whether it takes the item."""
        return False

    def reversed(self) -> ListForm | None:
        return None
