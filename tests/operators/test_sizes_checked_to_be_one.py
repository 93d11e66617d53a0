"""``squeeze`` of a size that data decides, where the program checks that it is one."""

import pytest
import torch
import weft

pytestmark = pytest.mark.native


def squeezed(x):
    found = x[x > 0]
    torch._check(found.shape[0] == 1)
    return found.squeeze(0) + 1, found.squeeze(), found.squeeze(0).dim()


def of_two_dims(x):
    found = (x > 0).nonzero()
    torch._check(found.shape[0] == 1)
    return found.squeeze() * 2, found.squeeze((0,)).shape[0] * x


def among_others(x):
    found = x[x > 0][None, :, None]
    torch._check(found.shape[1] == 1)
    left = found.squeeze((0, 1))
    left.mul_(2)
    return left, found, found.squeeze(), found.squeeze(-2).shape


def copied(x):
    found = x[x > 0]
    torch._check(found.shape[0] == 1)
    return torch.squeeze_copy(found, 0).mul_(2), found


def in_place(x):
    found = x[x > 0].clone()
    torch._check(found.shape[0] == 1)
    return found.squeeze_(0) + 1


INPUTS = [torch.tensor([-1.0, 2, -3]), torch.tensor([5.0, -2, -3, -1])]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [squeezed, of_two_dims, among_others, copied, in_place])
def test_is_eagers(function, dynamic):
    compiled = weft.compile(function, dynamic=dynamic)
    for x in INPUTS:
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("function", [squeezed, among_others])
def test_gradients(function):
    compiled = weft.compile(function, fullgraph=True)
    for x in INPUTS:
        gradients = []
        for run in (compiled, function):
            leaf = x.clone().requires_grad_()
            results = run(leaf * 1.5)
            gradients.append(torch.autograd.grad(results[0].sum(), leaf)[0])
        assert torch.equal(*gradients)


def test_another_count_is_an_error():
    compiled = weft.compile(squeezed, fullgraph=True)
    compiled(INPUTS[0])
    with pytest.raises(RuntimeError):
        compiled(torch.ones(3))
