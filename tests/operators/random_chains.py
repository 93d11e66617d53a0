"""Random programs: chains of operators over random shapes, dtypes and strides, as Python source.

A step is drawn from :data:`TEMPLATES` with random arguments and kept if eager takes it.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

LARGEST = 3000
"""Elements that a value may have."""

# {a} and {b} are values of the program, {d} and {e} dims of {a}, {n} a small number, {s} a size of dim {d},
# {f} a float, {t} a dtype.
TEMPLATES = tuple(
    """
    torch.tanh({a})  torch.sin({a})  torch.sigmoid({a})  torch.relu({a})  torch.abs({a})  -{a}
    torch.erf({a})  torch.sign({a})  torch.floor({a})  torch.round({a})  torch.atan({a})
    torch.exp(-{a}.abs())  torch.log1p({a}.abs())  torch.sqrt({a}.abs())  torch.rsqrt({a}.abs()+1)
    F.gelu({a})  F.silu({a})  F.softplus({a})  F.elu({a})  F.hardswish({a})  torch.frac({a})  {a}+{b}
    {a}-{b}  {a}*{b}  {a}/({b}.abs()+1)  torch.maximum({a},{b})  torch.atan2({a},{b})  {a}*{f}  {a}+{n}
    {n}-{a}  {a}//2  {a}%3  {a}<{b}  {a}>{f}  {a}=={b}  ~({a}>0)  {a}.clamp(-{n},{f})
    torch.where({a}>0,{a},{b})  torch.where({b}>{f},{a},0)  {a}.masked_fill({a}<0,{f})
    torch.lerp({a},{b},0.3)  {a}.to({t})  {a}.double()  {a}.long()  {a}.bool()  {a}.float()
    {a}.sum({d})  {a}.sum()  {a}.mean({d},keepdim=True)  {a}.amax({d})  {a}.amin({d},keepdim=True)
    {a}.prod({d})  {a}.var({d})  {a}.std({d},keepdim=True)  {a}.any({d})  {a}.all({d})  {a}.argmax({d})
    {a}.argmin({d})  {a}.max({d})[0]  {a}.min({d})[1]  {a}.norm(dim={d})  {a}.logsumexp({d})
    {a}.sum(({d},{e}))  {a}.cumsum({d})  {a}.cumprod({d})  {a}.sort({d})[0]  {a}.count_nonzero({d})
    torch.softmax({a},{d})  torch.log_softmax({a},{d})  F.layer_norm({a},{a}.shape[-1:])
    F.normalize({a},dim={d})  {a}.transpose({d},{e})  {a}.permute(*range({a}.dim())[::-1])
    {a}.flatten()  {a}.flatten(0,1)  {a}.unsqueeze({d})  {a}.squeeze()  {a}.reshape(-1)
    {a}.reshape({s},-1)  {a}.contiguous()  {a}.T  {a}.mT  {a}.ravel()  {a}.narrow({d},0,1)
    {a}.select({d},0)  {a}.select({d},-1)  {a}[1:]  {a}[...,::2]  {a}[...,None]  {a}[:,1:]  {a}[-1]
    {a}[...,:-1]  {a}.flip({d})  {a}.roll(1,{d})  {a}.roll(-2,{d})  {a}.tril()  {a}.triu(1)
    {a}.diagonal()  {a}.expand(2,*{a}.shape)  {a}.repeat(2,*[1]*({a}.dim()-1))
    {a}.repeat_interleave(2,{d})  {a}.unfold({d},2,1)  {a}.chunk(2,{d})[0]  {a}.split(2,{d})[-1]
    {a}.unbind({d})[0]  {a}.movedim({d},{e})  {a}.rot90(1,({d},{e}))  torch.cat([{a},{b}],{d})
    torch.cat([{a},{a}],{d})  torch.stack([{a},{a}],{d})  torch.stack([{a},{b}])  F.pad({a},(1,2))
    F.pad({a},(-1,1,1,0))  F.pad({a},(1,1),mode="reflect")  F.pad({a},(2,1),mode="replicate")  {a}@{b}
    {a}@{b}.mT  torch.einsum("...i,...i->...",{a},{b})  torch.outer({a}.flatten()[:5],{b}.flatten()[:4])
    {a}.index_select({d},torch.arange({s}).flip(0))  {a}[torch.arange({s})%2]
    {a}.gather({d},({a}.long()%{s}).abs()%{s})  {a}.scatter({d},({b}.long().abs()%{s}),{b})
    {a}.scatter_add({d},({a}.long().abs()%{s}),{a})
    {a}.scatter_reduce({d},{a}.long().abs()%{s},{a},"amax")
    {a}.scatter_reduce({d},{a}.long().abs()%{s},{a},"mean")  {a}.index_add({d},torch.arange({s})%2,{a})
    {a}.index_fill({d},torch.tensor([0]),{n})  {a}.masked_fill({b}>0,1)
    {a}.index_put((torch.tensor([0,0]),),{b}[0],accumulate=True)
    {a}.index_copy({d},torch.arange({s}).flip(0),{a})  {a}.select_scatter({a}.select({d},0)*2,{d},-1)
    {a}.slice_scatter({a}.narrow({d},0,1),{d},0,1)  {a}.diagonal_scatter({a}.diagonal()*2)
    {a}.take_along_dim(({a}.long().abs()%{s}),{d})  {a}.nan_to_num(0.5)  F.avg_pool1d({a},2)
    F.max_pool1d({a},3,2,1)  F.avg_pool2d({a},2,1)  F.max_pool2d({a},3,1,1)
    F.adaptive_avg_pool1d({a},2)  F.adaptive_max_pool2d({a},2)  F.interpolate({a},scale_factor=2)
    F.interpolate({a},size=3,mode="linear")
    F.interpolate({a},size=(3,4),mode="bilinear",align_corners=True)
    F.interpolate({a},size=(5,3),mode="bicubic")  torch.cdist({a},{b})
    torch.kron({a}.flatten()[:3],{b}.flatten()[:4])  torch.addcmul({a},{a},{b},value=0.5)
    torch.hypot({a},{b})  torch.copysign({a},{b})  torch.logaddexp({a},{b})
    torch.full_like({a},{f})+{a}  torch.arange({s})+{a}.select({d},0).sum()
    torch.zeros_like({a}).add({b})
    """.split()
)
DTYPES = (torch.float64, torch.float64, torch.float64, torch.float32, torch.int64, torch.bool)


@dataclass
class Chain:
    """A program and its inputs; ``source`` defines ``program``."""

    source: str
    inputs: list[torch.Tensor]

    @property
    def function(self) -> Callable[..., Any]:
        space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        exec(self.source, space)
        function: Callable[..., Any] = space["program"]
        return function


def random_tensor(rng: random.Random) -> torch.Tensor:
    """Of up to four dims, of whatever strides; a few are empty or without dims."""
    size = [rng.choice((1, 2, 3, 4, 5, 7)) for _ in range(rng.choice((0, 1, 2, 2, 3, 3, 4)))]
    if size and rng.random() < 0.05:
        size[rng.randrange(len(size))] = 0
    dtype = rng.choice(DTYPES)
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    kind = rng.choice(("plain", "plain", "transposed", "sliced", "expanded"))
    wide = [2 * n for n in size] if kind == "sliced" else size
    x = torch.randn(wide, dtype=torch.float64, generator=generator) * 2
    x = x.to(dtype) if dtype != torch.bool else x > 0
    if kind == "sliced":
        x = x[tuple(slice(k % 2, None, 2) for k in range(len(size)))]
    if kind == "transposed" and len(size) > 1:
        x = x.transpose(0, -1)
    if kind == "expanded" and size:
        x = x[:1].expand(size[0], *size[1:])
    return x


def random_chain(seed: int, length: int) -> Chain:
    """A program of ``length`` steps, which eager runs on its inputs."""
    rng = random.Random(seed)
    inputs = [random_tensor(rng) for _ in range(2)]
    space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    space.update({f"v{k}": x for k, x in enumerate(inputs)})
    lines: list[str] = []
    for _ in range(40 * length):
        if len(lines) == length:
            break
        name = f"v{len(inputs) + len(lines)}"
        step = _step(rng, space, len(inputs) + len(lines))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = eval(step, space)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            continue
        if isinstance(value, torch.Tensor) and value.numel() <= LARGEST:
            space[name] = value
            lines.append(f"    {name} = {step}")
    last = len(inputs) + len(lines) - 1
    kept = sorted({last, rng.randrange(2, last + 1) if lines else last})
    results = ", ".join(f"v{k}" for k in kept)
    body = "\n".join(lines)
    return Chain(f"def program(v0, v1):\n{body}\n    return ({results},)\n", inputs)


def _step(rng: random.Random, space: dict[str, Any], count: int) -> str:
    names = [f"v{k}" for k in range(count)]
    first = names[-1] if rng.random() < 0.7 else rng.choice(names)
    rank = max(space[first].dim(), 1)
    d = rng.randrange(rank)
    size = space[first].shape[d] if space[first].dim() else 1
    return rng.choice(TEMPLATES).format(
        a=first,
        b=rng.choice(names),
        d=d if rng.random() < 0.7 else d - rank,
        e=rng.randrange(rank),
        n=rng.randrange(1, 4),
        f=rng.choice((0.5, -1.25, 2.0, 0.0)),
        s=max(size, 1),
        t=rng.choice(("torch.float32", "torch.int32", "torch.bfloat16", "torch.uint8")),
    )
