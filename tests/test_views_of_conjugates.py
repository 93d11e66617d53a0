"""Views as another dtype of arguments that are lazily conjugated or negated."""

import pytest
import torch
import weft

VIEWS = {
    "real of the conjugate": lambda z: torch.view_as_real(z.conj()),
    "rows of it": lambda z: torch.view_as_real(z.conj())[1:, :, 0],
    "bits of the imaginary part": lambda z: z.conj().imag.view(torch.int32),
    "bits of the negated": lambda z: torch._neg_view(z.real).view(torch.int32),
    "imaginary part": lambda z: z.imag,
    "imaginary part of the conjugate": lambda z: z.conj().imag,
    "conjugate": lambda z: z.conj(),
}


def outcome(function, argument):
    try:
        return function(argument)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("case", VIEWS)
def test_they_are_eagers_views(case, dynamic):
    function = VIEWS[case]
    for made in (lambda z: z, lambda z: z.conj(), lambda z: z.conj()[1:], lambda z: z.imag):
        memory = torch.randn(3, 2, dtype=torch.complex64)
        argument = made(memory)
        wanted = outcome(function, argument)
        found = outcome(weft.compile(function, dynamic=dynamic), argument)
        assert type(found) is type(wanted), (found, wanted)
        if isinstance(wanted, str):
            assert found == wanted
            continue
        assert found.is_conj() == wanted.is_conj()
        assert found.is_neg() == wanted.is_neg()
        assert found.stride() == wanted.stride()
        assert found.dtype == wanted.dtype
        assert found.data_ptr() == wanted.data_ptr()
        assert torch.equal(found, wanted)


def test_gradients_go_through_them():
    def function(z):
        return torch.view_as_real(z.conj()) * torch.tensor([2.0, 3.0]), torch.view_as_real(z.conj())

    gradients = []
    for run in (function, weft.compile(function)):
        p = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
        first, second = run(p.conj())
        (first.sum() + (second * second).sum()).backward()
        gradients.append(p.grad)
    assert torch.equal(*gradients)
