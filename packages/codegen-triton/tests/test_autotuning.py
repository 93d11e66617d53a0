"""The variants of a kernel that are timed, and what is made of the times."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compiled_beside_eager import schedule_of
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.kernel.kernel_printer import Function
from weft_codegen_triton.runtime.autotuning import TunedKernel, variants


def functions_of(codegen: TritonCodegen, function: object, *inputs: torch.Tensor) -> list[Function]:
    return list(codegen.print(schedule_of(function, inputs, codegen)).functions.values())  # type: ignore[arg-type]


def test_pointwise_kernels_vary_in_block_and_warps(codegen: TritonCodegen) -> None:
    (function,) = functions_of(codegen, lambda x: x + 1, torch.empty(1 << 20))
    found = variants(function)
    assert found[0] == function
    assert len(found) > 3
    assert {f.template for f in found} == {function.template}
    assert len({dict(f.constants)["XBLOCK"] for f in found}) > 1
    assert len({f.warps for f in found}) > 1


def test_rows_in_registers_keep_their_length(codegen: TritonCodegen) -> None:
    (function,) = functions_of(codegen, lambda x: x.softmax(1), torch.empty(500, 1000))
    assert {dict(f.constants)["RBLOCK"] for f in variants(function)} == {1024}


def test_loops_vary_in_their_step(codegen: TritonCodegen) -> None:
    (function,) = functions_of(codegen, lambda x: x.softmax(1), torch.empty(500, 20000))
    assert len({dict(f.constants)["RBLOCK"] for f in variants(function)}) > 1


def test_what_accumulates_is_not_run_twice(codegen: TritonCodegen) -> None:
    inputs = torch.empty(9, 5), torch.zeros(4, 5, dtype=torch.int64), torch.empty(4, 5)
    functions = functions_of(codegen, lambda t, i, s: t.scatter_add(0, i, s), *inputs)
    assert [len(variants(f)) > 1 for f in functions] == [True, False]


def test_the_grid_is_given_in_the_first_variants_blocks(
    codegen: TritonCodegen, tmp_path: Path
) -> None:
    (function,) = functions_of(codegen, lambda x: x + 1, torch.empty(1 << 20))
    found = variants(function)
    launched: list[tuple[int, int]] = []
    kernels = [
        lambda stream, columns, rows, *arguments, k=k: launched.append((k, columns))
        for k in range(len(found))
    ]
    path = tmp_path / "choice.tuned"
    for number, other in enumerate(found):
        path.write_text(f'{{"device": "here", "chosen": {number}}}')
        TunedKernel(kernels, found, path, "here")(0, 1024, 1, 77)  # type: ignore[arg-type]
        block, first = (dict(f.constants)["XBLOCK"] for f in (other, function))
        assert launched[-1] == (number, -(-1024 * first // block))


@pytest.mark.parametrize("text", ["", "[]x", '{"device": "there", "chosen": 1}'])
def test_a_choice_made_elsewhere_is_not_taken(
    codegen: TritonCodegen, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "choice.tuned"
    path.write_text(text)
    (function,) = functions_of(codegen, lambda x: x + 1, torch.empty(1 << 20))
    found = variants(function)
    assert TunedKernel([], found, path, "here")._chosen is None
