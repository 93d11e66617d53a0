"""``warnings``: given after the graph, for the line that gave them, and filters are changed there."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

from .... import _frame_hook
from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...frame_ends import handler_goes_on, warning_blocks
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..objects.classes import ClassVariable
from ..table import model, models


@model(warnings.warn)
def _warn(
    evaluator: Evaluator,
    message: Variable,
    category: Variable | None = None,
    stacklevel: Variable | None = None,
    source: Variable | None = None,
) -> None:
    """A warning is no part of the graph; one that a filter makes an error is raised after it."""
    kind = UserWarning if category is None or category.is_none() else _class(category)
    level = 1 if stacklevel is None else stacklevel.as_constant()
    plain = message.python_type() is str and source is None and type(level) is int
    if kind is None or not plain or _is_watched(evaluator):
        raise Unsupported("call of a builtin function", f"warn({message!r})")
    frames = list(evaluator.frame.frames())
    above = max(level - 1, 0)
    blocks = _blocks(evaluator)
    place: tuple[Any, ...]
    if above < len(frames):
        frame = frames[above]
        line = frame.location().line
        place = (frame.globals.dictionary, kind, frame.code.co_filename, line)
        emit = functools.partial(_emit, _given, blocks, message, place)
    else:
        place = (kind, level - len(frames))
        emit = functools.partial(_emit, _given_to_caller, blocks, message, place)
    evaluator.side_effects.record(emit)


def give_warning(
    evaluator: Evaluator,
    text: str,
    namespace: dict[str, Any],
    kind: type[Warning],
    file: str,
    line: int,
) -> None:
    """Give a warning of an operator's after the graph; one in a region is left out.

    :raises Unsupported: the program may handle it as an error, or reads what is given.
    """
    if evaluator.graph.is_in_region:
        return
    if _is_watched(evaluator):
        raise Unsupported("call of a builtin function", f"warn({text!r})")
    place = (namespace, kind, file, line)
    message = ConstantVariable(text)
    emit = functools.partial(_emit, _given, _blocks(evaluator), message, place)
    evaluator.side_effects.record(emit)


def _blocks(evaluator: Evaluator) -> tuple[Variable, ...]:
    """The blocks of ``catch_warnings`` around what runs now, the outermost first."""
    found = [block for frame in evaluator.frame.frames() for block in warning_blocks(frame)]
    entered = evaluator.state.warning_blocks  # by an ExitStack, say
    outer = [block for block in reversed(found) if not any(block is known for known in entered)]
    return (*outer, *entered)


def _class(category: Variable) -> type[Warning] | None:
    if isinstance(category, ClassVariable) and issubclass(category.value, Warning):
        found: type[Warning] = category.value
        return found
    return None


def _is_watched(evaluator: Evaluator) -> bool:
    """Whether the program may catch or read what is given, or has changed filters by itself before."""
    shown = getattr(vars(warnings).get("_showwarnmsg_impl"), "__self__", None)
    if evaluator.builder.known(shown) is not None:  # the list of ``catch_warnings(record=True)``
        return True
    if any(handler_goes_on(frame) or frame.suspended for frame in evaluator.frame.frames()):
        return True
    changed = evaluator.state.written_globals()
    watched = vars(warnings), vars(sys)  # filters, and where warnings are shown
    return evaluator.graph.is_in_region or any(
        m.dictionary is known for m in changed for known in watched
    )


def _emit(
    given: Any,
    blocks: tuple[Variable, ...],
    message: Variable,
    place: tuple[Any, ...],
    emitter: Emitter,
) -> None:
    emitter.load_callable(_LEAVING)
    emitter.load_elements("tuple", blocks)
    emitter.load_object(given)
    emitter.load_variable(message)
    for part in place:
        emitter.load_object(part)
    emitter.call(3 + len(place))
    emitter.pop()


def _leaving(blocks: tuple[Any, ...], give: Callable[..., None], *arguments: Any) -> None:
    """Give a warning; one that is raised leaves the blocks that it is given in."""
    try:
        give(*arguments)
    except Warning:
        for block in reversed(blocks):
            block.__exit__(None, None, None)
        raise


def _given(
    message: str, namespace: dict[str, Any], kind: type[Warning], file: str, line: int
) -> None:
    module = namespace.get("__name__", "<string>")
    registry = namespace.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, kind, file, line, module, registry)


def _given_to_caller(message: str, kind: type[Warning], above: int) -> None:
    """For the frame that many above the captured one, whose effects these are."""
    warnings.warn(message, kind, stacklevel=3 + above)


_LEAVING = _frame_hook.disabled(_leaving)


# Filters.  Effects begin and end the blocks of ``catch_warnings``, in order with what is given inside.

_ENTER, _EXIT = warnings.catch_warnings.__enter__, warnings.catch_warnings.__exit__


@model(_ENTER)
def _enter(evaluator: Evaluator, block: Variable, /) -> None:
    if block.get_attribute(evaluator, "_record").truth(evaluator):
        raise Unsupported("call of a builtin function", "catch_warnings(record=True)")
    _change(evaluator, _ENTER, [block])
    evaluator.state.warning_blocks.append(block)


@model(_EXIT)
def _exit(evaluator: Evaluator, block: Variable, /, *exc_info: Variable) -> None:
    _change(evaluator, _EXIT, [block])
    blocks = evaluator.state.warning_blocks
    blocks[:] = [entered for entered in blocks if entered is not block]


@models(warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings)
def _filter(function: Any, evaluator: Evaluator, /, *args: Variable, **kwargs: Variable) -> None:
    action = args[0] if args else kwargs.get("action")
    raises = action is not None and action.as_constant() == "error"
    if raises or any(handler_goes_on(frame) for frame in evaluator.frame.frames()):
        raise Unsupported("call of a builtin function", f"warnings.{function.__name__}")
    for value in (*args, *kwargs.values()):
        if not isinstance(value, ClassVariable):
            value.as_constant()
    _change(evaluator, function, list(args), kwargs)


def _change(
    evaluator: Evaluator,
    function: Any,
    arguments: list[Variable],
    keywords: dict[str, Variable] | None = None,
) -> None:
    if evaluator.graph.is_in_region:
        raise Unsupported("effect inside a region", f"warnings: {function.__name__}")
    named = keywords or {}

    def emit(emitter: Emitter) -> None:
        emitter.load_callable(call)
        for value in (*arguments, *named.values()):
            emitter.load_variable(value)
        emitter.call(len(arguments) + len(named), tuple(named))
        emitter.pop()

    call = _frame_hook.disabled(function)
    evaluator.side_effects.record(emit)
