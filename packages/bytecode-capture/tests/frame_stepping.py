"""A stand-in for the symbolic evaluator that breaks at every instruction of any consequence.

Run with it, a function goes through one resume function an instruction: what the breaks rebuild is then
tested on ordinary Python code, with no tensors involved.
"""

from __future__ import annotations

from typing import Any

from weft_bytecode_capture.captured_graph import GraphBreak, UserLocation
from weft_bytecode_capture.frame.convert_frame import make_context
from weft_bytecode_capture.symbolic.decode import DecodedCode
from weft_bytecode_capture.symbolic.frame_result import (
    Break,
    CaptureOptions,
    FrameInput,
    FrameResult,
    Return,
    Skip,
)
from weft_bytecode_capture.symbolic.variables.base import Variable
from weft_guards import ArgumentSource


class Known(Variable):
    """An object found at a source."""

    def __init__(self, source: Any) -> None:
        self.source = source


class Constant(Variable):
    def __init__(self, value: Any) -> None:
        self.value = value

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> Any:
        return self.value


class NoEffects:
    names = ()

    def as_given(self, source):
        return source

    def emit(self, emitter: Any) -> None:
        pass


NOTHING_TO_DO = frozenset(
    ["RESUME", "NOP", "MAKE_CELL", "COPY_FREE_VARS", "EXTENDED_ARG", "PRECALL", "KW_NAMES"]
)


class SteppingEvaluator:
    """``step(code, index, instruction)`` says at which instructions to break (default: all)."""

    def __init__(self, step=lambda code, index, instruction: True) -> None:
        self.step = step
        self.frames: list[str] = []

    def __call__(self, frame: FrameInput, options: CaptureOptions) -> FrameResult | Skip:
        self.frames.append(frame.code.co_name)
        return Stepper(self, frame).run()


class Stepper:
    def __init__(self, evaluator: SteppingEvaluator, frame: FrameInput) -> None:
        self.evaluator = evaluator
        self.code = frame.code
        cells = set(self.code.co_cellvars)
        self.arguments = {n: Known(ArgumentSource(n)) for n in frame.arguments}
        self.locals = {n: v for n, v in self.arguments.items() if n not in cells}
        self.cells = {n: self.arguments.get(n) for n in self.code.co_cellvars}
        self.cell_variables: dict[str, Variable] = {}
        self.stack: list[Variable | None] = []
        self.handled: list[Variable] = []
        self.instructions = DecodedCode(self.code).instructions

    def run(self) -> FrameResult | Skip:
        index = 0
        while True:
            instruction = self.instructions[index]
            name = instruction.name
            if name == "RETURN_VALUE":
                return self.result(Return(self.stack[-1]))
            if name == "RETURN_CONST":
                return self.result(Return(Constant(instruction.operand)))
            handler = getattr(self, "op_" + name, None)
            unbound = name in ("LOAD_FAST", "DELETE_FAST", "LOAD_FAST_CHECK") and (
                instruction.operand not in self.locals
            )
            if name in ("LOAD_FAST_AND_CLEAR", "STORE_FAST") and (
                instruction.operand in self.code.co_cellvars + self.code.co_freevars
            ):
                return Skip("a cell changed for the extent of a comprehension")
            if name in NOTHING_TO_DO:
                index += 1
                continue
            if name in ("JUMP_FORWARD", "JUMP_BACKWARD"):
                index = instruction.target
                continue
            if handler is None or unbound:
                if not self.evaluator.step(self.code, index, instruction):
                    return Skip("not stepped")
                return self.break_at(index)
            handler(instruction)
            index += 1

    def result(self, ending: Any) -> FrameResult:
        return FrameResult(None, (), (), NoEffects(), ending)

    def break_at(self, index: int) -> FrameResult:
        place = UserLocation(self.code.co_filename, 0, self.code.co_name)
        reason = GraphBreak("step", "", "", (), place, ())
        return self.result(
            Break(
                index,
                tuple(self.stack),
                dict(self.locals),
                dict(self.cells),
                reason,
                dict(self.cell_variables),
                self.handled[-1] if self.handled else None,
            )
        )

    # Instructions without consequence.

    def op_LOAD_FAST(self, instruction: Any) -> None:
        self.stack.append(self.locals[instruction.operand])

    def op_LOAD_FAST_CHECK(self, instruction: Any) -> None:
        self.op_LOAD_FAST(instruction)

    def op_STORE_FAST(self, instruction: Any) -> None:
        value = self.stack.pop()
        if value is None:
            self.locals.pop(instruction.operand, None)
        else:
            self.locals[instruction.operand] = value

    def op_DELETE_FAST(self, instruction: Any) -> None:
        del self.locals[instruction.operand]

    def op_LOAD_FAST_AND_CLEAR(self, instruction: Any) -> None:
        self.stack.append(self.locals.pop(instruction.operand, None))

    def op_LOAD_CONST(self, instruction: Any) -> None:
        self.stack.append(Constant(instruction.operand))

    def op_PUSH_NULL(self, instruction: Any) -> None:
        self.stack.append(None)

    def op_POP_TOP(self, instruction: Any) -> None:
        self.stack.pop()

    def op_COPY(self, instruction: Any) -> None:
        self.stack.append(self.stack[-instruction.argument])

    def op_SWAP(self, instruction: Any) -> None:
        i = -instruction.argument
        self.stack[-1], self.stack[i] = self.stack[i], self.stack[-1]

    def op_PUSH_EXC_INFO(self, instruction: Any) -> None:
        exception = self.stack.pop()
        self.stack += [self.handled[-1] if self.handled else Constant(None), exception]
        self.handled.append(exception)

    def op_POP_EXCEPT(self, instruction: Any) -> None:
        self.stack.pop()
        self.handled.pop()


def stepped(
    function: Any, evaluator: SteppingEvaluator | None = None, recompile_limit: int = 8
) -> Any:
    """The function, run one resume function an instruction."""

    def fail(error: Exception, location: str) -> None:
        raise error

    context = make_context(
        lambda graph, inputs: graph.forward,
        CaptureOptions(recompile_limit=recompile_limit),
        fail,
        capture=evaluator or SteppingEvaluator(),
    )
    return context.wrap(function)
