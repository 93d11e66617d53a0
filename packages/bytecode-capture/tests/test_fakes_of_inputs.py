"""Fakes that are made without torch's converter are as those that it makes, of whatever tensor."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from weft_bytecode_capture.symbolic.graph.fake_mode import RememberingFakeMode
from weft_bytecode_capture.symbolic.graph.known_results import KnownResult


def with_gradient(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    leaf = torch.nn.Parameter(torch.randn(4, 6))
    leaf.grad = make()
    return leaf


def shared_gradient() -> tuple[torch.Tensor, ...]:
    leaf = torch.nn.Parameter(torch.randn(4, 6))
    leaf.grad = torch.ones(4, 6)
    return leaf.grad, leaf


def without_history(function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return function(torch.randn(6, 8))


def base_and_views() -> tuple[torch.Tensor, ...]:
    base = torch.randn(6, 8)
    return base[1:3], base, base.T, base[:, 2]


def retained() -> torch.Tensor:
    result = torch.randn(3, requires_grad=True) * 2
    result.retain_grad()
    result.sum().backward()
    return result


TENSORS: dict[str, Callable[[], torch.Tensor | tuple[torch.Tensor, ...]]] = {
    "leaf": lambda: torch.randn(3, 4),
    "parameter with a gradient": lambda: with_gradient(lambda: torch.ones(4, 6)),
    "gradient that is a view": lambda: with_gradient(lambda: torch.ones(1).expand(4, 6)),
    "gradient that lies otherwise": lambda: with_gradient(lambda: torch.ones(6, 4).T),
    "sparse gradient": lambda: with_gradient(lambda: torch.ones(4, 6).to_sparse()),
    "gradient, then its leaf": shared_gradient,
    "rows": lambda: torch.randn(6, 8)[2:5],
    "transposed": lambda: torch.randn(6, 8).T,
    "expanded": lambda: torch.randn(1, 8).expand(3, 8),
    "column": lambda: torch.randn(6, 8)[:, 3],
    "nothing": lambda: torch.randn(6, 8)[6:],
    "view of a view": lambda: torch.randn(6, 8)[1:].T[2:],
    "view made without gradients": lambda: without_history(lambda x: x[1:]),
    "one of several": lambda: torch.randn(6, 8).split(2)[1],
    "other dtype": lambda: torch.randn(6, 8).view(torch.int32),
    "real part": lambda: torch.randn(6, dtype=torch.complex64).real,
    "conjugate": lambda: torch.randn(6, dtype=torch.complex64).conj(),
    "detached": lambda: torch.randn(3, requires_grad=True).detach(),
    "view that requires gradients": lambda: torch.randn(6, 8)[1:].requires_grad_(),
    "view with a history": lambda: (torch.randn(6, 8, requires_grad=True) * 2)[1:],
    "result with a history": lambda: torch.randn(3, requires_grad=True) * 2,
    "retained": retained,
    "base and views": base_and_views,
}


def facts(fake: torch.Tensor | None) -> object:
    if fake is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gradient = fake.grad
    is_strided = fake.layout is torch.strided
    base = fake._base
    return (
        type(fake), fake.shape, fake.dtype, fake.device, fake.layout, fake.requires_grad, fake.is_leaf,
        fake.is_conj(), fake.is_inference(), fake._is_view(), fake._version,
        (fake.stride(), fake.storage_offset()) if is_strided else None,
        fake.untyped_storage().nbytes() if is_strided else None,
        torch._C._autograd._get_creation_meta(fake) if fake._is_view() else None,
        None if base is None else facts(base), facts(gradient), fake.retains_grad,
    )  # fmt: skip


@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
@pytest.mark.parametrize("gradients", [True, False])
def test_fakes_are_as_torch_makes_them(make, gradients) -> None:
    made = make()
    tensors = made if isinstance(made, tuple) else (made,)
    found = []
    for mode in (FakeTensorMode(), RememberingFakeMode()):
        with torch.set_grad_enabled(gradients):
            fakes = [mode.from_tensor(tensor, static_shapes=True) for tensor in tensors]
            again = [mode.from_tensor(tensor, static_shapes=True) for tensor in tensors]
        assert all(type(fake) is FakeTensor for fake in fakes)
        assert all(first is second for first, second in zip(fakes, again, strict=True))
        places = [f.untyped_storage()._cdata if f.layout is torch.strided else 0 for f in fakes]
        shared = [[a == b for a in places] for b in places]
        found.append(([facts(fake) for fake in fakes], shared))
    assert found[1] == found[0]


PROGRAM = """
import sys
import torch
from weft_bytecode_capture.symbolic.graph.fake_mode import RememberingFakeMode
from weft_bytecode_capture.symbolic.graph.known_results import KnownResult
mode = RememberingFakeMode()
leaf = torch.nn.Parameter(torch.randn(4, 6))
leaf.grad = torch.ones(4, 6)
for tensor in (leaf, torch.randn(6, 8)[2:5], torch.randn(6, 8).T, leaf * 2):
    mode.from_tensor(tensor, static_shapes=True)
assert "torch._dynamo" not in sys.modules
"""


@pytest.mark.kept
def test_torchs_compiler_is_not_loaded_for_them() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


@pytest.mark.parametrize(
    "lazily",
    [torch._neg_view, lambda x: x.to(torch.complex64).conj()],
    ids=["negative", "conjugate"],
)
def test_lazy_views_stay_lazy_where_plain_ones_are_known(
    lazily: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Torch's converter makes a plain view lazy; what was found of such views before holds for plain ones."""
    known: dict[str, KnownResult] = {}
    lazy = lazily(torch.randn(9))
    plain = torch.empty_like(lazy)
    for _ in range(2):  # the second finds the view itself, too
        mode = RememberingFakeMode(known=known)
        with mode:
            mode.from_tensor(plain, static_shapes=True).detach()
            fake = mode.from_tensor(lazy, static_shapes=True)
            for view in (fake, fake.detach(), fake.data, fake[2:]):
                assert view.is_neg() == lazy.is_neg()
                assert view.is_conj() == lazy.is_conj()
