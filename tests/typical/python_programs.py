"""Python around tensors, as people write it: each takes ``compile`` and gives what is to be compared."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import math

import torch
import torch.nn.functional as F

from .training_programs import randn

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


@program
def results_in_a_dataclass(compile):
    @dataclasses.dataclass
    class Output:
        hidden: torch.Tensor
        info: dict = dataclasses.field(default_factory=dict)

        @property
        def norm(self):
            return self.hidden.norm()

    @compile
    def forward(x, config):
        output = Output(x * config["scale"], {"size": x.numel(), **config})
        return output, output.norm

    outputs = [forward(torch.ones(3) * k, {"scale": 2.0 + k, "name": "a"}) for k in range(3)]
    return [(output.hidden, output.info, norm) for output, norm in outputs]


@program
def named_tuples_and_keywords(compile):
    point = collections.namedtuple("point", "x y")

    @compile
    def move(p, *, scale=1.0, **shifts):
        return point(p.x * scale, p.y + sum(shifts.values()))

    return [tuple(move(point(randn(2), randn(2)), scale=s, a=1, b=2.5)) for s in (1.0, 2.0, 3.0)]


@program
def nested_batches(compile):
    @compile
    def describe(batch):
        return {
            name: {"norm": value.norm(), "length": value.shape[0]}
            if isinstance(value, torch.Tensor)
            else [item.tanh() for item in value]
            for name, value in batch.items()
        }

    return [
        describe({"a": randn(3), "l": [randn(2), randn(1)]}),
        describe({"b": randn(4), "l": []}),
    ]


@program
def generators(compile):
    def rows(x):
        for k in range(3):
            yield x * k

    @compile
    def add(x):
        return sum(rows(x)) + torch.stack(list(rows(x))).mean(0)

    return [add(torch.ones(3)), add(torch.ones(5))]


@program
def tables_in_a_cache(compile):
    @functools.lru_cache
    def table(length):
        return torch.arange(length).float()

    return [compile(lambda x: x + table(x.shape[0]))(torch.ones(n)) for n in (3, 3, 4)]


@program
def checks_for_nan(compile):
    @compile
    def safe(x):
        y = x.log()
        if torch.isnan(y).any():
            return torch.zeros_like(x)
        return y

    return [safe(torch.ones(3)), safe(-torch.ones(3)), safe(torch.ones(4) * 2)]


@program
def branches_on_numbers(compile):
    @compile
    def scale(x):
        total = int(x.sum().item())
        return x * total if total > 2 else x - total

    return [scale(torch.ones(n)) for n in (1, 2, 3, 4)]


@program
def errors_handled(compile):
    @compile
    def multiply(x, y, state):
        try:
            result = x @ y
        except RuntimeError:
            state["failed"] = state.get("failed", 0) + 1
            return x.sum()
        finally:
            state["calls"] = state.get("calls", 0) + 1
        return result

    state = {}
    pairs = [((2, 3), (3, 2)), ((2, 3), (2, 3)), ((3, 3), (3, 3))]
    return [multiply(randn(*a), randn(*b), state) for a, b in pairs], state


@program
def context_of_the_program(compile):
    depth = []

    @contextlib.contextmanager
    def scope(name):
        depth.append(name)
        try:
            yield len(depth)
        finally:
            depth.append(f"end of {name}")

    @compile
    def forward(x):
        with scope("outer") as level, torch.no_grad():
            y = x * level
            with scope("inner") as level:
                y = y + level
        return y

    return [forward(randn(2, seed=k)) for k in range(2)], depth


@program
def registry_of_functions(compile):
    registry = {}

    def register(name):
        def decorate(function):
            registry[name] = function
            return function

        return decorate

    @register("relu_squared")
    def relu_squared(x):
        return F.relu(x) ** 2

    @register("swish")
    def swish(x, beta=1.5):
        return x * torch.sigmoid(beta * x)

    compiled = compile(lambda x, name, **options: registry[name](x, **options))
    return [
        compiled(randn(4), "swish"), compiled(randn(4), "relu_squared"),
        compiled(randn(4), "swish", beta=2.0),
    ]  # fmt: skip


@program
def views_and_writes(compile):
    @compile
    def touch(x):
        y = x[1:]
        y.mul_(2)
        return x.view(-1)[:2], y.t(), x

    found = []
    for size in (3, 4):
        x = randn(size, size)
        a, b, c = touch(x)
        found += [a, b, c is x, a.data_ptr() == x.data_ptr(), x]
    return found


@program
def edges_of_numbers(compile):
    @compile
    def edges(x):
        return (
            torch.where(x > 0, x.log(), x.sqrt()), torch.nan_to_num(x / 0), x.max(), x.argmax(),
            x.sign(), x.frac(), torch.logaddexp(x, -x), x.clamp(min=float("nan")),
        )  # fmt: skip

    return edges(torch.tensor([1.0, -1, float("nan"), float("inf"), -float("inf"), 0.0, -0.0]))


@program
def empty_tensors(compile):
    @compile
    def reduce(x):
        return x.sum(), x.mean(-1), x.softmax(-1), torch.cat([x, x]), x.amax(0) if x.shape[0] else x

    return [reduce(torch.zeros(n, 3)) for n in (0, 1, 2, 3)]


@program
def integers(compile):
    @compile
    def arithmetic(a, b):
        return (
            a // b, a % b, a ^ b, (a << 2) | (b.abs() >> 1), torch.div(a, b, rounding_mode="trunc"),
            a.float() / b, torch.gcd(a, b), a.bitwise_not(), (a > b).long() + a,
        )  # fmt: skip

    return arithmetic(torch.tensor([7, -7, 9, -5]), torch.tensor([2, 2, -4, -3]))


@program
def spectra(compile):
    @compile
    def transform(x):
        z = torch.fft.rfft(x)
        return torch.fft.irfft(z * torch.exp(1j * z.angle()), n=x.shape[-1]), z.abs()

    return [transform(randn(2, 8)), transform(randn(2, 8, seed=1))]


@program
def decompositions(compile):
    @compile
    def solve(a):
        spd = a @ a.mT + 3 * torch.eye(a.shape[-1])
        return torch.linalg.cholesky(spd), torch.linalg.solve(spd, a), torch.logdet(spd)

    return [solve(randn(4, 4)), solve(randn(5, 5))]


@program
def weights_exchanged_for_a_call(compile):
    layer = torch.nn.Linear(2, 2)

    @contextlib.contextmanager
    def exchanged(module, **parameters):
        before = {name: getattr(module, name) for name in parameters}
        for name, value in parameters.items():
            setattr(module, name, value)
        try:
            yield module
        finally:
            for name, value in before.items():
                setattr(module, name, value)

    other = torch.nn.Parameter(torch.ones(2, 2))

    @compile
    def both(x):
        with exchanged(layer, weight=other):
            first = layer(x)
        return first.detach(), layer(x).detach()

    return [both(randn(n, 2)) for n in (2, 3, 4)], layer.weight is not other


@program
def meters_of_a_training_loop(compile):
    class Meter:
        def __init__(self):
            self.total, self.count, self.best = 0.0, 0, math.inf

        def update(self, value, n):
            self.total += value * n
            self.count += n
            self.best = min(self.best, value)

        def __str__(self):
            return f"{self.total / self.count:.2f} ({self.count})"

    meter, history = Meter(), []

    @compile
    def step(x):
        loss = (x**2).mean()
        if not math.isfinite(loss.item()):
            return None
        meter.update(loss.item(), x.shape[0])
        history.append(round(math.exp(loss.item()), 2))
        return x * loss, str(meter)

    return [step(randn(n)) for n in (3, 3, 4, 5)], history, round(meter.best, 3), meter.count


@program
def noise_of_generators(compile):
    kept = torch.Generator().manual_seed(3)

    @compile
    def noisy(x, seed):
        generator = torch.Generator(device=x.device).manual_seed(seed)
        order = torch.randperm(x.shape[0], generator=generator)
        mask = torch.rand(x.shape, generator=kept) < 0.5
        return x[order] + torch.randn(x.shape, generator=kept) * mask, order

    return [noisy(randn(n, 2), seed) for n, seed in ((3, 1), (3, 1), (4, 2), (5, 3))]
