"""Functions of torch whose C++ takes sizes as plain integers: one graph for all sizes."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from weft_bytecode_capture import CaptureOptions, compile_frames

SIZES = ((2, 3, 12), (3, 3, 17), (4, 3, 10), (5, 3, 23))


def pooled(x):
    strided = F.max_pool1d(x.transpose(1, 2).contiguous().transpose(1, 2), 2, ceil_mode=True)
    return F.max_pool1d(x, 3, 2, padding=1), torch.max_pool1d(x[0], (3,), dilation=2), strided


def windows(x):
    image, volume = x.unsqueeze(1), x[None, None]
    narrow = image.expand(-1, 4, -1, -1).contiguous(memory_format=torch.channels_last)
    return (
        F.max_pool2d(image, (1, 3), 2, (0, 1), ceil_mode=True),
        F.avg_pool2d(image, (2, 4), 3, (1, 1)),
        F.max_pool3d(volume, (1, 2, 3), (1, 2, 3), dilation=(1, 1, 2)),
        F.avg_pool3d(volume, (2, 2, 3), 2, ceil_mode=True),
        F.max_pool2d(narrow, (3, 2)),
    )


def places(x):
    n = x.shape[-1]
    ends = torch.linspace(0.5, n - 0.5, 5), torch.linspace(-1, 1, n // 4, dtype=torch.float64)
    return (*ends, torch.linspace(0.5, n - 0.5, n))


def taken(x):
    order = x.detach().argsort(-1)
    rows = x.take_along_dim(order[:1, :, :4], dim=-1), torch.take_along_dim(x[:1], order, -1)
    return (*rows, x.take_along_dim(order))


def classes(x):
    return F.one_hot(x.detach().argsort(-1), x.shape[-1]), F.one_hot(
        x.detach().argsort(-1), num_classes=40
    )


def averaged(x):
    image = x.unsqueeze(2).expand(-1, -1, 4, -1).contiguous()
    whole = F.avg_pool2d(image, image.shape[2:]), F.avg_pool2d(image[0], tuple(image.shape[2:]), 1)
    return (*whole, F.avg_pool1d(x, (x.shape[2],)), F.avg_pool2d(image, (2, 3)))


def values(x):
    n = x.shape[-1]
    padded = F.pad(x, (0, 1), value=n - 1), F.pad(x.detach().long(), (1, 1), "constant", n)
    kinds = torch.tensor(n), torch.tensor(n, dtype=torch.float64), torch.as_tensor(n / 4)
    return (
        *padded,
        F.pad(x, (1, 1), value=n / 3),
        *kinds,
        torch.ones(40)[: torch.tensor(n).item()],
    )


def functions_of_python(x):
    n = x.shape[-1]
    scales = (
        math.log(n),
        math.log(n, 2),
        math.exp(-n),
        math.sin(n / 3),
        math.pow(n, 0.3),
        math.hypot(n, 3),
    )
    counts = (
        round(n / 2),
        int(n * 0.4),
        max(1, int(n * 0.3)),
        math.isqrt(n),
        round(n),
        n.bit_length(),
    )
    bits = n & 3, n | 1, n ^ 5, n << 2, n >> 1, ~n, math.gcd(n, 12), math.comb(n, 2), pow(n, 2)
    power = 2 ** math.ceil(math.log2(n))
    known = (n / 100).is_integer(), round(0.7 * n), round(n / 3, 1), math.trunc(n / 3)
    scaled = [x * number for number in (*scales, *counts)]
    return (*scaled, x[..., : counts[1]], x.new_zeros(power), x + power), (
        scales,
        counts,
        bits,
        known,
    )


def lists_of_numbers(x):
    _, h, w = x.shape
    mixed = torch.tensor([[h, 0.5], [w / 3, 2]]), torch.as_tensor((w, 3)), torch.tensor(x.shape)
    typed = torch.tensor([w, 1], dtype=torch.float64), torch.tensor([w], dtype=torch.int32)
    own = x.new_tensor([h, w]), x.new_tensor([w], dtype=torch.int64), torch.LongTensor([h, w])
    return (*mixed, *typed, *own, torch.Tensor([w, w / 2])), ()


def made_on_entry(x):
    n = x.shape[-1]
    windows = (
        torch.hann_window(n),
        torch.hann_window(n, False),
        torch.hamming_window(n, periodic=False),
    )
    others = (
        torch.blackman_window(n, dtype=torch.float64),
        torch.bartlett_window(n),
        torch.kaiser_window(n),
    )
    first, second = torch.tril_indices(n, n), torch.triu_indices(n, n + 1, offset=1)
    again = torch.hann_window(n)
    again[0] = 7  # which is no other window
    values = x.new_ones(n, n + 1)
    pairs = values[first[0], first[1]], values[second[0], second[1]]
    return (*windows, *others, first, second, again, *pairs, torch.logspace(0, 1, n)), ()


@pytest.mark.parametrize("program", [functions_of_python, lists_of_numbers, made_on_entry])
def test_one_graph_serves_numbers_of_sizes(program):
    graphs = []
    function = compiled(program, graphs)
    for size in SIZES:
        x = torch.randn(size)
        found, wanted = function(x), program(x)
        assert found[1] == wanted[1]
        assert [*map(type, found[1])] == [*map(type, wanted[1])]
        torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=0)
        assert [y.stride() for y in found[0]] == [y.stride() for y in wanted[0]]
    assert len(graphs) == 2


def number_that_reads_itself(x):
    n = x.shape[-1]
    for _ in range(30):
        n = round(n * 0.9) + (n & 1)
    return x * n


@pytest.mark.parametrize(
    "program",
    [
        number_that_reads_itself,
        lambda x: x * math.log(x.shape[-1] - 12),
        lambda x: x * math.exp(x.shape[-1] * 100),
        lambda x: torch.hann_window(x.shape[-1] - 13),
        lambda x: torch.tril_indices(x.shape[-1], 12 - x.shape[-1]),
        lambda x: torch.tensor([x.shape[-1] * 50], dtype=torch.uint8),
        lambda x: torch.tensor([x.shape[-1], [1]]),
        lambda x: x * (x.shape[-1] >> (x.shape[-1] - 12)),
        lambda x: x * math.comb(3, x.shape[-1] - 12),
        lambda x: x * math.sin(x.shape[-1] - 17),
        lambda x: x * (x.shape[-1] / 4).is_integer(),
    ],
)
def test_functions_of_sizes_that_raise_or_decide(program):
    function = compile_frames(program, lambda graph, inputs: graph.forward)
    for size in SIZES:
        x = torch.randn(size)
        try:
            wanted = program(x)
        except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            with pytest.raises(type(error), match=re.escape(str(error).split("\n")[0])):
                function(x)
        else:
            torch.testing.assert_close(function(x), wanted)


def compiled(program, graphs):
    def backend(graph_module, inputs):
        graphs.append(graph_module)
        return graph_module.forward

    return compile_frames(program, backend, CaptureOptions(fullgraph=True))


def padded(x):
    short = x[0, :, 3:]
    return (
        pad_sequence([x[0].mT, short.mT, x[1].mT], batch_first=True, padding_value=2.5),
        pad_sequence((short[0], x[1, 0]), padding_side="left"),
        pad_sequence([x[0].mT.long(), short.mT.long()], padding_value=1.5),
    )


def test_one_graph_serves_sequences_whose_lengths_data_decides():
    def program(x):
        rows = [x[x > 0], x, x[x < -0.5]]
        left = pad_sequence([x[x > 0], x[x < 0]], padding_side="left")
        return pad_sequence(rows, batch_first=True, padding_value=2.0), left

    graphs = []
    options = CaptureOptions(fullgraph=True, read_contents=False)
    function = compile_frames(program, lambda g, _: graphs.append(g) or g.forward, options)
    for seed, size in enumerate((5, 8, 3, 3, 11, 7)):
        x = torch.randn(size, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(function(x), program(x))
        torch.testing.assert_close(function(-x), program(-x))
    assert len(graphs) == 2


PROGRAMS = [pooled, windows, places, taken, classes, averaged, values, padded]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph_serves_sizes_that_vary(program, requires_grad):
    graphs = []
    function = compiled(program, graphs)
    for size in SIZES:
        x = torch.randn(size, requires_grad=requires_grad)
        found, wanted = function(x), program(x)
        torch.testing.assert_close(found, wanted)
        assert [y.stride() for y in found] == [y.stride() for y in wanted]
        if wanted[0].requires_grad:
            gradients = [torch.autograd.grad(sum(map(torch.sum, y)), x)[0] for y in (found, wanted)]
            torch.testing.assert_close(*gradients, rtol=0, atol=0)
    assert len(graphs) == 2


@pytest.mark.parametrize(
    "program",
    [
        lambda x: F.max_pool1d(x.long(), 2),
        lambda x: F.avg_pool1d(x, (x.shape[2],), padding=(1,)),
        lambda x: F.avg_pool1d(x.mT, (x.shape[1],)),
        lambda x: F.avg_pool2d(x, x.shape, divisor_override=2),
        lambda x: F.avg_pool2d(x[:, :, :3], (x.shape[1],)),
        lambda x: F.avg_pool2d(x, (x.shape[2],)),
        lambda x: F.avg_pool2d(x, (x.shape[1], x.shape[2] + 1)),
        lambda x: F.avg_pool1d(x.long(), (x.shape[2],)),
        lambda x: F.max_pool1d(x, 2, return_indices=True),
        lambda x: F.max_pool1d(x, x.shape[-1] + 1),
        lambda x: F.max_pool2d(x, (4, 2)),
        lambda x: F.max_pool2d(x, (1, 2), padding=(0, 2)),
        lambda x: F.max_pool2d(x, (1, 2), (1, 2), padding=(0, 1), ceil_mode=True),
        lambda x: F.avg_pool2d(x[:, :0], (1, 3), 2),
        lambda x: F.avg_pool2d(x[0], (1, 3), 2),
        lambda x: torch.linspace(0, 9, x.shape[-1], dtype=torch.int64),
        lambda x: torch.linspace(0, 9, x.shape[-1] - 100),
        lambda x: torch.linspace(3, 9, x.shape[-1] - 9 - (x.shape[-1] - 10)),
        lambda x: x.take_along_dim(x.argsort(-1)[..., 0], dim=-1),
        lambda x: x.take_along_dim(x.argsort(-1).int(), dim=-1),
        lambda x: x.take_along_dim(x[:, :2].argsort(-1), dim=-1),
        lambda x: F.one_hot(x.argsort(-1), x.shape[-1] - 1),
        lambda x: F.pad(x, (1, 1), "reflect", x.shape[-1]),
        lambda x: torch.tensor(x.shape[-1], dtype=torch.int8),
        lambda x: torch.tensor(x.shape[-1] * 5000, dtype=torch.float16),
        lambda x: torch.tensor(x.shape[-1], dtype=torch.bool),
        lambda x: torch.tensor(x.shape[-1] / 3, dtype=torch.int64),
        lambda x: torch.tensor(x.shape[-1] / 3, dtype=torch.float64, requires_grad=True) * x,
        lambda x: pad_sequence([x[0], x[1, :, 1:]]),
        lambda x: pad_sequence([x, x[1:].long()]),
        lambda x: pad_sequence([x, x[1:]], padding_side="up"),
        lambda x: F.one_hot(x.argsort(-1) - 1, x.shape[-1]),
        lambda x: F.one_hot(x.argsort(-1).int(), x.shape[-1]),
    ],
)
def test_what_eager_refuses_or_computes_otherwise(program):
    function = compile_frames(program, lambda graph, inputs: graph.forward)
    for size in SIZES:
        x = torch.randn(size)
        try:
            wanted = program(x)
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error)):
                function(x)
        else:
            torch.testing.assert_close(function(x), wanted)
