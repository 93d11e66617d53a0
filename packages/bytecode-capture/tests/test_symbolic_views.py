"""Views of fakes with symbolic sizes: for each size the sizes and strides of eager's view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from weft_bytecode_capture._torch.fakes import FakeTensor, FakeTensorMode
from weft_bytecode_capture._torch.symbols import SourcelessShapeEnv
from weft_bytecode_capture.symbolic.graph.fake_mode import RememberingFakeMode

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x.view(x.shape),
    "split": lambda x: x.view(x.shape[0], x.shape[1], 2, 3, 4),
    "rest": lambda x: x.view(x.shape[0], -1, 6, 4),
    "all in one": lambda x: x.view(-1),
    "first two": lambda x: x.view(x.shape[0] * x.shape[1], 6, 4),
    "first two, one between": lambda x: x.view(-1, 1, 6, 4),
    "ones": lambda x: x.view(1, x.shape[0], 1, x.shape[1], 24, 1),
    "behind a permutation": lambda x: x.permute(2, 0, 1, 3).view(2, 3, -1, 4),
    "heads": lambda x: x.transpose(1, 2).view(x.shape[0], 6, x.shape[1], 2, 2),
    "chunks of two": lambda x: x.repeat(1, 2, 1, 1).view(x.shape[0], -1, 2, 6, 4),
    "rows of a part": lambda x: x[:, :, 2:4].view(x.shape[0], -1, 2, 2, 2),
    "a part with an offset": lambda x: x[1:].view(-1, 24),
    "a column": lambda x: x[..., 1].view(x.shape[0], x.shape[1], 2, 3),
    "transposed back": lambda x: x.transpose(0, -1).transpose(-1, 0).view(-1, 12),
    "put before": lambda x: x.unsqueeze(0).unsqueeze(-1),
    "put between": lambda x: x.transpose(1, 2).unsqueeze(2).unsqueeze(-2),
    "repeated": lambda x: x.unsqueeze(1).expand(-1, 5, -1, -1, -1),
    "repeated as often": lambda x: x[:1].expand(x.shape[1], -1, 6, -1),
    "repeated before": lambda x: x.expand(2, 1, *x.shape),
    "repeated to symbols": lambda x: torch.ones(1, 3).expand(x.shape[0], 1, 3),
    "of what is repeated": lambda x: x[:1].expand(x.shape[1], -1, -1, -1).view(x.shape[1], -1),
}


def symbolic(mode: FakeTensorMode) -> FakeTensor:
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * 2 + [DimDynamic.STATIC] * 2)
    return mode.from_tensor(torch.ones(3, 5, 6, 4), symbolic_context=context)


def at(extents: Any, x: FakeTensor, sizes: tuple[int, int]) -> tuple[int, ...]:
    values = dict(zip((n.node.expr for n in x.shape[:2]), sizes, strict=True))
    expressions = (e.node.expr if isinstance(e, torch.SymInt) else e for e in extents)
    return tuple(int(sympy.sympify(e).subs(values)) for e in expressions)


@pytest.mark.parametrize("name", VIEWS)
def test_sizes_and_strides_are_eagers_for_each_size(name: str) -> None:
    mode = RememberingFakeMode(shape_env=SourcelessShapeEnv(duck_shape=False))
    x = symbolic(mode)
    with mode:
        view = VIEWS[name](x)
    assert type(view) is FakeTensor and view.fake_mode is mode
    for sizes in [(3, 5), (2, 2), (4, 9), (6, 4)]:
        expected = VIEWS[name](torch.ones(*sizes, 6, 4))
        assert at(view.shape, x, sizes) == tuple(expected.shape)
        assert at(view.stride(), x, sizes) == expected.stride()
        assert at([view.storage_offset()], x, sizes) == (expected.storage_offset(),)


def test_sizes_are_what_the_program_gives() -> None:
    """Not quotients of symbols, of which torch's own form makes one that equals 16."""
    mode = RememberingFakeMode(shape_env=SourcelessShapeEnv(duck_shape=False))
    x = symbolic(mode)
    with mode:
        padded = torch.cat([x, x.new_zeros(x.shape[0], -x.shape[1] % 16, 6, 4)], 1)
        chunks = padded.view(x.shape[0], -1, 16, 6, 4).transpose(1, 3)
    assert chunks.shape[2] == 16 and type(chunks.shape[2]) is int
    assert chunks.shape[0].node.expr == x.shape[0].node.expr


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "not in memory so": lambda x: x.transpose(0, 1).view(-1, 24),
    "other number": lambda x: x.view(x.shape[0], 7),
    "two open": lambda x: x.view(-1, -1, 24),
    "no divisor": lambda x: x.view(-1, 7),
    "no such dim": lambda x: x.transpose(0, 4),
    "a dim twice": lambda x: x.permute(0, 1, 1, 2),
    "too far": lambda x: x.unsqueeze(6),
    "another size": lambda x: x.expand(x.shape[0], 7, 6, 4),
    "fewer dims": lambda x: x.expand(6, 4),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        REFUSED[name](torch.ones(3, 5, 6, 4))
    mode = RememberingFakeMode(shape_env=ShapeEnv())
    x = symbolic(mode)
    with mode, pytest.raises((RuntimeError, IndexError, ValueError)):
        REFUSED[name](x)
