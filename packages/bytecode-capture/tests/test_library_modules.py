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
            nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.LogSoftmax, nn.Softmin, nn.Identity,
        )
    },
    "Linear": (lambda: nn.Linear(3, 4), r(2, 3)),
    "Sequential": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU()), r(2, 3)),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(2), r(1, 2, 9)),
    "AdaptiveAvgPool3d": (lambda: nn.AdaptiveAvgPool3d(2), r(1, 2, 5, 5, 5)),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(2), r(1, 2, 9)),
    "AdaptiveMaxPool3d": (lambda: nn.AdaptiveMaxPool3d(2), r(1, 2, 5, 5, 5)),
    "AvgPool1d": (lambda: nn.AvgPool1d(3), r(1, 2, 9)),
    "AvgPool3d": (lambda: nn.AvgPool3d(2), r(1, 2, 5, 5, 5)),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), r(1, 2, 5, 5, 5)),
    "FractionalMaxPool3d": (lambda: nn.FractionalMaxPool3d(2, output_size=2), r(1, 2, 5, 5, 5)),
    "LPPool1d": (lambda: nn.LPPool1d(2, 3), r(1, 2, 9)),
    "LPPool3d": (lambda: nn.LPPool3d(2, 2), r(1, 2, 4, 4, 4)),
    "MaxUnpool1d": (lambda: nn.MaxUnpool1d(2), r(1, 2, 3), torch.tensor([[[0, 3, 5], [1, 2, 4]]])),
    "MaxUnpool2d": (lambda: nn.MaxUnpool2d(2), r(1, 1, 1, 2), torch.tensor([[[[0, 7]]]])),
    "MaxUnpool3d": (lambda: nn.MaxUnpool3d(2), r(1, 1, 1, 1, 2), torch.tensor([[[[[0, 15]]]]])),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(1, 2, 3), r(1, 1, 3, 3, 3)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), r(4, 3)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(2), r(2, 2, 3, 3, 3)),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(3).eval(), r(4, 3)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(3), r(2, 3, 5)),
    "InstanceNorm3d": (lambda: nn.InstanceNorm3d(2), r(1, 2, 3, 3, 3)),
    "Dropout1d": (nn.Dropout1d, r(2, 4, 3)),
    "Dropout3d": (nn.Dropout3d, r(2, 4, 3, 3, 3)),
    "FeatureAlphaDropout": (nn.FeatureAlphaDropout, r(2, 4, 3)),
    "GRUCell": (lambda: nn.GRUCell(3, 4), r(2, 3)),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0), 2, None, False),
        r(2, 3, 8),
    ),
    "TransformerDecoder": (
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0), 2), r(2, 3, 8), r(2, 3, 8),
    ),
    "UpsamplingBilinear2d": (lambda: nn.UpsamplingBilinear2d(scale_factor=2), r(1, 1, 3, 3)),
    "UpsamplingNearest2d": (lambda: nn.UpsamplingNearest2d(scale_factor=2), r(1, 1, 3, 3)),
    **{
        f"{kind}Pad{rank}d": (lambda k=kind, n=rank: getattr(nn, f"{k}Pad{n}d")(1), r(1, 2, *[4] * rank))
        for kind in ("Reflection", "Replication", "Circular", "Zero") for rank in (1, 2, 3)
    },
    "ConstantPad2d": (lambda: nn.ConstantPad2d(1, 3.0), r(1, 2, 4, 4)),
    "ConstantPad3d": (lambda: nn.ConstantPad3d(1, 3.0), r(1, 2, 4, 4, 4)),
    "L1Loss": (nn.L1Loss, r(3), r(3)),
    "BCELoss": (nn.BCELoss, torch.rand(3), torch.rand(3)),
    "MarginRankingLoss": (nn.MarginRankingLoss, r(3), r(3), torch.ones(3)),
    "MultiLabelMarginLoss": (nn.MultiLabelMarginLoss, r(2, 4), torch.tensor([[3, 0, -1, 1], [0, -1, 1, 2]])),
    "MultiLabelSoftMarginLoss": (nn.MultiLabelSoftMarginLoss, r(2, 4), torch.ones(2, 4)),
    "NLLLoss2d": (nn.NLLLoss2d, r(1, 3, 2, 2), torch.randint(0, 3, (1, 2, 2))),
    "SoftMarginLoss": (nn.SoftMarginLoss, r(3), torch.tensor([1, -1, 1])),
    "TripletMarginWithDistanceLoss": (nn.TripletMarginWithDistanceLoss, r(3, 2), r(3, 2), r(3, 2)),
}  # fmt: skip

# Why classes have no row.
BASES = {"Module", "Container", "RNNBase", "RNNCellBase"}
WITHOUT_A_FORWARD = {
    "ModuleDict",
    "ModuleList",
    "ParameterDict",
    "ParameterList",
}  # test_modules.py
BREAK = {"GaussianNLLLoss", "AdaptiveLogSoftmaxWithLoss", "CTCLoss"}  # values of tensors decide
BREAK_IN_TRAINING = {"CrossMapLRN2d"}  # an autograd function
ELSEWHERE = {"DataParallel", "LinearCrossEntropyLoss"}  # of several devices; not in all versions


def test_every_module_has_a_row():
    classes = {
        name
        for name, value in vars(nn).items()
        if isinstance(value, type) and issubclass(value, nn.Module) and not name.startswith("Lazy")
    }
    rows = {name.partition(",")[0] for name in MODULES}
    known = rows | BASES | WITHOUT_A_FORWARD | BREAK | BREAK_IN_TRAINING | ELSEWHERE
    assert classes <= known


def test_modules_that_break():
    loss = nn.GaussianNLLLoss()
    compiled = compile_frames(loss.__call__, run_graph)
    inputs = (r(3), r(3), torch.rand(3) + 0.1)
    assert same(compiled(*inputs), loss(*inputs))
    with pytest.raises(ValueError, match="negative"):
        compiled(*inputs[:2], -inputs[2])
    adaptive = nn.AdaptiveLogSoftmaxWithLoss(4, 6, [2])
    run_compiled = compile_frames(adaptive.__call__, run_graph)
    x = r(3, 4)
    assert same(tuple(run_compiled(x, INDICES)), tuple(adaptive(x, INDICES)))


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
