"""Independent kernels in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from compiled_beside_eager import check, compiled
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen

SIZES = ((5, 7), (64, 3), (5, 7), (1000,), (5, 7), (3, 64), (1,))


def step(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """An optimizer's: each parameter moves by its own momentum and gradient."""
    count = len(tensors) // 3
    groups = [tensors[k * count : (k + 1) * count] for k in range(3)]
    results: list[torch.Tensor] = []
    for parameter, gradient, momentum in zip(*groups, strict=True):
        moved = momentum * 0.9 + gradient
        results += [moved, parameter - 0.1 * moved]
    return tuple(results)


def many(sizes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    return [torch.randn(size) for _ in range(3) for size in sizes]


def test_an_optimizers_step_is_one_launch(codegen: TritonCodegen) -> None:
    program = check(codegen, step, *many(SIZES))
    assert program.kernel_count == 1
    assert program.source.count("_part") == 2 * 4  # four sizes after loops are joined


def test_more_kernels_than_a_launch_has_parameters_for(codegen: TritonCodegen) -> None:
    sizes = [(k + 1,) for k in range(3)] * 30
    program = check(codegen, step, *many(sizes))
    assert 2 < program.kernel_count < 12


def test_little_kernels_join_those_of_more_warps(codegen: TritonCodegen) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2, y.exp()

    program = check(codegen, function, torch.randn(5), torch.randn(300, 1000))
    assert program.kernel_count == 1


def test_rows_beside_elements(codegen: TritonCodegen) -> None:
    def function(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.softmax(-1), y.sum(0), F.embedding(i, y), x.t().contiguous(), y.exp(), i.amax()

    i = torch.randint(0, 9, (4, 5))
    program = check(codegen, function, torch.randn(6, 50), torch.randn(9, 8), i)
    assert program.kernel_count < 6


def test_a_wrong_index_is_noticed_in_a_part(codegen: TritonCodegen) -> None:
    i, table = torch.tensor([0, 3]), torch.randn(4, 8)
    run = compiled(codegen, lambda i, t: (F.embedding(i, t), i * 2), i, table)
    run(i, table)
    with pytest.raises(Exception, match="index out of bounds"):
        run(i + 1, table)


def test_scatters_side_by_side(codegen: TritonCodegen) -> None:
    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        i, *rest = tensors
        return tuple(t.scatter_add(0, i, t * 2) for t in rest)

    i = torch.randint(0, 6, (6, 5))
    check(codegen, function, i, *(torch.randn(6, 5) for _ in range(3)))


def test_sizes_that_vary_stay_apart(codegen: TritonCodegen) -> None:
    tensors = [torch.randn(3, 4), torch.randn(5, 6)]
    run = compiled(codegen, lambda x, y: (x * 2, y.exp()), *tensors, dynamic=True)
    for tensor in (tensors[0], torch.randn(2, 2)):
        torch.testing.assert_close(run(tensor, tensors[1])[0], tensor * 2)
    assert run.kernel_count == 2
