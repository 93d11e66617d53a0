"""``torch.use_deterministic_algorithms``: sums to indexed places in one order, the same bits in each run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_beside_eager import compiled
from weft_codegen_triton import TritonCodegen, TritonOptions

T = torch.Tensor
Program = Callable[[T, T, T], T]

PROGRAMS: dict[str, Program] = {
    "index_add": lambda x, i, s: x.index_add(0, i, s),
    "index_put": lambda x, i, s: x.index_put((i,), s, accumulate=True),
    "scatter_add": lambda x, i, s: x.scatter_add(0, i[:, None].expand_as(s), s),
    "scatter_reduce": lambda x, i, s: x.scatter_reduce(0, i[:, None].expand_as(s), s, "sum"),
}


def inputs(dtype: torch.dtype = torch.float32, device: str = "cpu", count: int = 200) -> Any:
    """Many sources of very different size for few places: their order shows in the last bits."""
    sources = torch.randn(count, 8) * 10.0 ** torch.randint(-4, 5, (count, 8))
    made = (torch.randn(6, 8).to(dtype), torch.randint(0, 6, (count,)), sources.to(dtype))
    return tuple(tensor.to(device) for tensor in made)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("deterministic")
def test_floats_are_added_in_eagers_order(codegen: TritonCodegen, name: str) -> None:
    function, given = PROGRAMS[name], inputs()
    program = compiled(codegen, function, *given)
    assert "atomic" not in program.source
    assert program.extern_count == 1
    results = [program(*given)[0] for _ in range(3)]
    for result in results:
        assert torch.equal(result, function(*given))


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_the_flag_they_are_added_in_a_kernel(codegen: TritonCodegen, name: str) -> None:
    function, given = PROGRAMS[name], inputs()
    program = compiled(codegen, function, *given)
    assert "tl.atomic_add" in program.source
    assert program.extern_count == 0
    torch.testing.assert_close(program(*given)[0], function(*given), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("deterministic")
def test_integers_are_added_in_any_order(codegen: TritonCodegen) -> None:
    """Which gives the same sum."""
    function = PROGRAMS["index_add"]
    x, i, s = inputs()
    given = (x.to(torch.int32), i, s.clamp(-9, 9).to(torch.int32))
    program = compiled(codegen, function, *given)
    assert "tl.atomic_add" in program.source
    assert torch.equal(program(*given)[0], function(*given))


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("deterministic")
def test_the_same_bits_on_a_gpu(tmp_path: Any, name: str) -> None:
    gpu = TritonCodegen(TritonOptions(cache_directory=tmp_path, interpret=False))
    function, given = PROGRAMS[name], inputs(device="cuda", count=100_000)
    program = compiled(gpu, function, *given)
    assert "atomic" not in program.source
    first = program(*given)[0]
    assert all(torch.equal(program(*given)[0], first) for _ in range(10))
