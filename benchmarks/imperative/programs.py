"""The programs and their inputs: plain PyTorch, written as a user would.

The first eight are the workloads of the TensorSSA paper (Ma et al., DAC '24, section 5.1) in own
implementations, with batch size 1 and sequences of 50 to 100 steps.  Weights are random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Program:
    """``function`` on what ``inputs()`` makes; scripted with torch.jit where that takes it."""

    function: Callable[..., object]
    inputs: Callable[[], Inputs]


def yolov3(prediction: Tensor, anchors: Tensor) -> Tensor:
    """Boxes of one scale: offsets and anchors applied in place to slices of the prediction."""
    out = prediction.clone()
    size = 32
    grid = torch.arange(size, dtype=torch.float32, device=out.device)
    out[..., 0:2] = torch.sigmoid(out[..., 0:2])
    out[..., 0] += grid.view(1, 1, 1, size)
    out[..., 1] += grid.view(1, 1, size, 1)
    out[..., 2:4] = torch.exp(out[..., 2:4]) * anchors.view(1, 3, 1, 1, 2)
    out[..., 0:4] *= 16.0
    out[..., 4:] = torch.sigmoid(out[..., 4:])
    return out.view(out.shape[0], -1, 85)


def ssd(locations: Tensor, scores: Tensor, priors: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes from offsets to priors, to corners in place."""
    boxes = torch.empty_like(locations)
    boxes[..., :2] = priors[:, :2] + locations[..., :2] * 0.1 * priors[:, 2:]
    boxes[..., 2:] = priors[:, 2:] * torch.exp(locations[..., 2:] * 0.2)
    boxes[..., :2] -= boxes[..., 2:] / 2
    boxes[..., 2:] += boxes[..., :2]
    return boxes, torch.softmax(scores, -1)


def yolact(masks: Tensor, boxes: Tensor) -> Tensor:
    """Masks cropped to their boxes, scaled to pixels in place."""
    scaled = boxes.clone()
    scaled[:, 0::2] *= float(masks.shape[1])
    scaled[:, 1::2] *= float(masks.shape[0])
    scaled[:, 0] = torch.clamp(scaled[:, 0] - 1, min=0)
    scaled[:, 2] = torch.clamp(scaled[:, 2] + 1, max=float(masks.shape[1]))
    rows = torch.arange(masks.shape[0], dtype=torch.float32, device=masks.device).view(-1, 1, 1)
    columns = torch.arange(masks.shape[1], dtype=torch.float32, device=masks.device)
    columns = columns.view(1, -1, 1)
    inside = (columns >= scaled[:, 0]) & (columns < scaled[:, 2])
    inside = inside & (rows >= scaled[:, 1]) & (rows < scaled[:, 3])
    return torch.sigmoid(masks) * inside


def fcos(
    regression: Tensor, centerness: Tensor, scores: Tensor, points: Tensor
) -> tuple[Tensor, Tensor]:
    """Boxes from distances to a point, written side by side."""
    boxes = torch.empty_like(regression)
    for side in range(2):
        boxes[..., side] = points[:, side] - regression[..., side]
        boxes[..., 2 + side] = points[:, side] + regression[..., 2 + side]
    boxes.clamp_(0, 800)
    return boxes, torch.sqrt(torch.sigmoid(scores) * torch.sigmoid(centerness))


def nasrnn(x: Tensor, h: Tensor, c: Tensor, wx: Tensor, wh: Tensor) -> tuple[Tensor, Tensor]:
    """The cell found by architecture search (Zoph and Le 2017), over a sequence."""
    outputs = torch.zeros_like(x)
    for t in range(x.shape[0]):
        i = (x[t] @ wx).view(8, -1, 128)
        g = (h @ wh).view(8, -1, 128)
        l1 = torch.sigmoid(i[0] + g[0])
        l2 = torch.relu(i[1] + g[1])
        l3 = torch.sigmoid(i[2] + g[2])
        l4 = torch.relu(i[3] * g[3])
        l5 = torch.tanh(i[4] + g[4])
        l6 = torch.sigmoid(i[5] + g[5])
        l7 = torch.tanh(i[6] + g[6])
        l8 = torch.sigmoid(i[7] + g[7])
        c = torch.tanh(torch.tanh(l1 * l2 + c) * torch.tanh(l3 + l4))
        h = torch.tanh(c * torch.tanh(torch.tanh(l5 * l6) + torch.sigmoid(l7 + l8)))
        outputs[t] = h
    return outputs, c


def lstm(x: Tensor, h: Tensor, c: Tensor, wx: Tensor, wh: Tensor) -> tuple[Tensor, Tensor]:
    """A long short-term memory written out, over a sequence."""
    outputs = torch.zeros(x.shape[0], x.shape[1], 128, device=x.device)
    for t in range(x.shape[0]):
        gates = x[t] @ wx + h @ wh
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs[t] = h
    return outputs, c


def seq2seq(h: Tensor, embedding: Tensor, wx: Tensor, wh: Tensor, head: Tensor) -> Tensor:
    """Greedy decoding until every sentence has ended."""
    tokens = torch.zeros(50, h.shape[0], dtype=torch.int64, device=h.device)
    token = torch.ones(h.shape[0], dtype=torch.int64, device=h.device)
    ended = torch.zeros(h.shape[0], dtype=torch.bool, device=h.device)
    for t in range(50):
        h = torch.tanh(embedding[token] @ wx + h @ wh)
        token = (h @ head).argmax(1)
        ended = ended | (token == 0)
        tokens[t] = torch.where(ended, torch.zeros_like(token), token)
        if ended.all():
            break
    return tokens


