"""Plain PyTorch models: a residual network, a U-Net and an LSTM written as a Python loop."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .case import ModelCase


class Bottleneck(nn.Module):
    """The residual block of ResNet-50: 1x1, 3x3 and 1x1 convolutions around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """A ResNet of bottleneck blocks; ``x`` is [batch, 3, height, width], the result [batch, classes]."""

    def __init__(self, depths: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        stages = []
        inputs = width
        for index, depth in enumerate(depths):
            stage_width = width * 2**index
            blocks = []
            for block in range(depth):
                blocks.append(Bottleneck(inputs, stage_width, 2 if block == 0 and index else 1))
                inputs = 4 * stage_width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        for stage in self.stages:
            x = stage(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class DoubleConvolution(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(4, outputs),
            nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.GroupNorm(4, outputs),
            nn.SiLU(),
        )


class UNet(nn.Module):
    """A U-Net; ``x`` is [batch, 3, height, width], height and width divisible by ``2**depth``."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.stem = DoubleConvolution(3, width)
        self.down = nn.ModuleList(DoubleConvolution(a, b) for a, b in pairwise(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))
        self.merge = nn.ModuleList(DoubleConvolution(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        skips = []
        for block in self.down:
            skips.append(x)
            x = block(F.max_pool2d(x, 2))
        for level in reversed(range(len(self.up))):
            x = self.up[level](x)
            x = self.merge[level](torch.cat([skips.pop(), x], dim=1))
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(x)


class LoopLSTM(nn.Module):
    """An LSTM as a Python loop over time; ``x`` is [length, batch, inputs]."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.input_gates = nn.Linear(inputs, 4 * hidden)
        self.hidden_gates = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        h = x.new_zeros(x.shape[1], self.hidden)
        c = torch.zeros_like(h)
        outputs = []
        for step in range(x.shape[0]):
            gates = self.input_gates(x[step]) + self.hidden_gates(h)
            i, f, g, o = gates.chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs), (h, c)


def _image(large: bool, variant: int) -> dict[str, Any]:
    size = (224 if large else 64) + 32 * variant
    return {"x": torch.randn(1 + variant, 3, size, size)}


def _unet_image(large: bool, variant: int) -> dict[str, Any]:
    size = (128 if large else 32) + 16 * variant
    return {"x": torch.randn(1 + variant, 3, size, size)}


def _sequence(large: bool, variant: int) -> dict[str, Any]:
    length, batch, width = (32, 8, 256) if large else (6, 2, 16)
    return {"x": torch.randn(length + 2 * variant, batch + variant, width)}


def _resnet(large: bool) -> nn.Module:
    return (ResNet((3, 4, 6, 3), 64, 1000) if large else ResNet((1, 1, 2), 8, 10)).eval()


PLAIN_MODELS = (
    ModelCase("resnet", _resnet, _image),
    ModelCase("unet", lambda large: UNet(*((32, 3) if large else (8, 2))).eval(), _unet_image),
    ModelCase(
        "lstm", lambda large: LoopLSTM(*((256, 256) if large else (16, 16))).eval(), _sequence
    ),
)
