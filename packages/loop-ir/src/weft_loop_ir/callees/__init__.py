"""Functions of libraries that weft calls of its own choice, and what operands they take."""

from weft_loop_ir.callees.calls import (
    accepts,
    call_library,
    callee_of,
    needs_check,
    view_layout,
)
from weft_loop_ir.callees.rules import Callee, OperandLayout, OperandRule
from weft_loop_ir.callees.table import CALLEES

__all__ = [
    "CALLEES",
    "Callee",
    "OperandLayout",
    "OperandRule",
    "accepts",
    "call_library",
    "callee_of",
    "needs_check",
    "view_layout",
]
