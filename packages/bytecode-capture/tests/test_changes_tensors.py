"""What changes in tensors and arrays that are no arguments between two calls."""

import numpy as np
import pytest
import torch
from changes import check, collected
from torch import nn

case, CASES = collected()


@case
def tensor_attr():
    t = torch.ones(3)
    t.k = 2.0

    def f(x):
        return x * t.k

    return f, lambda: setattr(t, "k", 5.0)


@case
def tensor_global_replaced():
    d = {"t": torch.ones(3)}

    def f(x):
        return x * d["t"]

    def change():
        d["t"] = torch.ones(3) * 4

    return f, change


@case
def tensor_in_list_swapped():
    items = [torch.ones(3), torch.zeros(3)]

    def f(x):
        return x * items[0]

    def change():
        items.reverse()

    return f, change


@case
def tensor_closure_dtype():
    items = [torch.ones(3)]

    def f(x):
        return (x * items[0]).sum()

    def change():
        items[0] = items[0].double()

    return f, change


@case
def tensor_requires_grad():
    t = torch.ones(3)

    def f(x):
        y = x * t
        return y.requires_grad, y

    return f, lambda: t.requires_grad_()


@case
def tensors_is_same():
    a = torch.ones(3)
    p = [a, a]

    def f(x):
        return x * 2 if p[0] is p[1] else x * 3

    def change():
        p[1] = torch.ones(3)

    return f, change


@case
def np_array_inplace():
    a = np.ones(3, dtype=np.float32)

    def f(x):
        return x * torch.from_numpy(a)

    def change():
        a[0] = 5

    return f, change


@case
def np_array_item():
    a = np.ones(3, dtype=np.float32)

    def f(x):
        return x * float(a[0])

    def change():
        a[0] = 5

    return f, change


@case
def tensor_item_closure():
    t = torch.tensor(2.0)

    def f(x):
        return x * t.item()

    def change():
        t.fill_(5)

    return f, change


@case
def tensor_bool_closure():
    t = torch.tensor(True)

    def f(x):
        return x * 2 if t else x * 3

    def change():
        t.fill_(False)

    return f, change


@case
def aliased_tensors():
    a = torch.ones(3)
    b = torch.ones(3)
    h = [a, b]

    def f(x):
        h[0].add_(1)
        r = x * h[1]
        h[0].sub_(1)
        return r

    def change():
        h[1] = a

    return f, change


@case
def view_aliased():
    a = torch.ones(3)
    b = torch.ones(3)
    h = [a, b]

    def f(x):
        h[0].add_(1)
        r = x * h[1]
        h[0].sub_(1)
        return r

    def change():
        h[1] = a.view(3)

    return f, change


@case
def sparse_swap():
    h = [torch.eye(3)]

    def f(x):
        return (h[0] @ x.t()).t() if h[0].layout is torch.strided else (h[0] @ x.t()).t() * 2

    def change():
        h[0] = torch.eye(3).to_sparse()

    return f, change


@case
def channels_last():
    h = [torch.ones(1, 2, 3, 4)]

    def f(x):
        return x * h[0].stride(1), h[0].is_contiguous(memory_format=torch.channels_last)

    def change():
        h[0] = h[0].to(memory_format=torch.channels_last)

    return f, change


@case
def conj_bit():
    h = [torch.ones(3, dtype=torch.complex64) * 1j]

    def f(x):
        return (x * h[0]).imag, h[0].is_conj()

    def change():
        h[0] = h[0].conj()

    return f, change


@case
def subclass_tensor():
    class T(torch.Tensor):
        pass

    h = [torch.ones(3)]

    def f(x):
        return x * 2 if type(h[0]) is torch.Tensor else x * 3

    def change():
        h[0] = torch.ones(3).as_subclass(T)

    return f, change


@case
def buffer_swap():
    h = [torch.ones(3)]

    def f(x):
        kinds = nn.Buffer, (int, nn.Buffer), nn.Buffer | None, nn.Parameter, torch.Tensor
        answers = tuple(isinstance(h[0], kind) for kind in kinds)
        return x * 2 if answers[0] else x * 3, answers, isinstance(x, nn.Buffer)

    def change():
        h[0] = nn.Buffer(torch.ones(3))

    return f, change


@case
def parameter_swap():
    h = [torch.ones(3)]

    def f(x):
        return x * 2 if isinstance(h[0], nn.Parameter) else x * 3, isinstance(h[0], nn.Buffer)

    def change():
        h[0] = nn.Parameter(torch.ones(3))

    return f, change


@case
def buffer_marked():
    h = [torch.ones(3)]

    def f(x):
        return x * 2 if isinstance(h[0], nn.Buffer | nn.Parameter) else x * 3

    return f, lambda: setattr(h[0], "_is_buffer", True), lambda: delattr(h[0], "_is_buffer")


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_a_change_between_calls_is_seen(make):
    check(make)
