"""What changes of torch's and the process's state between two calls."""

import os
import sys
import types

import pytest
import torch
from changes import check, collected
from torch.overrides import TorchFunctionMode

case, CASES = collected()


@case
def default_dtype():
    def f(x):
        return torch.ones(3).double() / 3 * x + torch.tensor(0.1)

    return (
        f,
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float32),
    )


@case
def grad_mode():
    w = torch.ones(3, requires_grad=True)

    def f(x):
        return (x * w).requires_grad, x * 2

    return f, lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)


@case
def function_mode():
    w = torch.ones(3)

    def f(x):
        return x + w

    class M(TorchFunctionMode):
        def __torch_function__(self, fn, t, a=(), k=None):
            r = fn(*a, **(k or {}))
            return r * 10 if fn in (torch.Tensor.add, torch.add, torch.Tensor.__add__) else r

    m = M()

    def change():
        m.__enter__()

    def undo():
        m.__exit__(None, None, None)

    return f, change, undo


@case
def default_device():
    def f(x):
        return torch.ones(3).device.type, x * 2

    return f, lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None)


@case
def deterministic():
    def f(x):
        return x * (2 if torch.are_deterministic_algorithms_enabled() else 3)

    return (
        f,
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    )


@case
def num_threads():
    def f(x):
        return x * torch.get_num_threads()

    n = torch.get_num_threads()
    return f, lambda: torch.set_num_threads(n + 1), lambda: torch.set_num_threads(n)


@case
def autocast_on():
    w = torch.ones(3, 3)

    def f(x):
        y = x @ w
        return y.dtype, y

    ctx = torch.autocast("cpu")
    return f, lambda: ctx.__enter__(), lambda: ctx.__exit__(None, None, None)


@case
def inference_mode():
    def f(x):
        return (x * 2).is_inference(), x * 2

    c = torch.inference_mode()
    return f, lambda: c.__enter__(), lambda: c.__exit__(None, None, None)


@case
def default_dtype_query():
    def f(x):
        return x * (2 if torch.get_default_dtype() is torch.float32 else 3)

    return (
        f,
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float32),
    )


@case
def matmul_precision():
    def f(x):
        return x * (2 if torch.get_float32_matmul_precision() == "highest" else 3)

    return (
        f,
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: torch.set_float32_matmul_precision("highest"),
    )


@case
def cudnn_flag():
    def f(x):
        return x * (2 if torch.backends.cudnn.benchmark else 3)

    return (
        f,
        lambda: torch._C._set_cudnn_benchmark(True),  # torch's testing library forbids the other
        lambda: torch._C._set_cudnn_benchmark(False),
    )


@case
def sdp_flag():
    def f(x):
        return x * (2 if torch.backends.cuda.flash_sdp_enabled() else 3)

    return (
        f,
        lambda: torch.backends.cuda.enable_flash_sdp(False),
        lambda: torch.backends.cuda.enable_flash_sdp(True),
    )


@case
def os_environ():
    os.environ["ZZ"] = "1"

    def f(x):
        return x * int(os.environ.get("ZZ"))

    return f, lambda: os.environ.__setitem__("ZZ", "5")


@case
def sys_modules():
    def f(x):
        return x * (2 if "nonexistent_zz" in sys.modules else 3)

    return (
        f,
        lambda: sys.modules.__setitem__("nonexistent_zz", types.ModuleType("z")),
        lambda: sys.modules.pop("nonexistent_zz"),
    )


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_a_change_between_calls_is_seen(make):
    check(make)
