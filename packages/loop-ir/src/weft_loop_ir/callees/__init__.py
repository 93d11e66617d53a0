"""Functions of libraries that weft calls of its own choice, and what operands they take."""

from weft_loop_ir.callees.calls import accepts, call_library, needs_check
from weft_loop_ir.callees.rules import OperandLayout, OperandRule
from weft_loop_ir.callees.table import CALLEES

__all__ = ["CALLEES", "OperandLayout", "OperandRule", "accepts", "call_library", "needs_check"]
