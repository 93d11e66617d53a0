"""``compile``, ``eval`` and ``exec`` of texts that are known, and ``locals``.

Without dicts of its own such a text is evaluated among the names of the frame that runs it.  What it binds
there goes into a dict that only another such call could read: a frame with several is left to CPython.
"""

from __future__ import annotations
import __future__

import builtins
import dis
import types
import warnings
from collections.abc import Iterator, MutableMapping
from typing import Any

from ....code_objects.flow import reads_namespace_again
from ....unsupported import Unsupported
from ...protocol import Evaluator, Frame
from ...regions.branches.unread_locals import ChosenLocal
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ...variables.keys import HashedKey
from ..containers.mappings import DictVariable
from ..table import model, models
from .tracing import namespace_is_seen

_INHERITED = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
"""The flags of code that texts take over from the code that evaluates them."""

_TEXTS = (str, bytes)


@models(eval, exec)
def _run(
    function: Any, evaluator: Evaluator, source: Variable, /, *namespaces: Variable
) -> Variable | None:
    frame = evaluator.frame
    code = _code_of(evaluator, function, source)
    given = [names for names in namespaces if not names.is_none()]
    if code is None or (given and not _may_run_in(code, given)):
        raise namespace_is_seen(evaluator, function, has_own=bool(namespaces))
    if code.co_freevars:
        evaluator.pure(function, code, {})  # raises
    if given:
        result = evaluator.evaluated_text(code, _Names(evaluator, given), _globals())
    else:
        names = frame.namespace
        if names is None:
            if function is exec and reads_namespace_again(frame.code):
                raise namespace_is_seen(evaluator, function, has_own=False)
            names = _names_of(evaluator, frame)
        result = evaluator.evaluated_text(code, names, frame.globals.dictionary)
    return result if function is eval else None


@model(locals)
def _locals(evaluator: Evaluator) -> Variable:
    """A dict of the frame's own, as long as nothing asks for it again."""
    frame = evaluator.frame
    if frame.namespace is not None or reads_namespace_again(frame.code):
        raise namespace_is_seen(evaluator, locals, has_own=False)
    names = _names_of(evaluator, frame)
    keys = [HashedKey(ConstantVariable(name), (name,)) for name in names]
    return DictVariable(dict(zip(keys, names.values(), strict=True)))


def _names_of(evaluator: Evaluator, frame: Frame) -> dict[str, Variable]:
    """The names that a frame has bound, in the order of its slots."""
    found: dict[str, Variable] = {}
    for name in (*frame.code.co_varnames, *frame.code.co_cellvars, *frame.code.co_freevars):
        value = frame.locals.get(name)
        if value is None and name in frame.cells:
            value = frame.cells[name].read(evaluator)
        if isinstance(value, ChosenLocal):
            value.read()
        if value is not None:
            found.setdefault(name, value)
    return found


def _code_of(evaluator: Evaluator, function: Any, source: Variable) -> types.CodeType | None:
    """What runs; None where that is not known.  Raises the compiler's errors in the captured program."""
    if not source.is_constant():
        return None
    value = source.as_constant()
    if isinstance(value, types.CodeType):
        return value
    if type(value) not in _TEXTS:
        return None
    if function is eval:
        value = value.lstrip(" \t") if isinstance(value, str) else value.lstrip(b" \t")
    inherited = evaluator.frame.code.co_flags & _INHERITED
    return _compiled(evaluator, function, value, "<string>", function.__name__, inherited)


def _compiled(
    evaluator: Evaluator, function: Any, text: str | bytes, *arguments: Any, optimize: int = -1
) -> types.CodeType:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        code: Any = evaluator.pure(compile, text, *arguments, dont_inherit=True, optimize=optimize)
    if given:
        what = f"{function.__name__}({text!r}), of which the compiler warns"
        raise Unsupported("locals of a frame", what)
    if not isinstance(code, types.CodeType):
        raise Unsupported("call of a builtin function", f"compile({text!r}) to a tree")
    return code


@model(compile)
def _compile(
    evaluator: Evaluator,
    source: Variable,
    filename: Variable,
    mode: Variable,
    flags: Variable | None = None,
    dont_inherit: Variable | None = None,
    optimize: Variable | None = None,
) -> Variable:
    optional = [part for part in (flags, dont_inherit, optimize) if part is not None]
    known = all(part.is_constant() for part in (source, filename, mode, *optional))
    if not known or type(source.as_constant()) not in _TEXTS:
        raise Unsupported("call of a builtin function", f"compile({source!r})")
    wanted = 0 if flags is None else flags.as_constant()
    if dont_inherit is None or not dont_inherit.as_constant():
        wanted |= evaluator.frame.code.co_flags & _INHERITED
    arguments = filename.as_constant(), mode.as_constant(), wanted
    level = -1 if optimize is None else optimize.as_constant()
    code = _compiled(evaluator, compile, source.as_constant(), *arguments, optimize=level)
    return ConstantVariable(code)


def _operations(code: types.CodeType) -> Iterator[str]:
    return (instruction.opname for instruction in dis.get_instructions(code))


def _may_run_in(code: types.CodeType, namespaces: list[Variable]) -> bool:
    """Whether code runs in dicts that the frame has made, and makes no function that would keep one."""
    plain = all(
        type(names) is DictVariable and names.source is None and names.python_type() is dict
        for names in namespaces
    )
    makes_functions = any(isinstance(constant, types.CodeType) for constant in code.co_consts)
    names_globals = any(name.endswith("_GLOBAL") for name in _operations(code))
    return plain and not makes_functions and not names_globals


def _globals() -> dict[str, Any]:
    """Globals with nothing but builtins: what a text's dicts hold is looked up before."""
    return {"__builtins__": builtins}


class _Names(MutableMapping[str, Variable]):
    """The dict of locals that a text binds names in, and the one of globals behind it."""

    def __init__(self, evaluator: Evaluator, namespaces: list[Variable]) -> None:
        self._evaluator = evaluator
        self._dicts: list[Any] = namespaces[::-1]
        key = ConstantVariable("__builtins__")
        outer: Any = self._dicts[-1]
        if not outer.contains(evaluator, key):  # as CPython puts them there
            outer.store(evaluator, key, evaluator.wrap_known(vars(builtins)))

    def __getitem__(self, name: str) -> Variable:
        for names in self._dicts:
            found: Variable | None = names.lookup(self._evaluator, ConstantVariable(name))
            if found is not None:
                return found
        raise KeyError(name)

    def __setitem__(self, name: str, value: Variable) -> None:
        self._dicts[0].store(self._evaluator, ConstantVariable(name), value)

    def __delitem__(self, name: str) -> None:
        if self._dicts[0].lookup(self._evaluator, ConstantVariable(name)) is None:
            raise KeyError(name)
        self._dicts[0].call_method(self._evaluator, "__delitem__", [ConstantVariable(name)], {})

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError
