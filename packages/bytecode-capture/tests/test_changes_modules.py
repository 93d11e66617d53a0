"""What changes in modules between two calls: parameters, buffers, hooks, flags, submodules."""

import pytest
import torch
from changes import check, collected
from torch import nn

case, CASES = collected()


@case
def module_attr():
    m = nn.Linear(3, 3)
    m.k = 2.0

    def f(x):
        return m(x) * m.k

    return f, lambda: setattr(m, "k", 3.0)


@case
def module_attr_none():
    m = nn.Linear(3, 3)
    m.k = None

    def f(x):
        return m(x) if m.k is None else m(x) * m.k

    return f, lambda: setattr(m, "k", 3.0)


@case
def training():
    m = nn.Dropout(1.0)

    def f(x):
        return m(x)

    return f, lambda: m.eval()


@case
def training_nested():
    m = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Dropout(1.0)))

    def f(x):
        return m(x)

    return f, lambda: m[1][0].eval()


@case
def bn_training():
    m = nn.BatchNorm1d(3)

    def f(x):
        return m(x)

    return f, lambda: m.eval()


@case
def hook_added():
    m = nn.Linear(3, 3)

    def f(x):
        return m(x)

    return f, lambda: m.register_forward_hook(lambda mod, i, o: o * 2)


@case
def prehook_added():
    m = nn.Linear(3, 3)

    def f(x):
        return m(x)

    return f, lambda: m.register_forward_pre_hook(lambda mod, i: (i[0] * 2,))


@case
def nested_hook():
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def f(x):
        return m(x)

    return f, lambda: m[0].register_forward_hook(lambda mod, i, o: o * 2)


@case
def global_hook():
    m = nn.Linear(3, 3)

    def f(x):
        return m(x)

    h = []

    def change():
        h.append(nn.modules.module.register_module_forward_hook(lambda mod, i, o: o * 2))

    def undo():
        h[0].remove()

    return f, change, undo


@case
def param_replaced():
    m = nn.Linear(3, 3)

    def f(x):
        return m(x)

    def change():
        m.weight = nn.Parameter(torch.ones(3, 3))

    return f, change


@case
def param_data():
    m = nn.Linear(3, 3)

    def f(x):
        return m(x)

    def change():
        m.weight.data = torch.ones(3, 3)

    return f, change


@case
def parameter_data_of_another_size():
    m = nn.Linear(3, 3)

    def f(x):
        return m(x)

    def change():
        m.weight.data = torch.ones(5, 3)
        m.bias.data = torch.ones(5)

    return f, change


@case
def param_inplace():
    m = nn.Linear(3, 3)

    def f(x):
        return m(x)

    def change():
        with torch.no_grad():
            m.weight.add_(1)

    return f, change


@case
def param_none():
    m = nn.Linear(3, 3)

    def f(x):
        return m(x)

    def change():
        m.bias = None

    return f, change


@case
def buffer_resized():
    m = nn.Module()
    m.register_buffer("b", torch.ones(3))

    def f(x):
        return x * m.b.sum()

    def change():
        m.b.resize_(5).fill_(2)

    return f, change


@case
def buffer_replaced():
    m = nn.Module()
    m.register_buffer("b", torch.ones(3))

    def f(x):
        return x * m.b.sum()

    def change():
        m.b = torch.ones(7)

    return f, change


@case
def double_precision():
    m = nn.Linear(3, 3)

    def f(x):
        return m(x.to(m.weight.dtype)).sum()

    return f, lambda: m.double()


@case
def submodule_replaced():
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def f(x):
        return m(x)

    def change():
        m[1] = nn.Tanh()

    return f, change


@case
def submodule_added():
    m = nn.Sequential(nn.Linear(3, 3))

    def f(x):
        return m(x)

    def change():
        m.append(nn.Tanh())

    return f, change


@case
def forward_patched_class():
    class M(nn.Module):
        def forward(self, x):
            return x * 2

    m = M()

    def f(x):
        return m(x)

    def change():
        M.forward = lambda s, x: x * 5

    return f, change


@case
def forward_patched_instance():
    m = nn.ReLU()

    def f(x):
        return m(x)

    def change():
        m.forward = lambda x: x * 5

    return f, change


@case
def relu_inplace_flag():
    m = nn.ReLU()

    def f(x):
        y = x - 3
        z = m(y)
        return y + z

    return f, lambda: setattr(m, "inplace", True)


@case
def modulelist():
    m = nn.ModuleList([nn.Linear(3, 3)])

    def f(x):
        for layer in m:
            x = layer(x)
        return x

    return f, lambda: m.append(nn.Linear(3, 3))


@case
def paramlist():
    m = nn.ParameterList([torch.ones(3)])

    def f(x):
        for layer in m:
            x = x * layer
        return x

    return f, lambda: m.append(torch.ones(3) * 3)


@case
def momentum_changed():
    m = nn.BatchNorm1d(3)

    def f(x):
        return m(x)

    return f, lambda: setattr(m, "momentum", None)


