"""Opcodes that read and write locals, cells, globals, attributes and constants."""

from __future__ import annotations

import opcode
from collections.abc import MutableMapping

from ...code_objects.dialects import DIALECT
from ...unsupported import Unsupported
from ..decode import DecodedInstruction, handles
from ..evaluator import FrameEvaluator
from ..models.containers.mappings import DictVariable
from ..models.functions.cells import CellVariable, SavedCellVariable
from ..models.objects.finalizers import check_dropped, check_moved, has_observable_lifetime
from ..regions.branches.unread_locals import ChosenLocal
from ..variables.base import Variable
from ..variables.wrap_results import wrap_code_constant


def push_callee(evaluator: FrameEvaluator, callee: Variable) -> None:
    """Push what is called next with its NULL.

    Of a method always the bound one, which CPython pushes thus where it is no plain function's.
    """
    evaluator.stack += (callee, None) if DIALECT.null_above_callee else (None, callee)


@handles("LOAD_CONST")
def _load_const(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.stack.append(wrap_code_constant(instruction.operand))


@handles("LOAD_SMALL_INT")
def _load_small_int(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.stack.append(wrap_code_constant(instruction.argument))


@handles("LOAD_COMMON_CONSTANT")
def _load_common_constant(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """A class or function of ``builtins``, whatever the program has put in its place."""
    value = opcode._common_constants[instruction.argument]  # type: ignore[attr-defined]
    evaluator.stack.append(evaluator.wrap_known(value))


@handles("LOAD_FAST", "LOAD_FAST_CHECK")
def _load_fast(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """What the slot holds: since 3.13 also a cell, which elsewhere LOAD_CLOSURE loads."""
    variable: Variable | None = evaluator.locals.get(instruction.operand)
    if variable is None:
        variable = evaluator.cells.get(instruction.operand)
    if variable is None:
        _unbound_local(evaluator, instruction.operand)
    if isinstance(variable, ChosenLocal):
        variable.read()
    evaluator.stack.append(variable)


def _unbound_local(evaluator: FrameEvaluator, name: str) -> None:
    evaluator.raise_error(
        UnboundLocalError,
        f"cannot access local variable {name!r} where it is not associated with a value",
    )


@handles("STORE_FAST")
def _store_fast(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    name, value = instruction.operand, evaluator.stack.pop()
    if isinstance(value, SavedCellVariable):
        evaluator.cells[name] = value.cell
        return
    # The variable of an inlined comprehension (3.12) gets back what it held before: a cell, or nothing.
    evaluator.cells.pop(name, None)
    before = evaluator.locals.get(name)
    if value is None:
        evaluator.locals.pop(name, None)
    else:
        evaluator.locals[name] = value
    check_dropped(evaluator, before)


@handles("DELETE_FAST")
def _delete_fast(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    variable = evaluator.locals.pop(instruction.operand, None)
    if isinstance(variable, ChosenLocal):
        variable.read()
    if variable is None:
        _unbound_local(evaluator, instruction.operand)
        return
    if evaluator.stack and evaluator.stack[-1] is variable:
        check_moved(variable, _following(evaluator, instruction))
    if has_observable_lifetime(evaluator, variable):
        raise Unsupported("deletion of an object with an observable lifetime", instruction.operand)


def _following(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> DecodedInstruction:
    """The instruction that runs next, past the jump by which a resume function gets to its place."""
    instructions = evaluator.decoded.instructions
    following = instructions[instruction.index + 1]
    return instructions[following.target] if following.name == "JUMP_FORWARD" else following


@handles("LOAD_FAST_AND_CLEAR")
def _load_fast_and_clear(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    name = instruction.operand
    cell = evaluator.cells.pop(name, None)
    saved = evaluator.locals.pop(name, None) if cell is None else SavedCellVariable(cell)
    evaluator.stack.append(saved)


@handles("MAKE_CELL")
def _make_cell(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    name = instruction.operand
    evaluator.cells[name] = CellVariable(evaluator.locals.pop(name, None))


@handles("COPY_FREE_VARS")
def _copy_free_vars(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    if evaluator.function is not None:
        cells = evaluator.function.closure_cells(evaluator)
        evaluator.cells.update(zip(evaluator.code.co_freevars, cells, strict=True))


@handles("LOAD_CLOSURE")
def _load_closure(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.stack.append(evaluator.cells[instruction.operand])


@handles("LOAD_DEREF")
def _load_deref(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    name = instruction.operand
    contents = evaluator.cells[name].read(evaluator)
    if contents is None:
        _unbound_cell(evaluator, name)
    evaluator.stack.append(contents)


def _unbound_cell(evaluator: FrameEvaluator, name: str) -> None:
    if name in evaluator.code.co_freevars:
        evaluator.raise_error(
            NameError,
            f"cannot access free variable {name!r} where it is not associated with a value in "
            "enclosing scope",
        )
    _unbound_local(evaluator, name)


@handles("STORE_DEREF")
def _store_deref(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.cells[instruction.operand].write(evaluator, evaluator.pop())


@handles("DELETE_DEREF")
def _delete_deref(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    cell = evaluator.cells[instruction.operand]
    if cell.read(evaluator) is None:
        _unbound_cell(evaluator, instruction.operand)
    cell.write(evaluator, None)


def _push(evaluator: FrameEvaluator, value: Variable, as_callee: int) -> None:
    if as_callee:
        push_callee(evaluator, value)
    else:
        evaluator.stack.append(value)


@handles("LOAD_GLOBAL")
def _load_global(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    value = evaluator.globals.load(evaluator, instruction.operand)
    _push(evaluator, value, instruction.argument & 1)


@handles("STORE_GLOBAL")
def _store_global(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.globals.store(evaluator, instruction.operand, evaluator.pop())


@handles("DELETE_GLOBAL")
def _delete_global(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.globals.delete(evaluator, instruction.operand)


@handles("LOAD_ATTR")
def _load_attr(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    owner = evaluator.pop()
    evaluator.state.kernel_writes.check_attribute(instruction.operand)
    attribute = owner.get_attribute(evaluator, instruction.operand)
    _push(evaluator, attribute, DIALECT.attribute_loads_methods and instruction.argument & 1)


@handles("LOAD_METHOD")
def _load_method(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    owner = evaluator.pop()
    push_callee(evaluator, owner.get_attribute(evaluator, instruction.operand))


@handles("LOAD_SUPER_ATTR")
def _load_super_attr(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    super_function, class_variable, instance = evaluator.pop_many(3)
    receiver = evaluator.call_function(super_function, [class_variable, instance])
    attribute = receiver.get_attribute(evaluator, instruction.operand)
    _push(evaluator, attribute, instruction.argument & 1)


@handles("STORE_ATTR")
def _store_attr(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    value, owner = evaluator.pop_many(2)
    owner.set_attribute(evaluator, instruction.operand, value)


@handles("DELETE_ATTR")
def _delete_attr(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.pop().delete_attribute(evaluator, instruction.operand)


# Bodies of classes: names are looked up in the namespace that the class is made of.


def _namespace(
    evaluator: FrameEvaluator, instruction: DecodedInstruction
) -> MutableMapping[str, Variable]:
    if evaluator.namespace is None:
        raise Unsupported("class definition", f"{instruction.name} in {evaluator.code.co_qualname}")
    return evaluator.namespace


@handles("LOAD_NAME")
def _load_name(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    found = _namespace(evaluator, instruction).get(instruction.operand)
    if found is None:
        found = evaluator.globals.load(evaluator, instruction.operand)
    evaluator.stack.append(found)


@handles("STORE_NAME")
def _store_name(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    _namespace(evaluator, instruction)[instruction.operand] = evaluator.pop()


@handles("DELETE_NAME")
def _delete_name(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    name = instruction.operand
    if _namespace(evaluator, instruction).pop(name, None) is None:
        evaluator.raise_error(NameError, f"name {name!r} is not defined", name=name)


@handles("SETUP_ANNOTATIONS")
def _setup_annotations(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    _namespace(evaluator, instruction).setdefault("__annotations__", DictVariable())


@handles("LOAD_BUILD_CLASS")
def _load_build_class(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.stack.append(evaluator.wrap_known(evaluator.globals.builtins["__build_class__"]))


@handles("LOAD_CLASSDEREF")
def _load_class_deref(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    found = _namespace(evaluator, instruction).get(instruction.operand)
    if found is None:
        _load_deref(evaluator, instruction)
    else:
        evaluator.stack.append(found)


@handles("LOAD_LOCALS")
def _load_locals(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.stack.append(NamespaceVariable(_namespace(evaluator, instruction)))


@handles("LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS")
def _load_from_dict(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    names = evaluator.pop()
    if not isinstance(names, NamespaceVariable):
        raise Unsupported("class definition", f"{instruction.name} of {names!r}")
    found = names.namespace.get(instruction.operand)
    if found is not None:
        evaluator.stack.append(found)
    elif instruction.name == "LOAD_FROM_DICT_OR_DEREF":
        _load_deref(evaluator, instruction)
    else:
        evaluator.stack.append(evaluator.globals.load(evaluator, instruction.operand))


class NamespaceVariable(Variable):
    """The namespace of a class's body, as the body looks names up in it."""

    def __init__(self, namespace: MutableMapping[str, Variable]) -> None:
        self.namespace = namespace


# Opcodes that move values on the stack or do nothing.


@handles("NOP", "RESUME", "EXTENDED_ARG", "CACHE", "PRECALL")
def _nothing(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """Nothing that the evaluator needs to know."""


@handles("POP_TOP")
def _pop_top(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    check_dropped(evaluator, evaluator.stack.pop())


@handles("PUSH_NULL")
def _push_null(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.stack.append(None)


@handles("COPY")
def _copy(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.stack.append(evaluator.stack[-instruction.argument])


@handles("SWAP")
def _swap(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    stack, depth = evaluator.stack, instruction.argument
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


@handles("END_FOR")
def _end_for(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    del evaluator.stack[-2:]


@handles("END_SEND")
def _end_send(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    del evaluator.stack[-2]
