"""Two plain PyTorch networks with random weights: a transformer encoder and a residual network."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Multi-head self-attention; ``x`` is [batch, length, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        result: torch.Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_before_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_before_expansion = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_before_attention(x))
        result: torch.Tensor = x + self.contract(F.gelu(self.expand(self.norm_before_expansion(x))))
        return result


class Transformer(nn.Module):
    """A token classifier; ``tokens`` is int64 [batch, length], the result [batch, length, classes]."""

    def __init__(
        self, vocabulary: int = 1000, width: int = 128, heads: int = 4, depth: int = 4
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(512, width) * 0.02)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        result: torch.Tensor = self.classifier(self.norm(x))
        return result


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        width = channels * stride
        self.conv_1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.norm_1 = nn.BatchNorm2d(width)
        self.conv_2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm_2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1:
            self.shortcut = nn.Conv2d(channels, width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm_1(self.conv_1(x)), inplace=True)
        y = self.norm_2(self.conv_2(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class ConvolutionalNetwork(nn.Module):
    """A residual image classifier; ``image`` is [batch, 3, height, width]."""

    def __init__(self, channels: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()
        )
        self.blocks = nn.Sequential(
            ResidualBlock(channels),
            ResidualBlock(channels, 2),
            ResidualBlock(2 * channels),
            ResidualBlock(2 * channels, 2),
        )
        self.classifier = nn.Linear(4 * channels, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = self.blocks(self.stem(image))
        result: torch.Tensor = self.classifier(features.mean(dim=(2, 3)))
        return result
