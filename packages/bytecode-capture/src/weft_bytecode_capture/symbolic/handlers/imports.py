"""Import statements: of modules already imported, whose import has no effect, and of torch's own."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
from typing import Any

from weft_guards import ConstantSource, IsObject, ItemSource

from ...unsupported import Unsupported
from ..decode import DecodedInstruction, handles
from ..evaluator import FrameEvaluator
from ..models.containers.mappings import DictVariable


@handles("IMPORT_NAME")
def _import_name(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    from_list = evaluator.pop()
    level = evaluator.pop().as_constant()
    name = _absolute_name(evaluator, instruction.operand, level)
    names = from_list.as_constant() or ()
    module = _imported(evaluator, name)
    if not names and not level:
        module = _imported(evaluator, name.partition(".")[0])
    variable = evaluator.builder.wrap(module, ConstantSource(name, module))
    if names and hasattr(module, "__path__"):
        for part in names:
            # A package's part that is no attribute is imported, as its submodule.
            if variable.find_attribute(evaluator, part) is None:
                _imported(evaluator, f"{module.__name__}.{part}")
    evaluator.stack.append(variable)


def _absolute_name(evaluator: FrameEvaluator, name: str, level: int) -> str:
    if not level:
        return name
    package = evaluator.globals.dictionary.get("__package__")
    try:
        return importlib.util.resolve_name("." * level + name, package)
    except (ImportError, AttributeError, TypeError) as error:  # without or beyond a package
        raise Unsupported("import that fails", f"{'.' * level}{name}: {error}") from error


def _imported(evaluator: FrameEvaluator, name: str) -> Any:
    """A module that has been imported, guarded to be the one in ``sys.modules`` where the user's code asks.

    :raises Unsupported: importing it does something.
    """
    modules: Any = sys.modules
    known = evaluator.builder.known(modules)
    if isinstance(known, DictVariable) and (known.written or known.deleted):
        raise Unsupported("import that fails", f"{name}, after a change of sys.modules")
    scope = evaluator.globals.builtins
    module = modules.get(name)
    if module is None and scope.get("__import__") is _IMPORT:
        module = _import_of_torch(name)
    if (
        module is None
        or getattr(getattr(module, "__spec__", None), "_initializing", False)
        or scope.get("__import__") is not _IMPORT
    ):
        raise Unsupported(
            "import of a module not imported before",
            name,
            "an import runs the module's code",
            ("import it at the top of the file",),
        )
    if not evaluator.globals.trusted:
        hook = ItemSource(ConstantSource("builtins.__dict__", scope), "__import__")
        evaluator.guard(hook, IsObject(_IMPORT))
        evaluator.guard(ItemSource(_MODULES, name), IsObject(module))
    return module


def _import_of_torch(name: str) -> Any:
    """A module of torch's, imported now, as ``optimizer.step`` does in its first call; None of others.

    Modules of torch do nothing by being imported that a program of tensors sees.
    """
    if name.partition(".")[0] != "torch":
        return None
    try:
        return importlib.import_module(name)
    except ImportError:  # for the program to see
        return None


_IMPORT = builtins.__import__
_MODULES = ConstantSource("sys.modules", sys.modules)


@handles("IMPORT_FROM")
def _import_from(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    module = evaluator.stack[-1]
    assert module is not None
    value = module.find_attribute(evaluator, instruction.operand)
    if value is None:
        name = module.get_attribute(evaluator, "__name__").as_constant()
        full_name = f"{name}.{instruction.operand}"
        if sys.modules.get(full_name) is None:
            raise Unsupported("import that fails", f"from {name} import {instruction.operand}")
        value = evaluator.wrap_known(_imported(evaluator, full_name))
    evaluator.stack.append(value)


@handles("IMPORT_STAR")
def _import_star(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    raise Unsupported("opcode", instruction.name)
