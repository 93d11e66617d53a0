"""Tensors of more elements than memory holds, or than 32 bits count, that are one number expanded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft

pytestmark = pytest.mark.native

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax between": lambda x: (x.exp().softmax(-1).cos()).sum(-1),
    "a copy": lambda x: x + 1,
    "a sorted copy": lambda x: (x * 2).sort(-1).values,
    "written": lambda x: x.clone().add_(1),
}


@pytest.mark.parametrize("size", [(2**46,), (2**16, 2**30), (2**5, 1, 2**41)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_no_memory_holds(name: str, size: tuple[int, ...]) -> None:
    function = PROGRAMS[name]
    compiled = weft.compile(function, dynamic=False)
    x = torch.ones(1).expand(size)
    with pytest.raises(RuntimeError):
        function(x)
    with pytest.raises(RuntimeError, match="memory"):
        compiled(x)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(2**32 + 8,), (3, 2**31 + 4)])
def test_reductions_of_more_than_32_bits_count(size: tuple[int, ...]) -> None:
    x = torch.ones(1, dtype=torch.bool).expand(size)
    function = weft.compile(lambda x: x.sum(-1), fullgraph=True)
    assert function(x).tolist() == (size[-1] if len(size) == 1 else [size[-1]] * size[0])
