"""Elements of sequences and ModuleLists at numbers that differ from call to call: ``layers[i]``.

Each layer has another, which does not make another layer of it: what is guarded is the element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft_guards import Source, TypeIs

from ....sources import ConvertedSource, SelectedSource
from ...protocol import Evaluator
from ...variables.base import Variable
from ..numbers.representations import NumberVariable


def selected_element(
    evaluator: Evaluator, elements: Any, base: Source, key: Variable, by_name: bool = False
) -> Variable | None:
    """The element of ``elements``, at ``base``, that ``key`` gives; None where it is no such number."""
    if not isinstance(key, NumberVariable) or type(elements) not in (list, tuple, dict):
        return None
    counted = key.counted()
    if counted is None or not 0 <= counted.now < len(elements):
        return None
    value = elements.get(str(counted.now), _ABSENT) if by_name else elements[counted.now]
    if value is _ABSENT:
        return None
    source = SelectedSource(base, counted.source, counted.offset, by_name)
    evaluator.guard(source, TypeIs(type(value)))  # that there is one, of an object of any kind
    return evaluator.builder.wrap(value, source)


def varying_length(
    evaluator: Evaluator, elements: Sequence[Any], source: Source
) -> Variable | None:
    """How many elements a list or tuple at ``source`` has, as a number, where it has had others."""
    history, length = evaluator.state.frame.history, len(elements)
    if not history.changed_extents(source, "length", (length,)):
        return None
    place = ConvertedSource(source, len)
    history.note_varying_number(place)
    return evaluator.builder.wrap(length, place)


_ABSENT = object()
