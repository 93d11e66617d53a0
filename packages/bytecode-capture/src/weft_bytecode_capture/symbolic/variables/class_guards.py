"""Guards on what classes of the user's own do not define."""

from __future__ import annotations

from weft_guards import AttributeSource, ConstantSource, DictContains, HasAttribute, IsObject

from ..policy import is_library_module
from ..protocol import Evaluator
from .python_protocols import find_raw, module_of, resolution_order


def guard_absent(evaluator: Evaluator, kind: type, name: str) -> None:
    """Guard that a class of the user's own still has no such attribute."""
    if is_library_module(module_of(kind)) or find_raw(kind, name) is not None:
        return
    # its metaclass has it; what `__annotations__` gives is not asked for, since that runs code of the program
    if find_raw(type(kind), name) is not None or hasattr(kind, name):
        guard_undefined(evaluator, kind, name)
    else:
        source = ConstantSource(kind.__qualname__, kind)
        evaluator.guard(source, HasAttribute(name, False))


def guard_order(evaluator: Evaluator, kind: type) -> None:
    """Guard that a class of the user's own keeps its bases, and these theirs."""
    if len(resolution_order(kind)) > _ALONE and not is_library_module(module_of(kind)):
        source = AttributeSource(ConstantSource(kind.__qualname__, kind), "__mro__")
        evaluator.guard(source, IsObject(resolution_order(kind)))


_ALONE = 2  # itself and ``object``


def guard_undefined(evaluator: Evaluator, kind: type, name: str, owner: type | None = None) -> None:
    """Guard that no class of the user's before ``owner`` in the resolution order defines the name."""
    guard_order(evaluator, kind)
    for base in resolution_order(kind):
        if base is owner:
            return
        if name not in base.__dict__ and not is_library_module(module_of(base)):
            source = AttributeSource(ConstantSource(base.__qualname__, base), "__dict__")
            evaluator.guard(source, DictContains(name, False))
