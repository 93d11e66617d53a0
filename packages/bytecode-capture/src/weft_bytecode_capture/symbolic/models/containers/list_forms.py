"""What is known of a list beside its elements, or in their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ....frame.emitter import Emitter
from ...protocol import Evaluator
from ...variables.base import Variable


class ListForm:
    """What a list asks before it answers by its elements, which it does where None is given.

    ``target`` is the list.
    """

    hides_elements = False

    def state(self) -> tuple[Any, ...]:
        """What the program may change of the list without changing its elements."""
        return ()

    def look(self, target: Any) -> None:
        """Its elements are needed."""

    def rebuild(self, emitter: Emitter) -> bool:
        """Whether it loads the list itself, whose elements are not needed then."""
        return False

    def truth(self, evaluator: Evaluator) -> bool | None:
        return None

    def length(self) -> Variable | None:
        return None

    def get_item(self, evaluator: Evaluator, target: Any, key: Variable) -> Variable | None:
        return None

    def joined(self) -> Any:
        """All elements as rows of one tensor, to be read."""
        return None

    def append(self, item: Variable) -> bool:
        """Whether it takes the item."""
        return False

    def reversed(self) -> ListForm | None:
        return None


@dataclass(frozen=True)
class RepeatedTensor(ListForm):
    """``[item] * count`` of a number that data decides: ``torch.stack([padding] * missing)``.

    What needs its elements relies on the number, which ``times`` gives where that can be.
    """

    hides_elements = True
    item: Variable
    count: Variable
    times: Callable[[], int]

    def state(self) -> tuple[Any, ...]:
        return self.item, self.count

    def look(self, target: Any) -> None:
        times = self.times()
        target.form = None
        target._items = [self.item] * times

    def rebuild(self, emitter: Emitter) -> bool:
        emitter.load_call(_repeated, self.item, self.count)
        return True

    def reversed(self) -> ListForm:
        return self


def _repeated(item: Any, count: int) -> list[Any]:
    return [item] * count
