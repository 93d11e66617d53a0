"""How many digits texts of integers may have: a setting of the interpreter, which the program may change."""

from __future__ import annotations

import functools
import sys

from weft_guards import EqualsConstant

from .... import _frame_hook
from ....frame.emitter import Emitter
from ....sources import CalledSource
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..containers.slices import index_value
from ..table import model


@model(sys.get_int_max_str_digits)
def _get(evaluator: Evaluator) -> Variable:
    known = evaluator.state.most_digits
    if known is None:
        known = sys.get_int_max_str_digits()
        source = CalledSource(functools.partial(sys.get_int_max_str_digits), ())
        evaluator.guard(source, EqualsConstant(known))
    return ConstantVariable(known)


@model(sys.set_int_max_str_digits)
def _set(evaluator: Evaluator, maxdigits: Variable) -> None:
    """Set behind the graph, and for what is evaluated from here on."""
    if evaluator.graph.is_in_region:
        raise Unsupported("effect inside a region", "set_int_max_str_digits()")
    count = index_value(evaluator, maxdigits)
    _get(evaluator)
    evaluator.state.most_digits = evaluator.pure(_checked, count)

    def emit(emitter: Emitter) -> None:
        emitter.load_call(_SET, count)
        emitter.pop()

    evaluator.side_effects.record(emit)


_SET = _frame_hook.disabled(functools.partial(sys.set_int_max_str_digits))


def _checked(count: int) -> int:
    """A number of digits, if the interpreter takes it."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(count)
    sys.set_int_max_str_digits(before)
    return count