@case
def bn_stats_none():
    m = nn.BatchNorm1d(3).eval()

    def f(x):
        return m(x)

    def change():
        m.running_mean = None
        m.running_var = None

    return f, change


@case
def eps_changed():
    m = nn.LayerNorm(3)

    def f(x):
        return m(x)

    return f, lambda: setattr(m, "eps", 1.0)


@case
def norm_shape():
    m = nn.LayerNorm(3, elementwise_affine=False)

    def f(x):
        return m(x)

    return f, lambda: setattr(m, "normalized_shape", (2, 3))


@case
def weight_norm():
    m = nn.Linear(3, 3)

    def f(x):
        return m(x)

    return f, lambda: torch.nn.utils.parametrizations.weight_norm(m)


@case
def parametrize():
    m = nn.Linear(3, 3)

    def f(x):
        return m(x)

    class D(nn.Module):
        def forward(self, w):
            return w * 2

    return f, lambda: torch.nn.utils.parametrize.register_parametrization(m, "weight", D())


@case
def moduledict():
    m = nn.ModuleDict({"a": nn.ReLU()})

    def f(x):
        return m["a"](x - 3)

    def change():
        m["a"] = nn.Tanh()

    return f, change


@case
def module_class_swapped():
    class M(nn.Module):
        def forward(self, x):
            return x * 2

    class N(nn.Module):
        def forward(self, x):
            return x * 7

    m = M()

    def f(x):
        return m(x)

    def change():
        m.__class__ = N

    return f, change


@case
def module_property():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self._s = 2.0

        @property
        def s(self):
            return self._s

        def forward(self, x):
            return x * self.s

    m = M()

    def f(x):
        return m(x)

    def change():
        m._s = 6.0

    return f, change


@case
def module_class_attr_shadows_param():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.w

    m = M()

    def f(x):
        return m(x)

    def change():
        M.w = 5.0

    return f, change


@case
def module_getattr_added():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.w

    m = M()

    def f(x):
        return m(x)

    def change():
        M.__getattribute__ = lambda s, n: (
            torch.ones(3) * 4 if n == "w" else object.__getattribute__(s, n)
        )

    return f, change


@case
def module_call_patched():
    class M(nn.Module):
        def forward(self, x):
            return x * 2

    m = M()

    def f(x):
        return m(x)

    def change():
        M.__call__ = lambda s, x: x * 88

    return f, change


@case
def named_params():
    m = nn.Linear(3, 3)

    def f(x):
        for n, p in m.named_parameters():
            x = x + p.sum() * len(n)
        return x

    def change():
        m.register_parameter("extra", nn.Parameter(torch.ones(2)))

    return f, change


@case
def modules_isinstance():
    m = nn.Sequential(nn.ReLU(), nn.Linear(3, 3))

    def f(x):
        return x * sum(isinstance(k, nn.Linear) for k in m.modules())

    def change():
        m[0] = nn.Linear(3, 3)

    return f, change


@case
def frozen_param():
    m = nn.Linear(3, 3)

    def f(x):
        return m(x).requires_grad, m(x)

    return f, lambda: m.requires_grad_(False)


@case
def always_call_hook():
    m = nn.Linear(3, 3)

    def f(x):
        return m(x)

    def change():
        m.register_forward_hook(lambda mod, a, k, o: o * 3, with_kwargs=True)

    return f, change


@case
def grad_attr():
    p = nn.Parameter(torch.ones(3))

    def f(x):
        return x * 2 if p.grad is None else x + p.grad

    def change():
        p.grad = torch.ones(3) * 5

    return f, change


@case
def grad_size():
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)

    def f(x):
        return x + p.grad

    def change():
        p.grad = torch.ones(3) * 5

    return f, change


@case
def state_dict_read():
    m = nn.Linear(3, 3)

    def f(x):
        return x + m.state_dict()["bias"]

    def change():
        m.bias = nn.Parameter(torch.ones(3) * 9)

    return f, change


def _shadowing(name, value):
    """A case: the instance dict gets an entry that hides what ``nn.Module.__getattr__`` would find."""

    def make():
        m = nn.Module()
        m.sub = nn.Linear(3, 3)
        m.p = nn.Parameter(torch.ones(3) * 2)
        m.register_buffer("b", torch.ones(3) * 3)

        def f(x):
            return m.sub(x) * m.p + m.b

        return f, lambda: m.__dict__.__setitem__(name, value()), lambda: m.__dict__.pop(name)

    return make


SHADOWS = {"sub": lambda: nn.Linear(3, 3), "p": lambda: 5.0, "b": lambda: torch.ones(3) * 7}


@pytest.mark.parametrize("name", SHADOWS)
def test_an_entry_of_the_instance_dict_hides_a_member(name):
    check(_shadowing(name, SHADOWS[name]))


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_a_change_between_calls_is_seen(make):
    check(make)
