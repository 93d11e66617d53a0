"""Fakes with symbolic sizes: for each size the sizes and strides of eager's; made again, and padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from weft_bytecode_capture._torch import storage_identity
from weft_bytecode_capture._torch.fakes import FakeTensor, FakeTensorMode
from weft_bytecode_capture._torch.symbols import SourcelessShapeEnv, statically_known_true
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
    "a part of one": lambda x: x.unbind(2)[4],
    "a part of a part": lambda x: x[:, 1:].unbind(-1)[1].unbind(2)[0],
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


def test_as_many_parts_as_the_size_has_now() -> None:
    """Of hundreds, by rules that ask nothing of the symbols of each."""
    environment = ShapeEnv()
    mode = RememberingFakeMode(shape_env=environment)
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * 2)
    x = mode.from_tensor(torch.ones(24, 25), symbolic_context=context)
    with mode:
        parts = x.flatten().unbind(0)
    assert [part.storage_offset() for part in parts] == list(range(600))
    assert all(part.shape == () for part in parts)
    assert any(guard.expr.free_symbols for guard in environment.guards)


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
    "parts of no dim": lambda x: x.unbind(4),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        REFUSED[name](torch.ones(3, 5, 6, 4))
    mode = RememberingFakeMode(shape_env=ShapeEnv())
    x = symbolic(mode)
    with mode, pytest.raises((RuntimeError, IndexError, ValueError)):
        REFUSED[name](x)


NEW: dict[str, Callable[[Tensor], Tensor]] = {
    "sum of two": lambda x: x + x[:, :1],
    "number": lambda x: x * 2,
    "float": lambda x: x.long() * 2.0,
    "of another dtype": lambda x: x.double(),
    "turned around": lambda x: x.permute(3, 1, 0, 2) + 1,
    "together": lambda x: torch.cat([x, x[:, 1:]], 1),
    "matrices": lambda x: torch.bmm(x[:, 0], x[:, 1].mT),
    "sizes": lambda x: x.new_zeros(x.shape[0] + 1, x.shape[1]),
    "reduced": lambda x: x.amax((1, 3)),
    "compared": lambda x: x < 1,
    "real part": lambda x: (x * 1j).real + 1,
    "bits": lambda x: (x + 1).view(torch.int32) + 1,
    "conjugated": lambda x: (x * 1j).conj() + 1,
    "several": lambda x: x.split(2, 2)[1] + 1,
    "sorted": lambda x: x.sort(1)[0],
    "written": lambda x: x.clone().add_(1),
}


@pytest.mark.parametrize("name", [*VIEWS, *NEW])
def test_what_is_made_again_is_as_the_first(name: str) -> None:
    function = {**VIEWS, **NEW}[name]
    mode = RememberingFakeMode(shape_env=SourcelessShapeEnv(duck_shape=False))
    x = symbolic(mode)
    with mode:
        first, second = function(x), function(x)
    for sizes in [(3, 5), (4, 9)]:
        expected = function(torch.ones(*sizes, 6, 4))
        for found in (first, second):
            assert (found.dtype, found.device) == (expected.dtype, expected.device)
            assert at(found.shape, x, sizes) == tuple(expected.shape)
            assert at(found.stride(), x, sizes) == expected.stride()
    assert storage_identity(first) != storage_identity(second) or name in VIEWS
    for given in (first, second):
        base = torch.ones(3, 5, 6, 4)
        is_view = storage_identity(function(base)) == storage_identity(base)
        assert (storage_identity(given) == storage_identity(x)) is is_view
        assert given.is_conj() == first.is_conj() and given._version == first._version


def test_results_of_symbols_are_not_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    mode = RememberingFakeMode(shape_env=SourcelessShapeEnv(duck_shape=False))
    x, y = symbolic(mode), symbolic(mode)
    with mode:
        first = (x + 1).transpose(0, 1) * 2

        def refuse(*_: Any, **__: Any) -> None:
            raise AssertionError("computed")

        monkeypatch.setattr(FakeTensorMode, "dispatch", refuse)
        assert ((x + 1).transpose(0, 1) * 2).stride() == first.stride()
        with pytest.raises(AssertionError, match="computed"):
            y + 1  # of other symbols


def test_padding_up_is_a_multiple() -> None:
    mode = RememberingFakeMode(shape_env=SourcelessShapeEnv(duck_shape=False))
    n = symbolic(mode).shape[1]
    symbol = n.node.expr
    for padded, unit in [(n + (16 - n % 16) % 16, 16), (n + -n % 7, 7), (n * 3 + -n * 3 % 4, 4)]:
        assert statically_known_true(padded % unit == 0)
        assert statically_known_true(padded // unit >= 1)
        for value in range(2, 40):
            size = value * 3 if unit == 4 else value
            assert padded.node.expr.subs(symbol, value) == -(-size // unit) * unit
    for other in (n + (16 - n % 16) % 8, n - -n % 16, n + n % 16):
        expected = other.node._expr
        assert all(
            other.node.expr.subs(symbol, v) == expected.subs(symbol, v) for v in range(2, 40)
        )
