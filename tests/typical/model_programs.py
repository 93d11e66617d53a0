"""Modules that people write themselves: each program takes ``compile`` and gives what is to be compared."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .training_programs import gradients, mlp, randn

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


@program
def mixture_of_experts(compile):
    experts, gate = nn.ModuleList(nn.Linear(6, 6) for _ in range(4)), nn.Linear(6, 4)

    @compile
    def forward(x):
        weights, chosen = gate(x).softmax(-1).topk(2, -1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(experts):
            rows, place = torch.where(chosen == number)
            result.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        return result

    return [forward(randn(9, 6, seed=seed)).detach() for seed in range(3)]


@program
def dense_mixture_with_balance(compile):
    experts, gate = nn.ModuleList(nn.Linear(6, 6) for _ in range(3)), nn.Linear(6, 3)

    @compile
    def forward(x):
        weights = gate(x).softmax(-1)
        result = torch.stack([expert(x) for expert in experts], -1)
        balance = weights.mean(0).square().sum() * len(experts)
        return (result * weights[:, None]).sum(-1), balance

    result, balance = forward(randn(5, 6))
    (result.square().mean() + balance).backward()
    return result.detach(), balance.detach(), gradients(gate), gradients(experts)


@program
def low_rank_adapter(compile):
    class Adapted(nn.Module):
        def __init__(self, base, rank, alpha=2.0):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Parameter(randn(rank, base.in_features, seed=1) * 0.1)
            self.up = nn.Parameter(torch.zeros(base.out_features, rank))
            self.scaling = alpha / rank
            self.merged = False

        def forward(self, x):
            if self.merged:
                return self.base(x)
            return self.base(x) + F.linear(F.linear(x, self.down), self.up) * self.scaling

        @torch.no_grad()
        def merge(self):
            self.base.weight += self.up @ self.down * self.scaling
            self.merged = True

    model = Adapted(nn.Linear(6, 5), 2)
    optimizer = torch.optim.SGD([model.down, model.up], lr=0.5)
    compiled, found = compile(model), []
    for step in range(3):
        loss = compiled(randn(4, 6, seed=step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    before = compiled(randn(4, 6)).detach()
    model.merge()
    return found, before, compiled(randn(4, 6)).detach()


@program
def fake_quantisation(compile):
    class Quantised(nn.Module):
        def __init__(self, bits=8):
            super().__init__()
            self.levels = 2 ** (bits - 1) - 1
            self.layer = nn.Linear(6, 6)
            self.register_buffer("peak", torch.tensor(0.0))

        def forward(self, x):
            if self.training:
                self.peak.mul_(0.9).add_(0.1 * x.detach().abs().max())
            scale = self.peak / self.levels
            rounded = (x / scale).round().clamp(-self.levels, self.levels) * scale
            return self.layer(x + (rounded - x).detach())

    model = Quantised()
    compiled, found = compile(model), []
    for step in range(3):
        y = compiled(randn(4, 6, seed=step))
        y.sum().backward()
        found += [y.detach(), model.peak.clone()]
    model.eval()
    return found, compiled(randn(4, 6)).detach(), gradients(model)


@program
def recurrent_cell_by_hand(compile):
    class Cell(nn.Module):
        def __init__(self, size, hidden):
            super().__init__()
            self.of_input, self.of_state = (
                nn.Linear(size, 3 * hidden),
                nn.Linear(hidden, 3 * hidden),
            )

        def forward(self, xs, state):
            states = []
            for x in xs.unbind(1):
                new = self.of_input(x).chunk(3, -1)
                old = self.of_state(state).chunk(3, -1)
                reset, update = torch.sigmoid(new[0] + old[0]), torch.sigmoid(new[1] + old[1])
                state = update * state + (1 - update) * torch.tanh(new[2] + reset * old[2])
                states.append(state)
            return torch.stack(states, 1), state

    model = Cell(3, 4)
    compiled, found = compile(model), []
    for length in (3, 5, 7):
        states, last = compiled(randn(2, length, 3), torch.zeros(2, 4))
        (states.sum() + last.sum()).backward()
        found += [states.detach(), last.detach()]
    return found, gradients(model)


@program
def attention_with_a_cache(compile):
    projection = nn.Linear(8, 24)

    @compile
    @torch.no_grad()
    def decode(x, keys, values, position):
        query, key, value = projection(x).chunk(3, -1)
        keys[:, position], values[:, position] = key, value
        scores = query[:, None] @ keys[:, : position + 1].transpose(1, 2) / math.sqrt(8)
        return (scores.softmax(-1) @ values[:, : position + 1])[:, 0]

    keys, values, x, found = torch.zeros(2, 6, 8), torch.zeros(2, 6, 8), torch.ones(2, 8), []
    for position in range(6):
        x = decode(x, keys, values, position)
        found.append(x.clone())
    return found, keys, values


@program
def grouped_attention(compile):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.kv = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x, mask=None):
            batch, length, _ = x.shape
            q = self.q(x).view(batch, length, 4, 2).transpose(1, 2)
            k, v = self.kv(x).view(batch, length, 2, 2, 2).permute(3, 0, 2, 1, 4)
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
            return y.transpose(1, 2).reshape(batch, length, -1)

    model = Attention()
    compiled, found = compile(model), []
    for length in (4, 6, 8):
        y = compiled(randn(2, length, 8))
        y.sum().backward()
        found += [
            y.detach(),
            compiled(randn(2, length, 8), torch.ones(length, length) > 0).detach(),
        ]
    return found, gradients(model)


@program
def rotary_positions(compile):
    @compile
    def rotate(q):
        q = q.clone()
        half = q.shape[-1] // 2
        angles = torch.arange(q.shape[1])[:, None] / 10000 ** (torch.arange(half) / half)
        a, b = q[..., :half].clone(), q[..., half:].clone()
        q[..., :half] = a * angles.cos() - b * angles.sin()
        q[..., half:] = b * angles.cos() + a * angles.sin()
        return q

    return [rotate(randn(2, length, 8, seed=length)) for length in (4, 6, 8)]


@program
def network_with_skips(compile):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList([nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)])
            self.up = nn.ModuleList(
                [nn.ConvTranspose2d(16, 8, 2, 2), nn.ConvTranspose2d(16, 3, 2, 2)]
            )

        def forward(self, x):
            kept = []
            for layer in self.down:
                x = F.silu(layer(x))
                kept.append(x)
            for number, layer in enumerate(self.up):
                x = layer(x if number == 0 else torch.cat([x, kept[-1 - number]], 1))
            return x

    compiled = compile(Net())
    return [compiled(randn(1, 3, size, size)).detach() for size in (16, 24, 32)]


@program
def squeeze_and_excite(compile):
    class Block(nn.Module):
        expansion = 2

        def __init__(self, channels, dropped=0.0):
            super().__init__()
            inner = channels * self.expansion
            self.body = nn.Sequential(
                nn.Conv2d(channels, inner, 1), nn.GroupNorm(2, inner), nn.SiLU()
            )
            self.squeeze = nn.Sequential(nn.Linear(inner, 2), nn.ReLU(), nn.Linear(2, inner))
            self.out, self.dropped = nn.Conv2d(inner, channels, 1), dropped

        def forward(self, x):
            y = self.body(x)
            y = y * self.squeeze(y.mean((2, 3))).sigmoid()[:, :, None, None]
            if self.training and self.dropped > 0:
                y = y * (torch.rand(len(y), 1, 1, 1) >= self.dropped) / (1 - self.dropped)
            return x + self.out(y)

    model = nn.Sequential(Block(4), Block(4)).eval()
    y = compile(model)(randn(2, 4, 6, 6))
    y.mean().backward()
    return y.detach(), gradients(model)


@program
def vision_patches(compile):
    class Embedding(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 8, 4, 4)
            self.first = nn.Parameter(torch.zeros(1, 1, 8))
            self.positions = nn.Parameter(randn(1, 17, 8, seed=2))

        def forward(self, x):
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.first.expand(len(x), -1, -1), x], 1)
            old, new = self.positions.shape[1] - 1, x.shape[1] - 1
            positions = self.positions
            if new != old:
                side = int(math.sqrt(old))
                grid = positions[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
                grid = F.interpolate(grid, size=(int(math.sqrt(new)),) * 2, mode="bilinear")
                positions = torch.cat([positions[:, :1], grid.flatten(2).transpose(1, 2)], 1)
            return x + positions

    model = Embedding()
    compiled, found = compile(model), []
    for size in (16, 24):
        y = compiled(randn(2, 3, size, size))
        y.sum().backward()
        found.append(y.detach())
    return found, gradients(model)


@program
def graph_convolution(compile):
    layer = nn.Linear(4, 4, bias=False)

    @compile
    def forward(x, edges):
        source, target = edges
        degree = torch.zeros(len(x)).index_add_(0, target, torch.ones(len(target)))
        norm = degree.clamp(min=1).rsqrt()
        messages = layer(x)[source] * (norm[source] * norm[target])[:, None]
        return torch.zeros_like(x).scatter_add(0, target[:, None].expand_as(messages), messages)

    x = randn(5, 4).requires_grad_()
    y = forward(x, torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]]))
    y.square().sum().backward()
    return y.detach(), x.grad, layer.weight.grad


@program
def modules_that_count(compile):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.history, self.layer = 0, [], nn.Linear(3, 3)
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            self.calls += 1
            if self.training:
                self.mean = self.mean + (x.mean(0) - self.mean) / self.calls
            y = self.layer(x - self.mean) * self.calls
            self.history.append(y.sum().detach())
            return y

    model = Counting()
    compiled = compile(model)
    found = [compiled(randn(2, 3, seed=step)).detach() for step in range(5)]
    return found, model.history, model.calls, model.mean


@program
def tied_weights_and_a_hook(compile):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    seen = {}
    model[0].register_forward_hook(lambda _module, _args, result: seen.update(last=result.detach()))
    compiled, found = compile(model), []
    for step in range(2):
        y = compiled(randn(2, 3, seed=step))
        y.sum().backward()
        found.append(y.detach())
    return found, seen, gradients(model)


@program
def recomputed_blocks(compile):
    from torch.utils.checkpoint import checkpoint

    blocks = nn.ModuleList(mlp(4, 8, 4) for _ in range(3))

    @compile
    def forward(x):
        for block in blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x

    y = forward(randn(3, 4))
    y.square().mean().backward()
    return y.detach(), gradients(blocks)


@program
def custom_gradients(compile):
    class Clamped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clamp(-1, 1)

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * (x.abs() < 2)

    x = randn(6).requires_grad_()
    loss = compile(lambda x: (Clamped.apply(x * 2) ** 2).sum())(x)
    loss.backward()
    return loss.detach(), x.grad
