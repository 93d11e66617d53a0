"""The modules that torch comes with: each one graph, alike in results, gradients and buffers."""

from __future__ import annotations

import pytest
import torch
from differential import run_graph, same
from torch import nn
from torch import randn as r
from weft_bytecode_capture import CaptureOptions, compile_frames

torch.manual_seed(0)  # for the inputs below; each test seeds again
INDICES = torch.tensor([1, 2, 3])

# What makes the module, and its inputs.
MODULES = {
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3, padding="same"), r(2, 3, 8)),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3, stride=2, groups=1, bias=False), r(2, 3, 8, 8)),
    "Conv3d": (lambda: nn.Conv3d(1, 2, 3), r(1, 1, 5, 5, 5)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(3, 4, 3, stride=2), r(2, 3, 8)),
    "ConvTranspose2d": (
        lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1),
        r(2, 3, 8, 8),
    ),
    "Unfold": (lambda: nn.Unfold(3), r(1, 2, 5, 5)),
    "Fold": (lambda: nn.Fold((4, 5), (2, 2)), r(1, 12, 12)),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), r(1, 2, 8)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2, return_indices=True), r(1, 2, 8, 8)),
    "AvgPool2d": (lambda: nn.AvgPool2d(3), r(1, 2, 9, 9)),
    "LPPool2d": (lambda: nn.LPPool2d(2, 3), r(1, 2, 9, 9)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((2, None)), r(1, 2, 9, 9)),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(2), r(1, 2, 9, 9)),
    "FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(2, output_size=3), r(1, 2, 9, 9)),
    "ReflectionPad2d": (lambda: nn.ReflectionPad2d(1), r(1, 2, 4, 4)),
    "ZeroPad2d": (lambda: nn.ZeroPad2d(1), r(1, 2, 4, 4)),
    "ConstantPad1d": (lambda: nn.ConstantPad1d(1, 3.0), r(1, 2, 4)),
    "CircularPad1d": (lambda: nn.CircularPad1d(1), r(1, 2, 4)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), r(2, 4, 3)),
    "InstanceNorm2d": (
        lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
        r(2, 3, 4, 4),
    ),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), r(1, 4, 4, 4)),
    "LayerNorm": (lambda: nn.LayerNorm(4), r(2, 4)),
    "RMSNorm": (lambda: nn.RMSNorm(4), r(2, 4)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), r(2, 3, 4, 4)),
    "BatchNorm2d, eval": (lambda: nn.BatchNorm2d(3).eval(), r(2, 3, 4, 4)),
    "RNN": (lambda: nn.RNN(3, 4, 2), r(5, 2, 3)),
    "LSTM": (lambda: nn.LSTM(3, 4, 2, bidirectional=True), r(5, 2, 3)),
    "GRU": (lambda: nn.GRU(3, 4, batch_first=True), r(5, 2, 3)),
    "RNNCell": (lambda: nn.RNNCell(3, 4), r(2, 3)),
    "LSTMCell": (lambda: nn.LSTMCell(3, 4), r(2, 3)),
    "Transformer": (
        lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval(),
        r(2, 3, 8),
        r(2, 4, 8),
    ),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16).eval(),
        r(2, 3, 8),
        r(2, 3, 8),
    ),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
        r(2, 3, 8),
    ),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), r(3, 2, 4), r(3, 2, 4), r(3, 2, 4)),
    "Bilinear": (lambda: nn.Bilinear(3, 4, 5), r(2, 3), r(2, 4)),
    "Embedding": (lambda: nn.Embedding(10, 3, padding_idx=0), torch.arange(4)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(10, 3, mode="max"), torch.arange(4).view(2, 2)),
    "CosineSimilarity": (nn.CosineSimilarity, r(2, 3), r(2, 3)),
    "PairwiseDistance": (nn.PairwiseDistance, r(2, 3), r(2, 3)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), r(1, 4, 2, 2)),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), r(1, 1, 4, 4)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), r(1, 1, 4, 4)),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), r(1, 4, 2, 2)),
    "Flatten": (nn.Flatten, r(2, 3, 4)),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 2)), r(2, 4)),
    "Dropout": (nn.Dropout, r(2, 4)),
    "Dropout2d": (nn.Dropout2d, r(2, 4, 3, 3)),
    "AlphaDropout": (nn.AlphaDropout, r(2, 4)),
    "RReLU": (nn.RReLU, r(2, 4)),
    "Softmax2d": (nn.Softmax2d, r(1, 2, 3, 3)),
    "GLU": (nn.GLU, r(2, 4)),
    "PReLU": (nn.PReLU, r(2, 4)),
    "Threshold": (lambda: nn.Threshold(0.1, 2), r(2, 4)),
    "Softmax": (lambda: nn.Softmax(-1), r(2, 4)),
    "CrossEntropyLoss": (lambda: nn.CrossEntropyLoss(label_smoothing=0.1), r(3, 5), INDICES),
    "NLLLoss": (nn.NLLLoss, r(3, 5), INDICES),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss, r(3), torch.ones(3)),
    "MSELoss": (nn.MSELoss, r(3), r(3)),
    "SmoothL1Loss": (nn.SmoothL1Loss, r(3), r(3)),
    "HuberLoss": (nn.HuberLoss, r(3), r(3)),
    "KLDivLoss": (lambda: nn.KLDivLoss(reduction="batchmean"), r(3, 2), torch.rand(3, 2)),
    "TripletMarginLoss": (nn.TripletMarginLoss, r(3, 2), r(3, 2), r(3, 2)),
    "MultiMarginLoss": (nn.MultiMarginLoss, r(3, 5), INDICES),
    "PoissonNLLLoss": (nn.PoissonNLLLoss, r(3), r(3)),
    "CosineEmbeddingLoss": (nn.CosineEmbeddingLoss, r(3, 2), r(3, 2), torch.ones(3)),
    "HingeEmbeddingLoss": (nn.HingeEmbeddingLoss, r(3), torch.ones(3)),
    **{
        kind.__name__: (kind, r(2, 4))
        for kind in (
            nn.ELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardtanh, nn.Hardswish, nn.LeakyReLU, nn.LogSigmoid,
            nn.ReLU, nn.ReLU6, nn.SELU, nn.CELU, nn.GELU, nn.Sigmoid, nn.SiLU, nn.Mish, nn.Softplus,
            nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink,
        )
    },
}  # fmt: skip


def run(module, call, inputs):
    """Results, gradients of inputs and parameters, and buffers of one call."""
    leaves = [
        value.clone().requires_grad_(value.is_floating_point()) if torch.is_tensor(value) else value
        for value in inputs
    ]
    torch.manual_seed(1)
    results = call(*leaves)
    flat = torch.utils._pytree.tree_leaves(results)
    total = sum(value.double().pow(2).sum() for value in flat if value.requires_grad)
    module.zero_grad()
    total.backward()
    gradients = [value.grad for value in (*leaves, *module.parameters())]
    return flat, gradients, [buffer.clone() for buffer in module.buffers()]


@pytest.mark.parametrize("name", MODULES)
def test_one_graph_and_eagers_gradients(name):
    build, *inputs = MODULES[name]
    torch.manual_seed(0)
    plain = build()
    torch.manual_seed(0)
    other = build()
    compiled = compile_frames(other.__call__, run_graph, CaptureOptions(fullgraph=True))
    for _ in range(2):
        assert same(run(other, compiled, inputs), run(plain, plain, inputs))
