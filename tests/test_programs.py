"""Programs as people write them, compiled whole: equal to eager, no graph break."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import weft
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

R = torch.randn


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 16), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 20), nn.Sigmoid())

    def forward(self, x, noise):
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        sample = mean + noise * torch.exp(0.5 * log_variance)
        return self.decoder(sample), mean, log_variance


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        weights, chosen = torch.topk(self.gate(x).softmax(-1), 2)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            share = ((chosen == k).float() * weights).sum(-1, keepdim=True)
            out = out + share * expert(x)
        return out


class GraphConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x, edges):
        source, target = edges
        ones = torch.ones(target.numel())
        degree = torch.ones(x.size(0)).scatter_add(0, target, ones)
        means = {}
        for number, layer in enumerate(self.layers):
            message = torch.zeros_like(x).index_add_(0, target, layer(x)[source])
            x = F.relu(message / degree[:, None]) + x
            means[f"layer_{number}"] = x.mean()
        return {"x": x, **means}


class SqueezeAndExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 2),
            nn.SiLU(),
            nn.Linear(2, 8),
            nn.Hardsigmoid(),
        )
        self.depthwise, self.up = nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.ConvTranspose2d(8, 3, 2, 2)

    def forward(self, x):
        x = F.hardswish(self.norm(self.stem(x)))
        x = self.depthwise(x * self.excite(x)[:, :, None, None])
        larger = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return torch.tanh(self.up(x)), larger


class TimeConditioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.GroupNorm(4, 16)

    def forward(self, x, t):
        frequencies = torch.exp(-math.log(10000) * torch.arange(8, dtype=torch.float32) / 8)
        angles = t[:, None].float() * frequencies[None]
        embedding = torch.cat([angles.sin(), angles.cos()], -1)
        return self.norm(x + self.linear(embedding)[:, :, None, None])


class Settings:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings(activation="gelu", dropout=0.1, names=["a", "b"])
        self.layers = nn.ModuleDict({name: nn.Linear(8, 8) for name in self.settings.names})
        self.register_buffer("scale", torch.tensor(2.0))
        self.calls = 0

    def forward(self, x, *, mask=None, **others):
        self.calls += 1
        activation = getattr(F, self.settings.activation)
        for layer in self.layers.values():
            x = F.dropout(activation(layer(x)), self.settings.dropout, self.training)
            if mask is not None:
                x = x.masked_fill(mask, 0)
        return {"out": x * self.scale, "others": sorted(others)}


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 8, mode="mean")
        self.padded = nn.Embedding(50, 8, padding_idx=0)

    def forward(self, positions):
        return self.bag(positions), self.padded(positions).sum(1)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=True)


def normed_linears() -> nn.Module:
    parametrizations = nn.utils.parametrizations
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(8, 8)),
        parametrizations.spectral_norm(nn.Linear(8, 8)),
    )


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)


def recurrent(kind: type[nn.RNNBase]) -> Callable[[], nn.Module]:
    return lambda: kind(8, 16, 2, batch_first=True, bidirectional=True)


def positional_encoding(x):
    parts = [x]
    for octave in range(4):
        for function in (torch.sin, torch.cos):
            parts.append(function(2.0**octave * math.pi * x))
    return torch.cat(parts, -1)


def beam_search_step(logits, width=3):
    scores, flat = logits.log_softmax(-1).flatten(1).topk(width)
    return scores, flat // logits.size(-1), flat % logits.size(-1)


def rotary(q, cosine, sine):
    first, second = q.chunk(2, -1)
    return q * cosine + torch.cat((-second, first), -1) * sine


def in_place(x):
    y = x.clone()
    y[:, 0] = 0
    y[y > 1] = 1.0
    y.mul_(2).add_(1)
    y[..., -1] += 3
    return y


def box_overlap(a, b):
    def area(boxes):
        return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])

    low, high = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
    width, height = (high - low).clamp(min=0).unbind(-1)
    overlap = width * height
    return overlap / (area(a)[:, None] + area(b) - overlap)


def statistics(x):
    return (
        *(x.mean(), x.std(), x.var(0), x.median(), x.amin(1), x.norm()),
        *(torch.linalg.norm(x, dim=1), x.max(1), x.argmin(), x.cumsum(0), x.sort(1), x.prod(1)),
    )


def losses(x, target):
    return (
        F.cross_entropy(x, target, label_smoothing=0.1),
        F.nll_loss(x.log_softmax(1), target),
        F.mse_loss(x, x * 2),
        F.smooth_l1_loss(x, x + 1),
        F.kl_div(x.log_softmax(1), x.softmax(1), reduction="batchmean"),
        F.binary_cross_entropy_with_logits(x, x.sigmoid()),
        F.cosine_similarity(x, x + 1),
        F.triplet_margin_loss(x, x + 1, x - 2),
        F.huber_loss(x, x * 3),
    )


def contractions(a, b):
    product = torch.einsum("bij,bjk->bik", a, b)
    return product, torch.einsum("bij->ji", a), torch.einsum("bij,bij->b", a, a)


def spectra(x):
    spectrum = torch.fft.rfft(x)
    return spectrum.abs(), torch.fft.irfft(spectrum), torch.view_as_real(torch.polar(x.abs(), x))


def piecewise(x):
    low = torch.where(x < -1, x.exp(), torch.tensor(0.5))
    return (
        *(torch.where(x > 0, x.sqrt(), low), x.clamp(-1, 1).round()),
        *(torch.nan_to_num(x / 0), x.lerp(x * 2, 0.3)),
    )


def patches(x):
    return (
        F.fold(F.unfold(x, 2, stride=2), (8, 8), 2, stride=2),
        x.unfold(2, 3, 2).sum(-1),
        F.pixel_shuffle(x.reshape(1, 4, 4, 8), 2),
        F.pad(x, (1, 2, 3, 0), mode="reflect"),
        F.avg_pool2d(x, 3, 2, 1),
    )


def reduced(x, mode):
    match mode:
        case "sum":
            result = x.sum()
        case "mean" | "avg":
            result = x.mean()
        case {"factor": factor}:
            result = x * factor
        case [first, *rest]:
            result = x * first + len(rest)
        case _:
            raise ValueError(f"bad {mode!r}")
    return result, f"{mode}-{x.shape[0]:03d}"


def causal_attention(x):
    seen = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).tril()
    scores = (x @ x.mT / math.sqrt(x.shape[-1])).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ x, F.scaled_dot_product_attention(x, x, x, is_causal=True)


EDGES = torch.tensor([[0, 1, 2, 3, 1], [1, 0, 3, 2, 2]])

# Name: what makes the module (or the function itself), the arguments of each call.
MODULES: dict[str, tuple[Callable[[], nn.Module], Sequence[tuple[Any, ...]]]] = {
    "encoder": (encoder, [(R(2, 5, 16),), (R(1, 7, 16),)]),
    "attention": (SelfAttention, [(R(2, 5, 16),)]),
    "lstm": (recurrent(nn.LSTM), [(R(2, 5, 8),)]),
    "gru": (recurrent(nn.GRU), [(R(2, 5, 8),)]),
    "rnn": (recurrent(nn.RNN), [(R(2, 5, 8),)]),
    "variational": (Variational, [(R(3, 20), R(3, 4)), (R(1, 20), R(1, 4))]),
    "experts": (Experts, [(R(3, 8),)]),
    "graph": (GraphConvolution, [(R(4, 8), EDGES), (R(6, 8), EDGES)]),
    "squeeze": (SqueezeAndExcite, [(R(2, 3, 16, 16),), (R(1, 3, 8, 12),)]),
    "time": (TimeConditioned, [(R(2, 16, 4, 4), torch.tensor([3, 7]))]),
    "configured": (Configured, [(R(2, 8),), (R(3, 8),)]),
    "normed": (normed_linears, [(R(2, 8),)]),
    "embeddings": (Embeddings, [(torch.arange(12).view(3, 4) * 4,)]),
}
FUNCTIONS: dict[Callable[..., Any], Sequence[tuple[Any, ...]]] = {
    positional_encoding: [(R(5, 3),), (R(2, 4),)],
    beam_search_step: [(R(2, 5, 9),), (R(2, 5, 9), 2)],
    rotary: [(R(2, 4, 8), R(4, 8), R(4, 8))],
    in_place: [(R(4, 5),), (R(1, 2),)],
    box_overlap: [(R(4, 4), R(6, 4))],
    statistics: [(R(4, 5),)],
    losses: [(R(4, 5), torch.tensor([1, 2, 0, 4]))],
    contractions: [(R(2, 3, 4), R(2, 4, 5))],
    spectra: [(R(3, 8),)],
    piecewise: [(R(9),), (torch.tensor([math.nan, math.inf, -math.inf, 0.0]),)],
    patches: [(R(1, 2, 8, 8),)],
    reduced: [(R(3), "sum"), (R(3), "avg"), (R(3), {"factor": 3}), (R(3), [2, 3, 4])],
    causal_attention: [(R(2, 6, 8),)],
}


def check(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> None:
    compiled = weft.compile(function, fullgraph=True)
    with torch.no_grad():
        for arguments in [*calls, *calls]:
            expected = tree_leaves(function(*arguments))
            results = tree_leaves(compiled(*arguments))
            assert len(results) == len(expected)
            for result, value in zip(results, expected, strict=True):
                if isinstance(value, torch.Tensor):
                    torch.testing.assert_close(result, value, rtol=1e-4, atol=1e-5, equal_nan=True)
                else:
                    assert result == value


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    if name == "encoder" and torch.__version__ < "2.13":
        pytest.skip("the fused layer of this torch does not run on fake tensors")
    make, calls = MODULES[name]
    check(make().eval(), calls)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_function(function: Callable[..., Any]) -> None:
    check(function, FUNCTIONS[function])


def counted_from_the_end(x, n):
    tail = x[:, -n:]
    written = x.clone()
    written[:, -n:] *= 2
    return tail @ tail.mT, x[:, : -n + 1].sum(), written


def test_positions_that_are_symbols() -> None:
    compiled = weft.compile(counted_from_the_end, fullgraph=True)
    log = weft.CompileLog()
    with torch.no_grad(), weft.observe(log):
        for rows, columns, n in ((2, 8, 3), (3, 9, 4), (5, 12, 7), (4, 20, 2)):
            x = R(rows, columns)
            for result, value in zip(compiled(x, n), counted_from_the_end(x, n), strict=True):
                torch.testing.assert_close(result, value)
    assert len(log.graphs) == 2


def test_state_of_a_module_is_kept() -> None:
    module = Configured().eval()
    compiled = weft.compile(module, fullgraph=True)
    with torch.no_grad():
        for count in (1, 2, 3):
            compiled(R(2, 8), mask=None, other=1)
            assert module.calls == count