def attention(
    x: Tensor, keys: Tensor, values: Tensor, wq: Tensor, wk: Tensor, wv: Tensor
) -> Tensor:
    """Decoding by one head with a cache that is written in place."""
    out = torch.zeros(64, x.shape[0], 64, device=x.device)
    keys, values = keys.clone(), values.clone()
    positions = torch.arange(64, device=x.device)
    for t in range(64):
        keys[:, t] = x @ wk
        values[:, t] = x @ wv
        scores = torch.bmm(keys, (x @ wq).unsqueeze(2)).squeeze(2) * 0.125
        scores = scores.masked_fill(positions > t, -1e9).softmax(1)
        x = torch.tanh(torch.bmm(scores.unsqueeze(1), values).squeeze(1) + x)
        out[t] = x
    return out


def decode(x: Tensor, keys: Tensor, values: Tensor, w: Tensor, head: Tensor) -> Tensor:
    """Decoding with a cache until a token ends it."""
    tokens = torch.zeros(128, dtype=torch.int64, device=x.device)
    keys, values = keys.clone(), values.clone()
    positions = torch.arange(128, device=x.device)
    for t in range(128):
        keys[t] = x @ w
        values[t] = torch.sin(x @ w)
        scores = (keys @ x * 0.1).masked_fill(positions > t, -1e9).softmax(0)
        x = torch.tanh(scores @ values + x)
        token = (x @ head).argmax()
        tokens[t] = token
        if token == 7:
            break
    return tokens


def rope(q: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding through slices written in place."""
    out = torch.empty_like(q)
    half = q.shape[-1] // 2
    out[..., :half] = q[..., :half] * cosine - q[..., half:] * sine
    out[..., half:] = q[..., half:] * cosine + q[..., :half] * sine
    return out


def sinkhorn(cost: Tensor) -> Tensor:
    """Entropic transport, until the scaling settles."""
    kernel = torch.exp(-cost)
    u = torch.full((cost.shape[0],), 1.0 / cost.shape[0], device=cost.device)
    v = torch.full((cost.shape[1],), 1.0 / cost.shape[1], device=cost.device)
    for _ in range(500):
        before = u
        u = (1.0 / cost.shape[0]) / (kernel @ v)
        v = (1.0 / cost.shape[1]) / (kernel.t() @ u)
        if (u - before).abs().max() < 1e-6:
            break
    return u[:, None] * kernel * v


def nms(boxes: Tensor, scores: Tensor) -> Tensor:
    """Greedy suppression: the best box that is left, and without those that overlap it, 64 times."""
    left = scores.clone()
    kept = torch.zeros(64, dtype=torch.int64, device=boxes.device)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for k in range(64):
        best = left.argmax()
        if left.max() <= 0:
            break
        kept[k] = best
        box = boxes.index_select(0, best.view(1))
        corner = torch.maximum(boxes[:, :2], box[:, :2])
        other = torch.minimum(boxes[:, 2:], box[:, 2:])
        common = (other - corner).clamp(min=0).prod(1)
        union = area + area.index_select(0, best.view(1)) - common
        left = torch.where(common / union > 0.5, torch.zeros_like(left), left)
    return kept


def sampler(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """Two hundred steps of a sampler that keeps its trajectory."""
    trajectory = torch.empty(200, x.shape[0], x.shape[1], device=x.device)
    for step in range(200):
        x = x - 0.01 * (torch.tanh(x @ w1) @ w2)
        trajectory[step] = x
    return trajectory


def _normal(*shapes: tuple[int, ...], scale: float = 0.1) -> Callable[[], Inputs]:
    def make() -> Inputs:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randn(shape, generator=generator) * scale for shape in shapes)

    return make


def _boxes() -> Inputs:
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(1000, 2, generator=generator) * 500
    size = torch.rand(1000, 2, generator=generator) * 100
    return torch.cat([corner, corner + size], 1), torch.rand(1000, generator=generator)


PROGRAMS = {
    "yolov3": Program(yolov3, _normal((1, 3, 32, 32, 85), (3, 2))),
    "ssd": Program(ssd, _normal((1, 8732, 4), (1, 8732, 81), (8732, 4))),
    "yolact": Program(yolact, _normal((138, 138, 64), (64, 4))),
    "fcos": Program(fcos, _normal((1, 13343, 4), (1, 13343), (1, 13343), (13343, 2))),
    "nasrnn": Program(nasrnn, _normal((100, 1, 128), (1, 128), (1, 128), (128, 1024), (128, 1024))),
    "lstm": Program(lstm, _normal((100, 1, 128), (1, 128), (1, 128), (128, 512), (128, 512))),
    "seq2seq": Program(
        seq2seq, _normal((1, 128), (1000, 128), (128, 128), (128, 128), (128, 1000))
    ),
    "attention": Program(
        attention, _normal((1, 64), (1, 64, 64), (1, 64, 64), (64, 64), (64, 64), (64, 64))
    ),
    "decode": Program(decode, _normal((64,), (128, 64), (128, 64), (64, 64), (64, 500))),
    "rope": Program(rope, _normal((1, 32, 1024, 64), (1024, 32), (1024, 32))),
    "sinkhorn": Program(sinkhorn, _normal((256, 256), scale=1.0)),
    "nms": Program(nms, _boxes),
    "sampler": Program(sampler, _normal((64, 32), (32, 64), (64, 32))),
}
