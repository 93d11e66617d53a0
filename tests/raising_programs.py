"""Programs that raise where their data is not as they want it.

They are no test module: pytest rewrites what such a module asserts.
"""

from __future__ import annotations

import torch


def asserted(x):
    assert (x > 0).all(), "must be positive"
    return x * 2


def refused(x):
    if torch.isnan(x).any() or torch.isinf(x).any():
        raise ValueError(f"{int(torch.isnan(x).sum())} of {x.numel()} are not numbers")
    return x.sum() + x


def unless(x):
    if x.max() < 100:
        y = x + 1
    else:
        raise OverflowError("too large")
    return y * 2


def several(x):
    total = x.sum()
    if total < 0:
        raise ValueError("negative")
    if total > 100:
        message = "large: " + str(float(total))
        raise RuntimeError(message)
    if not torch.isfinite(total):
        raise ArithmeticError
    return x / total


def by_number(x):
    largest = x.max().item()
    if largest > 100:
        raise ValueError(f"large {largest}")
    count = (x > 0).sum().item()
    assert 0 < count <= x.shape[0]
    return x * largest + count, torch.ones(count)


def compared(x):
    if not torch.equal(x, x.abs()):
        raise ValueError("a sign")
    assert x.min()
    return torch.log(x)


def checked(x, name="x"):
    assert not (x < 0).any(), name + " is negative"
    return x.sqrt()


def inlined(x):
    return checked(x, name="the input") + checked(x + 1)


def scaled_and_checked(x):
    y = x * 3
    y.add_(1)
    assert y.mean() > 1
    y.mul_(2)
    return y


def looped(x):
    for step in range(3):
        x = x * 0.5
        if (x > 50).any():
            raise ValueError(f"in step {step}")
    return x


def distribution(x):
    return torch.distributions.Normal(torch.zeros(4), x).log_prob(x + 1)


SETTINGS = {"strict": False}


def with_a_setting(x):
    SETTINGS["strict"] = True
    try:
        assert x.min() > 0
        return x.rsqrt()
    finally:
        SETTINGS["strict"] = False


def matrix_product(x):
    if x[0] == 0.5:
        return x.outer(x) @ x
    raise LookupError(x.shape[0])


def handled(x):
    try:
        assert (x > 0).all()
        return x * 2
    except AssertionError:
        return x * 3


def written_before(x):
    x.add_(1)
    if (x < 0).any():
        raise ValueError("negative")
    return x * 2


def written_after(x):
    if (x < 0).any():
        raise ValueError("negative")
    x.add_(1)
    return x * 2


def inside_a_kept_loop(x):
    steps = 0
    while x.sum() > 0.01:
        x = x * 0.5
        steps += 1
        assert steps < 5
    return x


class Counting:
    calls = 0

    def __call__(self, x):
        self.calls += 1
        if (x < 0).any():
            raise ValueError(f"call {self.calls}")
        self.calls += 10
        return x * self.calls


def same_values(x):
    other = x.abs()
    if not (x.equal(other) and bool(torch.allclose(x, other))):
        raise ValueError("a sign")
    return torch.equal(x, other[:3]), torch.equal(x, x + 1), x + 1
