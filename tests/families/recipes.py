"""Modules of torch.nn and small recipes made from them, with the inputs of their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .inputs import SIZES

Recipe = Callable[[], tuple[nn.Module, list[dict[str, Any]]]]


class Positional(nn.Module):
    """Calls a module with the inputs in order, as most of torch's own take them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **inputs: Any) -> Any:
        return self.module(*inputs.values())


def _sequences(module: Callable[[], nn.Module], count: int = 1) -> Recipe:
    def make() -> tuple[nn.Module, list[dict[str, Any]]]:
        calls = [{f"x{i}": torch.randn(*size, 16) for i in range(count)} for size in SIZES]
        return Positional(module()).eval(), calls

    return make


def _images(module: Callable[[], nn.Module]) -> Recipe:
    def make() -> tuple[nn.Module, list[dict[str, Any]]]:
        return Positional(module()).eval(), [{"x": torch.randn(b, 3, 32, 32)} for b, _ in SIZES]

    return make


class _Packed(nn.Module):
    """A recurrent network over sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(16, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = torch.arange(x.shape[1], x.shape[1] - x.shape[0], -1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        out, _ = self.rnn(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return padded


class _Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


RECIPES: dict[str, Recipe] = {
    f"torch.nn/{name}": recipe
    for name, recipe in {
        "Linear": _sequences(lambda: nn.Linear(16, 8)),
        "Bilinear": _sequences(lambda: nn.Bilinear(16, 16, 8), 2),
        "LSTM": _sequences(lambda: nn.LSTM(16, 8, 2, batch_first=True)),
        "LSTM with projections": _sequences(lambda: nn.LSTM(16, 8, proj_size=4, batch_first=True)),
        "GRU": _sequences(lambda: nn.GRU(16, 8, bidirectional=True, batch_first=True)),
        "RNN": _sequences(lambda: nn.RNN(16, 8, batch_first=True)),
        "packed GRU": _sequences(_Packed),
        "TransformerEncoder": _sequences(
            lambda: nn.TransformerEncoder(
                nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 2
            )
        ),
        "Transformer": _sequences(
            lambda: nn.Transformer(16, 2, 2, 2, 32, 0.0, batch_first=True), 2
        ),
        "MultiheadAttention": _sequences(lambda: nn.MultiheadAttention(16, 2, batch_first=True), 3),
        "LayerNorm": _sequences(lambda: nn.Sequential(nn.LayerNorm(16), nn.GELU(), nn.RMSNorm(16))),
        "convolutions": _images(
            lambda: nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1),
                nn.BatchNorm2d(8),
                nn.ReLU(),
                nn.MaxPool2d(2),
                _Residual(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU()),
                nn.ConvTranspose2d(8, 4, 2, 2),
                nn.AdaptiveAvgPool2d(5),
                nn.Flatten(),
                nn.Linear(100, 4),
            )
        ),
        "upsampling": _images(
            lambda: nn.Sequential(
                nn.Conv2d(3, 16, 3),
                nn.PixelShuffle(2),
                nn.Upsample(scale_factor=2, mode="bilinear"),
                nn.InstanceNorm2d(4),
                nn.PReLU(),
            )
        ),
        "weight norm": _sequences(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(16, 8))),
        "spectral norm": _sequences(
            lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(16, 8))
        ),
    }.items()
}
