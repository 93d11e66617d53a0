"""Taking code objects apart and putting them together, on the standard library's own."""

from __future__ import annotations

import dis
import os
import types
from pathlib import Path

import pytest
from rebuilt_code import rebuild
from weft_bytecode_capture.code_objects.code_builder import CodeBuilder, is_code_constant
from weft_bytecode_capture.code_objects.dialects import DIALECT
from weft_bytecode_capture.code_objects.flow import (
    index_table,
    live_locals,
    max_depth,
    stack_effect,
    stacks,
    successors,
)
from weft_bytecode_capture.code_objects.instructions import (
    Instruction,
    assemble,
    clone,
    decode,
)
from weft_bytecode_capture.code_objects.reading import exception_entries, read

FOLDER = Path(os.__file__).parent
FILES = sorted(FOLDER.glob("[a-f]*.py")) + sorted(FOLDER.glob("asyncio/*.py"))


def code_objects(file: Path) -> list[types.CodeType]:
    pending = [compile(file.read_bytes(), str(file), "exec")]
    found = []
    while pending:
        code = pending.pop()
        found.append(code)
        pending.extend(c for c in code.co_consts if isinstance(c, types.CodeType))
    return found


def shown(code: types.CodeType) -> list[tuple[object, ...]]:
    """Instructions with where they lead to, in comparable form."""
    decoded = decode(code)
    index_of = index_table(decoded.instructions)
    return [
        (
            i.name,
            i.argument if i.target is None and i.local is None else None,
            i.local,
            None if i.target is None else index_of(i.target),
            i.position,
            None
            if i.handler is None
            else (index_of(i.handler.target), i.handler.depth, i.handler.push_offset),
        )
        for i in decoded.instructions
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_round_trip(file):
    for code in code_objects(file):
        again = rebuild(code)
        assert shown(again) == shown(code)
        if not DIALECT.pairs:  # which are not put together again
            assert again.co_code == code.co_code
            assert list(again.co_positions()) == list(code.co_positions())
            assert list(exception_entries(again)) == list(exception_entries(code))
        constants = tuple(value for value in again.co_consts if value is not iter)
        assert (again.co_varnames, constants, again.co_names) == (
            code.co_varnames,
            code.co_consts,
            code.co_names,
        )


@pytest.mark.parametrize("file", FILES[::4], ids=lambda file: file.stem)
def test_stack_depths_agree_on_all_ways(file):
    for code in code_objects(file):
        decoded = decode(code)
        depths = stacks(decoded.instructions)
        index_of = index_table(decoded.instructions)
        for index, instruction in enumerate(decoded.instructions):
            stack = depths[index]
            if stack is None:
                continue
            for following, jump in successors(decoded.instructions, index_of, index):
                next_stack = depths[following]
                assert next_stack is not None
                assert len(stack) + stack_effect(instruction, jump) == len(next_stack)


@pytest.mark.parametrize("file", FILES[::4], ids=lambda file: file.stem)
def test_instructions_are_those_of_dis(file):
    for code in code_objects(file):
        decoded = decode(code)
        units = list(read(code))
        assert len(decoded.by_index) == len(units)
        at_offset = {i.offset: i for i in dis.get_instructions(code)}
        for mine, unit in zip(decoded.by_index, units, strict=True):
            theirs = at_offset[unit.offset]
            if not unit.is_prefix:
                name = DIALECT.synonyms.get(theirs.opname, theirs.opname)
                compared = DIALECT.comparison_to_bool and name == "COMPARE_OP"
                parts = ("COMPARE_OP", "TO_BOOL") if compared else (name,)
                parts = DIALECT.pairs.get(name, parts)
                if DIALECT.indexed_iterators and name in ("GET_ITER", "POP_ITER"):
                    parts = (name, "GET_YIELD_FROM_ITER", "POP_TOP")
                is_sequence = mine.name in DIALECT.sequences
                assert mine.name in parts or is_sequence
                if mine.name not in DIALECT.bools_before:  # which may be where TO_BOOL is
                    assert mine.position.line == theirs.positions.lineno


def test_rebuilt_code_runs():
    def f(n):
        out = []
        for i in range(n):
            try:
                out.append(1 // (i % 2))
            except ZeroDivisionError as error:
                out.append(str(error))
        return out

    assert types.FunctionType(rebuild(f.__code__), {})(4) == f(4)


class Entered:
    def __enter__(self):
        return [1, 2, 0, 3]

    def __exit__(self, *raised):
        return True


def left_by_return(values):
    for value in values:
        for pair in zip(values, values, strict=True):
            return value, pair
    return None


def left_by_break_and_raise(values):
    for value in values:
        with Entered() as entered:
            for inner in entered:
                if inner == 2:
                    break
            raise KeyError(value)
    return value, inner


def nested_among_handlers(values):
    out = []
    for _, value in enumerate(values):
        try:
            out.append(
                [(k, {j: [*values] for j in {q for q in values if q}}) for k in range(value)]
            )
            for pair in zip(values, values, strict=True):
                if pair[0] == 3:
                    continue
                for part in pair:
                    out.append(1 / (part - 1))
        except ZeroDivisionError as error:
            out.append(str(error))
            for name in "ab":
                try:
                    raise ValueError(name)
                except* ValueError as group:
                    out.append(group.exceptions[0].args)
        finally:
            for part in (1, 2):
                out.append(part)
    return out


def delegating(values):
    for value in values:
        try:
            sent = yield from (value, len(values))
            yield sent
        finally:
            yield from range(2)


LOOPS = (
    left_by_return,
    left_by_break_and_raise,
    nested_among_handlers,
    lambda values: list(delegating(values)),
)


@pytest.mark.parametrize("function", LOOPS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("values", [[3, 1, 2], (1, 2), range(4), {1: 2, 3: 4}, []], ids=str)
def test_loops_run_however_often_they_are_rebuilt(function, values):
    def outcome(code):
        scope = {**globals(), "delegating": types.FunctionType(delegating_code, globals())}
        try:
            return types.FunctionType(code, scope)(values)
        except UnboundLocalError as error:
            return str(error)

    code, delegating_code = function.__code__, delegating.__code__
    expected = outcome(code)
    for _ in range(3):
        code, delegating_code = rebuild(code), rebuild(delegating_code)
        assert outcome(code) == expected


def test_liveness():
    def f(a, b, c):
        d = a + 1
        try:
            e = d / b
        except ZeroDivisionError:
            return c
        del d
        return e

    decoded = decode(f.__code__)
    live = live_locals(decoded)
    at = {i.name: live[n] for n, i in enumerate(decoded.instructions)}
    assert live[0] == {"a", "b", "c"}
    assert at["BINARY_OP"] == {"c", "d"}
    assert at["DELETE_FAST"] == {"d", "e"}

    def reads(a):
        b = 1
        return locals(), b

    assert set(map(frozenset, live_locals(decode(reads.__code__)))) == {frozenset("ab")}


def test_long_jumps_and_many_constants():
    lines = "\n".join(f"        x = x + {i * 1000.5}" for i in range(400))
    source = f"def f(x, n):\n    for _ in range(n):\n{lines}\n    return x\n"
    namespace: dict[str, object] = {}
    exec(source, namespace)
    code = namespace["f"].__code__
    instructions, _ = clone(decode(code).instructions)
    again = rebuild(code)
    assert shown(again) == shown(code)
    assert max_depth(instructions) <= code.co_stacksize + 1
    # Moved apart by code put in between, the jumps grow.
    builder = CodeBuilder(code)
    for instruction in instructions:
        builder.instructions.append(instruction)
        if instruction.name == "FOR_ITER":
            for _ in range(70_000):
                builder.add("NOP")
    longer = builder.finish(code, code.co_varnames, (), ())
    function = types.FunctionType(longer, {"range": range})
    assert function(1.0, 3) == namespace["f"](1.0, 3)


def test_jumps_out_of_the_code_are_errors():
    with pytest.raises(ValueError, match="out of the code"):
        assemble([Instruction("JUMP_FORWARD", target=Instruction("NOP"))], (), 1)


def test_code_constants():
    assert all(map(is_code_constant, (1, None, "a", (1, (b"", ...)), frozenset({2.0}))))
    assert not any(map(is_code_constant, ([], (1, []), object(), int)))
    builder = CodeBuilder((lambda: None).__code__)
    assert len({builder.constant(value) for value in (1, 1.0, True, 0.0, -0.0)}) == 5
