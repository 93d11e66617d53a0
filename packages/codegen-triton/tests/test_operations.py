"""Every operation of the table has a Triton form."""

from __future__ import annotations

import pytest
import torch
from weft_codegen_triton.kernel.body_printer import BodyPrinter
from weft_codegen_triton.kernel.operations import template
from weft_loop_ir import OPERATIONS
from weft_loop_ir.ops import ELEMENTWISE

DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_printer_handles_every_operation(name: str) -> None:
    assert callable(getattr(BodyPrinter, name))


@pytest.mark.parametrize("for_half", [False, True])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_operation_has_a_form_on_its_dtypes(name: str, for_half: bool) -> None:
    operation = OPERATIONS[name]
    for dtype in DTYPES:
        if not operation.takes(dtype) or name == "truediv":  # which has a method of its own
            continue
        assert template(name, dtype, for_half).format("a", "b").count("a") > 0
