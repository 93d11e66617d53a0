"""What is made without values, under deterministic algorithms, where eager fills it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import weft
from torch import Tensor

pytestmark = pytest.mark.native

DTYPES = (torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.uint8, torch.bool)
MAKERS: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "empty": lambda x, d: torch.empty(x.shape, dtype=d),
    "empty_like": lambda x, d: torch.empty_like(x, dtype=d),
    "empty_strided": lambda x, d: torch.empty_strided((2, 3), (1, 2), dtype=d),
    "new_empty": lambda x, d: x.new_empty(2, 3, dtype=d),
    "partly written": lambda x, d: torch.empty(3, dtype=d).index_fill_(0, torch.tensor([1]), 1),
}


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("maker", MAKERS)
def test_memory_is_filled_as_in_eager(maker: str, dtype: torch.dtype) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        made = MAKERS[maker](x, dtype)
        return made, made * 1

    x = torch.ones(2, 3)
    for found, expected in zip(weft.compile(program)(x), program(x), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)
        assert found.stride() == expected.stride()
