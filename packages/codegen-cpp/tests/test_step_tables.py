"""Long programs, whose steps are rows of tables, do what the same steps do as statements."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_codegen_cpp.host.step_tables as step_tables
from comparison import schedule_of
from weft_codegen_cpp import CppCodegen, printed_program
from weft_codegen_cpp.host.parts import Message, Pointer, Slot, plain
from weft_codegen_cpp.host.statements import DropRow, Failure, Statement, joined
from weft_codegen_cpp.host.step_tables import Field, _Tables, share_functions, with_tables
from weft_codegen_cpp.kernel.kernel_printer import PrintedKernel
from weft_loop_ir import Kernel

ALWAYS, NEVER = 1, 1 << 30


def mixed(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Kernels alone and together, native calls on parts of buffers, Python calls, tensors that end early."""
    results = []
    for k in range(5):
        x = (x - k).sin() @ y * 0.1
        results.append(x.sum(0) + x.amax(1))
        part = (x.tanh()[2:5] @ y[:, 1:]).cumsum(0)
        x = x + torch.sort(part.sum(1, keepdim=True)).values.sum() * 1e-3
        results.append(part)
    return (*results, x, x.t(), y)


def picked(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Each step of which may find an index that is out of range."""
    return tuple(x.cumsum(0)[index + k].sum(k % 2) for k in range(4))


def mixed_inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(7, 7), torch.randn(7, 7)


def picked_inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(9, 5), torch.tensor([0, 2, 4])


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("function", "inputs"), [(mixed, mixed_inputs), (picked, picked_inputs)])
def test_tables_and_statements_agree(
    codegen: CppCodegen,
    function: Callable[..., tuple[torch.Tensor, ...]],
    inputs: Callable[[], tuple[torch.Tensor, ...]],
    symbolic: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = inputs()
    programs = []
    for least in (ALWAYS, NEVER):
        monkeypatch.setattr(step_tables, "MIN_ROWS", least)
        program = codegen.compile(schedule_of(function, given, symbolic=symbolic), {})
        assert ("run_rows" in program.source) == (least == ALWAYS)
        programs.append(program)
    assert programs[0].may_fail == programs[1].may_fail
    assert programs[0].generated.early_errors == programs[1].generated.early_errors
    for _ in range(3):
        tables, statements = (program(*given) for program in programs)
        torch.testing.assert_close(tables, statements, rtol=0, atol=0)
        torch.testing.assert_close(tables, function(*given), rtol=1e-4, atol=1e-4)
        given = inputs()


def test_an_error_ends_a_table(codegen: CppCodegen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_tables, "MIN_ROWS", ALWAYS)
    x, index = picked_inputs()
    program = codegen.compile(schedule_of(picked, (x, index), symbolic=False), {})
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        program(x, index + 2)
    torch.testing.assert_close(program(x, index), picked(x, index))


def test_a_long_program_has_tables(codegen: CppCodegen) -> None:
    def sums(x: torch.Tensor) -> torch.Tensor:
        for k in range(30):
            x = (x * k).softmax(-1) @ x
        return x

    x = torch.rand(64, 64)
    program = codegen.compile(schedule_of(sums, (x,), symbolic=False), {})
    assert "run_rows" in program.source
    assert program.generated.unit.length < len(program.source)
    torch.testing.assert_close(program(x)[0], sums(x))


def test_statements_between_rows_of_a_step_are_one_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may share names; rows before and after them stay rows."""
    monkeypatch.setattr(step_tables, "MIN_ROWS", ALWAYS)
    drop = (DropRow("owned", 0),)
    statements = [
        Statement(("c.x = 0;",)),
        Statement(("// a",), rows=()),
        Statement(("drop0;",), rows=drop),
        Statement(("Handle h = 0;",)),
        Statement(("drop1;",), rows=drop),
        Statement(("use(h);",)),
        Statement(("drop2;",), rows=drop),
        Statement(("end",)),
    ]
    functions, tables, steps = with_tables(statements, [1, 7], {"x": "f32"}, 0)
    assert functions[1:-2] == ["  Handle h = 0;", "  drop1;", "  use(h);"]
    assert sum("drop_tensor" in line for line in tables) == 2
    assert steps[0] == "c.x = 0;"
    assert steps[-1] == "end"
    assert len(steps) == 3


def test_a_block_fails_as_its_statements_do() -> None:
    """Not as its text says: a comment may speak of a return."""
    ends = Statement(("if (!view) return operator_failed;",), Failure.OPERATOR)
    comment = Statement(("// what the layer returns",), rows=())
    block = joined("{", [comment, joined("if (a) {", [ends], "}")], "}")
    assert block.lines[3] == "    if (!view) return operator_failed;"
    assert block.failures is Failure.OPERATOR
    assert joined("{", [comment], "}").failures is Failure.NONE


def test_rows_of_nothing_are_no_part_of_a_table() -> None:
    """A kernel may take no memory; a row of no numbers would be a comma alone."""
    tables = _Tables({"a": Field(7, "f32")})
    places = [tables._place([3]), tables._place([]), tables._place([4, 5])]
    assert places == [0, 1, 1]
    assert tables.places == ["3", "4, 5"]
    empty = _Tables({})
    empty._place([])
    assert not empty.places  # the definitions hold a 0 then


def test_steps_alike_share_a_function() -> None:
    """It is given what differs: slots, fields of one type and texts; what else differs makes another one."""
    fields = {"a": Field(3, "f32"), "b": Field(4, "f32"), "n": Field(5, "i64")}

    def step(slot: int, field: str, where: str) -> list[str]:
        made = [f"c.made[{Slot(number)}]" for number in (slot, 7)]
        call = f"api.mm_out(c.owned[{Slot(slot)}], {Pointer(field)}, {', '.join(made)})"
        return [f"if ({call}) {{", f"  return c.failed = {Message(where)}, x;", "}"]

    first, third = step(1, "a", '"mm (c.a)"'), step(1, "n", '"mm (c.a)"')
    steps = [first, step(2, "b", '"mm \\"(2)"'), third, ["c.s0 = 3;"], ["c.s1 = 3;"]]
    shared = share_functions(steps, fields)
    assert [members for _, members in shared] == [[0, 1], [2], [3], [4]]
    function = shared[0][0]
    assert function.definition[1:-2] == (
        "  if (api.mm_out(c.owned[list[0]], field<f32>(c, list[1]), c.made[list[0]], c.made[7])) {",
        "    return c.failed = texts[list[2]], x;",
        "  }",
    )
    assert function.lists == ((1, 3, '"mm (c.a)"'), (2, 4, '"mm \\"(2)"'))
    assert shared[1][0].definition[1:-2] == tuple(f"  {plain(line)}" for line in third)
    assert shared[1][0].lists == ((),)


def test_layers_add_no_functions(codegen: CppCodegen) -> None:
    """Of matmuls, of calls through Python, of attention."""

    def layers(x: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            x = (x @ x.sin()).cumsum(0).softmax(-1)
            a = torch.nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x)
            x = a[0, 0] + torch.sort(x[:5] @ x, stable=True).values.sum() * 1e-3
        return x

    x = torch.rand(17, 17) / 9
    sources = []
    for count in (4, 12):
        function = functools.partial(layers, count=count)
        program = codegen.compile(schedule_of(function, (x,), symbolic=False), {})
        torch.testing.assert_close(program(x)[0], function(x))
        sources.append(program.source)
    functions = [source.count("static Status step") for source in sources]
    assert functions[0] == functions[1]


def test_kernels_alike_are_printed_once_with_the_same_source(
    codegen: CppCodegen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that differ in a dtype, an order of buffers, a sign of zero or a kind of number are not alike."""

    def layers(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = []
        for k in range(6):
            x = torch.nn.functional.layer_norm(x @ y, (7,)).softmax(-1)
            part = x.double() if k == 2 else x
            results += [part.cumsum(0).sort(0).values, torch.where(part > 0.5, part, -0.0)]
            results += [torch.where(part > 0.5, part, 0.0), (part > 0.5) + (k > 3), part.argmax(-1)]
            results += [x - y, y - x, x.t() @ y, x[torch.arange(3)], x.var(0)]
        return tuple(results)

    given = torch.randn(7, 7), torch.randn(7, 7)
    counts, sources = [], []
    plain = printed_program.print_kernel

    def counted(kernel: Kernel, *rest: Any, **options: Any) -> PrintedKernel:
        counts[-1] += 1
        return plain(kernel, *rest, **options)

    monkeypatch.setattr(printed_program, "print_kernel", counted)
    for symbolic in (False, True):
        schedule = schedule_of(layers, given, symbolic=symbolic)
        for form in (printed_program.kernel_form, lambda kernel, dtypes: None):
            counts.append(0)
            with monkeypatch.context() as patch:
                patch.setattr(printed_program, "kernel_form", form)
                sources.append(codegen.print(schedule, {})[0].whole)
        assert sources[-1] == sources[-2]
        assert counts[-2] < counts[-1] / 2
