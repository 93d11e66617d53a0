"""Calls of the host program that look at their operands first: those whose places it cannot know."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft_loop_ir
from compiled_beside_eager import assert_equals_eager, compiled, schedule_of
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.host.host_printer import ALIGNMENT
from weft_loop_ir import ExternCall, needs_check

aten = torch.ops.aten

FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
EFFICIENT = aten._scaled_dot_product_efficient_attention.default

PLACES: dict[str, tuple[bool, Callable[[torch.Tensor], torch.Tensor]]] = {
    "an input": (True, lambda c: c[0]),
    "a window of it": (True, lambda c: c[0][:, :, :7]),
    "computed": (False, lambda c: c[0] * 2),
    "a window of what is computed": (False, lambda c: (c * 2)[1][:, :, 3:9]),
    "off 16 bytes": (True, lambda c: (c * 2)[1][..., 1:13]),
}
"""Keys of a cache ``[2, 1, 4, 24, 16]`` in float32, and whether a GPU's kernel may not take them."""


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PLACES)
def test_which_calls_look(codegen: TritonCodegen, name: str, dynamic: bool) -> None:
    looks, place = PLACES[name]

    def attend(cache: torch.Tensor) -> torch.Tensor:
        key = place(cache)
        query = key * 3
        result: torch.Tensor = FLASH(query, key, query + 1)[0]
        return result

    schedule = schedule_of(attend, (torch.randn(2, 1, 4, 24, 16),), codegen, dynamic)
    (call,) = (s for s in weft_loop_ir.all_items(schedule.steps) if isinstance(s, ExternCall))
    on_gpu = ExternCall(
        call.name,
        EFFICIENT,
        (*call.arguments[:3], None, False),
        {},
        (*call.outputs, None, None),
        "",
        "",
    )
    assert not needs_check(call, schedule, ALIGNMENT)
    assert needs_check(on_gpu, schedule, ALIGNMENT) == (looks or dynamic)  # rows of any width then


def _turned(x: torch.Tensor) -> torch.Tensor:
    """Attention on columns, as no caller of torch's chooses it."""
    result: torch.Tensor = FLASH(x + 1, x.mT.contiguous().mT, x * 2)[0]
    return result


def _in_rows(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = FLASH(x + 1, x, x * 2)[0]
    return result


@pytest.mark.parametrize("dynamic", [False, True])
def test_programs_that_look(codegen: TritonCodegen, dynamic: bool) -> None:
    x = torch.randn(1, 2, 5, 8)
    program = compiled(codegen, _turned, x, dynamic=dynamic)
    assert "call_library(" in program.source
    assert_equals_eager(program(x), _in_rows, (x,))
    program = compiled(codegen, _in_rows, x, dynamic=dynamic)
    assert "call_library(" not in program.source
    assert_equals_eager(program(x), _in_rows, (x,))
