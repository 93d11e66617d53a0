"""Transformed code: what runs in a captured frame in place of the frame's own code.

closure and cells set up
sources read into temporaries
the compiled graph called
side effects replayed
then, by how the frame ended:
    Return   the value returned
    Raise    the exception raised
    Break    stack, locals and cells rebuilt; a copy of the breaking instruction, within its exception
             regions and with their handlers; behind it the rest of the function goes on in a resume
             function, which the hook calls in the place of this frame (``Resumption``)

An exception that the graph raises where the program may handle it is not the graph's to raise: nothing has
happened yet, and the frame runs as it was written.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._frame_hook import Resumption
from ..code_objects.instructions import ExceptionEntry, Instruction, Position
from ..symbolic.frame_result import Break, FrameResult, Raise, Return
from .breaks import BreakEmission
from .frame_emitter import OBJECTS, FrameEmitter
from .resume import ResumeFunctions


@dataclass(frozen=True)
class TransformedCode:
    """What an entry of the hook's table is made of; ``objects`` go into local number ``objects_slot``."""

    code: types.CodeType
    objects: tuple[Any, ...]
    objects_slot: int
    resumes: bool


def transform(
    code: types.CodeType,
    result: FrameResult,
    compiled_graph: Callable[..., Any] | None,
    resume_functions: ResumeFunctions,
    run_as_written: Callable[..., Any],
) -> TransformedCode:
    """Transformed code for a frame of ``code``; ``compiled_graph`` is None if ``result.graph`` is.

    ``run_as_written`` takes over where the graph raises.

    :raises Unsupported: an object cannot be rebuilt, or the frame stopped where it cannot go on.
    """
    return _Transformation(code, result, compiled_graph, resume_functions, run_as_written).run()


class _Transformation:
    def __init__(
        self,
        code: types.CodeType,
        result: FrameResult,
        compiled_graph: Callable[..., Any] | None,
        resume_functions: ResumeFunctions,
        run_as_written: Callable[..., Any],
    ) -> None:
        self.code = code
        self.result = result
        self.compiled_graph = compiled_graph
        self.resume_functions = resume_functions
        self.run_as_written = run_as_written
        body = code
        if isinstance(result.ending, Break):
            body = resume_functions.original(code)
        cells = frozenset(code.co_cellvars + code.co_freevars)
        self.emitter = FrameEmitter(body, cells, result.graph_outputs, result.side_effects.as_given)
        self.graph_call: list[Instruction] = []  # of a graph whose exceptions the program handles

    def run(self) -> TransformedCode:
        ending = self.result.ending
        break_emission = None
        if isinstance(ending, Break):
            break_emission = BreakEmission(
                self.code, ending, self.emitter, self.resume_functions, Resumption
            )
            self.emitter.position = break_emission.position
        else:
            self.emitter.position = self._position(ending)
        self._call_graph()
        self.result.side_effects.emit(self.emitter)
        if isinstance(ending, Return):
            self.emitter.load_variable(ending.value)
            self.emitter.add("RETURN_VALUE")
        elif isinstance(ending, Raise):
            self.emitter.load_variable(ending.exception)
            self.emitter.add("RAISE_VARARGS", 1)
        else:
            assert break_emission is not None
            break_emission.load_state()
        self._put_entry_first()
        if break_emission is not None:
            break_emission.store_state_and_go_on()
        return self._finish(break_emission)

    def _position(self, ending: Return | Raise) -> Position:
        if isinstance(ending, Raise) and ending.instruction is not None:
            analysed = self.resume_functions.analysed(self.code)
            return analysed.decoded.by_index[ending.instruction].position
        return Position(self.code.co_firstlineno)

    def _call_graph(self) -> None:
        graph = self.result.graph
        if graph is None:
            return
        start = len(self.emitter.instructions)
        self.emitter.load_callable(self.compiled_graph)
        for source in graph.input_sources:
            self.emitter.load_source(source)
        self.emitter.call(len(graph.input_sources))
        if self.result.recovery is not None:
            self.graph_call = self.emitter.instructions[start:]
        count = len(self.result.graph_outputs)
        self.emitter.add("UNPACK_SEQUENCE", count)
        names = [self.emitter.new_temporary() for _ in range(count)]
        for name in names:
            self.emitter.store_local(name)
        self.emitter.bind_graph_outputs(names)

    def _run_as_written_on_error(self) -> None:
        """The handler of the graph's call: the frame's own code, from its beginning, with no capture."""
        start = len(self.emitter.instructions)
        self.emitter.position = Position(self.code.co_firstlineno)
        self.emitter.add("PUSH_EXC_INFO")
        self.emitter.add("SWAP", 2)
        self.emitter.add("POP_EXCEPT")
        self.emitter.load_callable(self.run_as_written)
        for depth in (3, 2, 3, 2):  # the exception, NULL and callee become NULL, callee, exception
            self.emitter.add("SWAP", depth)
        self.emitter.load_function(self.code, self.code.co_freevars)
        positional, only_keyword, rest, named = _arguments_by_kind(self.code)
        for name in positional:
            self.emitter.load_named(name)
        self.emitter.build("tuple", len(positional))
        for name in only_keyword:
            self.emitter.load_constant(name)
            self.emitter.load_named(name)
        self.emitter.build("map", len(only_keyword))
        for collected, kind in ((rest, "tuple"), (named, "map")):
            if collected is None:
                self.emitter.build(kind, 0)
            else:
                self.emitter.load_named(collected)
        if self.result.drawn is None:
            self.emitter.load_constant(())
        else:
            self.emitter.load_source(self.result.drawn)
        self.emitter.call(7)
        self.emitter.add("RETURN_VALUE")
        handler = ExceptionEntry(self.emitter.instructions[start], 0, False)
        for instruction in self.graph_call:
            instruction.handler = handler

    def _put_entry_first(self) -> None:
        """Everything that loads a source has been emitted: now the code that reads them all."""
        body, position = self.emitter.instructions, self.emitter.position
        self.emitter.instructions = []
        line = self.code.co_firstlineno
        self.emitter.position = Position(line, line, 0, 0)  # as the compiler has it
        self.emitter.prologue(self.code.co_cellvars, len(self.code.co_freevars))
        self.emitter.position = position
        self.emitter.emit_entry_reads()
        self.emitter.instructions.extend(body)

    def _finish(self, break_emission: BreakEmission | None) -> TransformedCode:
        code = self.code
        names = (*code.co_varnames, OBJECTS, *self.emitter.temporaries)
        if break_emission is not None:
            known = frozenset(names)
            names += tuple(n for n in break_emission.original_locals if n not in known)
        if self.graph_call:
            self._run_as_written_on_error()
        self.emitter.drop_empty_jumps()
        transformed = self.emitter.finish(code, names, code.co_cellvars, code.co_freevars)
        return TransformedCode(
            transformed,
            tuple(self.emitter.objects),
            len(code.co_varnames),
            break_emission is not None,
        )


def _arguments_by_kind(
    code: types.CodeType,
) -> tuple[tuple[str, ...], tuple[str, ...], str | None, str | None]:
    """The names of the positional and keyword-only arguments, of ``*args`` and of ``**kwargs``."""
    names = iter(code.co_varnames)
    positional = tuple(itertools.islice(names, code.co_argcount))
    only_keyword = tuple(itertools.islice(names, code.co_kwonlyargcount))
    rest = next(names) if code.co_flags & inspect.CO_VARARGS else None
    named = next(names) if code.co_flags & inspect.CO_VARKEYWORDS else None
    return positional, only_keyword, rest, named
