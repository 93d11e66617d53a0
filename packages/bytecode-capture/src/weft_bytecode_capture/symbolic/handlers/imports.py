"""Import statements: of modules already imported, whose import has no effect."""

from __future__ import annotations

import importlib.util
import sys

from weft_guards import ConstantSource

from ...unsupported import Unsupported
from ..captured_exception import CapturedException
from ..decode import Instruction, handles
from ..evaluator import Evaluator


@handles("IMPORT_NAME")
def _import_name(evaluator: Evaluator, instruction: Instruction) -> None:
    from_list = evaluator.pop()
    level = evaluator.pop().as_constant()
    name = instruction.operand
    if level:
        package = evaluator.globals.dictionary.get("__package__") or ""
        name = importlib.util.resolve_name("." * level + name, package)
    names = [] if from_list.as_constant() is None else list(from_list.as_constant())
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        raise Unsupported(
            "import of a module not imported before",
            name,
            "an import runs the module's code",
            ("import it at the top of the file",),
        )
    if not names:
        module = sys.modules[name] if level else sys.modules[name.partition(".")[0]]
    evaluator.stack.append(evaluator.builder.wrap(module, ConstantSource(module.__name__, module)))


@handles("IMPORT_FROM")
def _import_from(evaluator: Evaluator, instruction: Instruction) -> None:
    module = evaluator.stack[-1]
    assert module is not None
    try:
        value = module.get_attribute(evaluator, instruction.operand)
    except CapturedException as error:
        if error.exception.python_type() is not AttributeError:
            raise
        name = module.get_attribute(evaluator, "__name__").as_constant()
        submodule = sys.modules.get(f"{name}.{instruction.operand}")
        if submodule is None:
            raise Unsupported(
                "import that fails", f"from {name} import {instruction.operand}"
            ) from None
        value = evaluator.wrap_known(submodule)
    evaluator.stack.append(value)


@handles("IMPORT_STAR")
def _import_star(evaluator: Evaluator, instruction: Instruction) -> None:
    raise Unsupported("opcode", instruction.name)
