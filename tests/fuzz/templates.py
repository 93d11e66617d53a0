"""What random whole programs are made of: the text of statements with holes.

``{a}`` and ``{b}`` are tensors of the program, ``{d}`` and ``{e}`` dims of ``{a}``, ``{s}`` the size of dim
``{d}``, ``{n}`` an int, ``{f}`` a float, ``{t}`` a dtype, ``{c}`` a condition, ``{l}`` a list of tensors.
"""

from __future__ import annotations

import re

from tests.operators.random_chains import TEMPLATES

FURTHER_VALUES = """
    {a}*1  {a}+0  {a}/1  {a}**1  {a}.to({a}.dtype)  {a}.expand_as({a})  {a}.view({a}.shape)
    {a}.reshape({a}.shape)  {a}.contiguous()  {a}.clone()  {a}.detach()  {a}.data  {a}[:]  {a}[...]
    {a}.view_as({a})  F.dropout({a},0.0)  F.dropout({a},0.5)  torch.rand_like({a}.double())
    torch.randn({s})  torch.zeros_like({a})  {a}.new_zeros({s})  torch.empty_like({a}).fill_({f})
    torch.where({a}>0,{a},{b})  {a}.view(-1)  {a}.view({s},-1)  {a}.as_strided(({s},),(1,))
    {a}.nonzero()  {a}[{a}>{f}]  torch.unique({a})  {a}.to_sparse().to_dense()
    {a}.repeat({n},*[1]*({a}.dim()-1))  {a}.topk(1,{d})[0]  {a}.kthvalue(1,{d})[1]
    {a}.contiguous().median({d})[0]
    torch.bucketize({a},torch.arange(3.0))  torch.searchsorted(torch.arange(4.0),{a})
    {a}.heaviside({b})  {a}.var({d},correction=0)  torch.std_mean({a},{d})[1]  {a}.cummax({d})[0]
    {a}.diff(dim={d})  {a}.logcumsumexp({d})  F.one_hot({a}.long().abs()%4,4)
    F.embedding({a}.long().abs()%{s},{b})  F.linear({a},{b})  F.conv1d({a},{b},padding=1)
    torch.bmm({a},{b})  torch.addmm({a},{b},{b}.mT)  F.scaled_dot_product_attention({a},{a},{b})
    F.mse_loss({a},{b})  F.cross_entropy({a},{b}.long()[...,0].abs()%{s})  F.group_norm({a},1)
    F.batch_norm({a},None,None,training=True)  F.rms_norm({a},{a}.shape[-1:])
    torch.linalg.vector_norm({a},dim={d})  torch.polar({a}.abs(),{b})
    torch.view_as_real(torch.complex({a},{b}))  torch.fft.fft({a}).abs()  {a}.bitwise_and({b})  {a}<<1
    {a}.remainder({b})  {a}.fmod(3)  torch.div({a},{b},rounding_mode="floor")  torch.gcd({a},{b})
    torch.meshgrid({a}.flatten()[:3],{b}.flatten()[:2],indexing="ij")[1]
    torch.broadcast_tensors({a},{b})[0]  torch.block_diag({a}.flatten()[:2],{b}.flatten()[:2])
    {a}.swapdims({d},{e})  {a}.unflatten({d},(-1,1))  {a}.tile(2)  {a}.hsplit(1)[0]
    torch.vander({a}.flatten()[:3])  torch.stack({l})  torch.cat({l})  sum({l})  {l}[0]  {l}[-1]
    torch.stack([o.sum() for o in {l}])  table['k']  table.get('z',{a})  scaled({a})
    scaled({a},by={f})  Half()({a})  list(halves({a},{n}))[-1]  max({l},key=len)
    (lambda x: x+{n})({a})  layer({a})  checkpoint(scaled,{a},use_reentrant=False)
    torch.autograd.grad({a}.sum(),{b},allow_unused=True,retain_graph=True)[0]  {a}.T.contiguous().T
    torch.vmap(torch.sin)({a})  {a}.type_as({b})  {a}.sum(dtype=torch.float64)
    {a}.mean(dtype=torch.float32)
"""
VALUES = (
    *TEMPLATES,
    *(text.strip() for text in re.split(r"\s{2,}", FURTHER_VALUES) if text.strip()),
)
"""Expressions of a new tensor, those of random chains and more; eager's ``kron`` misses writes."""

WRITES = (
    "{a}.add_({b})", "{a}.mul_({f})", "{a} += {b}", "{a} *= {f}", "{a} -= {n}", "{a} /= 2", "{a} **= 2",
    "{a}[0] = {f}", "{a}[..., 0] = {b}[..., 0]", "{a}[-1] += {n}", "{a}[:] = {b}", "{a}[...] = {n}",
    "{a}[1:] = {a}[:-1].clone()", "{a}[::2] *= 2", "{a}[{a} > 0] = {f}", "{a}[{n}] = {b}[{n}]",
    "{a}.select({d}, 0).mul_({f})", "{a}.transpose({d}, {e}).add_({n})", "{a}.copy_({b})",
    "{a}.zero_()", "{a}.narrow({d}, 0, 1).zero_()", "{a}.view(-1)[0] = {f}", "{a}.clamp_(-{n}, {f})",
    "{a}.neg_()", "{a}.masked_fill_({b} > 0, {f})", "{a}.scatter_({d}, {b}.long().abs() % {s}, {b})",
    "{a}.fill_({f})", "{a}.index_add_({d}, torch.arange({s}) % 2, {a}.clone())",
    "places = {b}.long().abs() % {s}; {a}.scatter_({d}, places, {a}.gather({d}, places) * {f})",
    "places = torch.arange({s}) // 2; {a}.index_add_({d}, places, {a}.index_select({d}, places) * {f})",
    "places = {b}.long().flatten().abs() % 2; {a}[places] *= {f}",
    "{a}.index_fill_({d}, torch.tensor([0]), {f})", "{a}.index_put_((torch.tensor([0]),), {b}[0])",
    "{a}.relu_()", "{a}.sigmoid_()", "{a}.exp_()", "{a}.cumsum_({d})", "{a}.tril_()", "{a}.uniform_()",
    "{a}.bernoulli_(0.5)", "{a}.lerp_({b}, 0.5)", "{a}.addcmul_({b}, {b})", "{a}.sub_({b}.mean())",
    "{a}.unsqueeze_(0)", "{a}.squeeze_()", "{a}.t_()", "{a}.transpose_({d}, {e})",
    "{a}.detach().mul_({f})", "{a}.data.mul_({f})", "{a}.data[0] = {f}", "{a}.data.view(-1).add_({n})",
    "{a}.diagonal().fill_({f})",
    "{a}.flatten()[0] = {f}", "{a}.reshape(-1).mul_({f})", "{a}.expand(2, *{a}.shape)[0].add_(1)",
    "torch.add({a}, {b}, out={b})", "torch.sin({a}, out={a})", "{a}.unbind({d})[0].add_({f})",
    "{a}.chunk(2, {d})[-1].mul_({n})", "{a}.as_strided((min(2, {a}.numel()),), (1,)).add_({f})",
    "{a}.requires_grad_()",
    "{a}.is_leaf, {a}.register_hook(lambda grad: grad * 2)", "{a}.swapaxes_({d}, {e})",
    "{a}.masked_scatter_({a} > 0, {b}.clone())", "{l}.append({a})", "{l}.append({a})", "{l}[-1] = {a}",
    "{l}.insert(0, {a})", "{l}.pop()", "{l}.reverse()", "{l}[0].add_({f})", "table['k'] = {a}",
    "table['z'] = {a}", "table['k'].mul_({f})", "table.pop('z', None)", "meter.add({a})",
    "meter.last = {a}", "meter.total += {a}.sum()", "LOG.append({n})", "LOG.append({a})",
    "layer.seen.add_(1)", "layer.scale = {f}", "{l}.extend([{a}, {b}])", "table.update(k={a}, z={b})",
)  # fmt: skip

NUMBERS = (
    "n = n + 1", "n = {a}.shape[{d}]", "n = {a}.numel() // 2", "n = int({a}.sum())", "n = len({l})",
    "n = {a}.argmax().item()", "n = {a}.stride({d})", "n = {a}.storage_offset()", "n = {a}.dim()",
    "n = {a}._is_view()",
    "s = float({a}.mean())", "s = s * 0.5", "s = n / 2", "n = n * 2 % 5", "s = {a}.max().item()",
    "g = not g", "g = bool(({a} > {f}).any())", "n = meter.count", "s = meter.average",
    "n = next(numbers)", "n = min(n, 4)", "n = numbers.send(n)", "g = {c}",
    "n = {a}.count_nonzero().item()", "n = sum(1 for o in {l} if o.dim() > 1)",
)  # fmt: skip

CONDITIONS = (
    "g", "not g", "n > 1", "n % 2", "s > 0.5", "{a}.sum() > {f}", "({a} > {f}).any()",
    "{a}.shape[{d}] > 3", "{a}.is_contiguous()", "{a}.dtype == torch.float64", "{a}.requires_grad",
    "torch.is_grad_enabled()", "{a} is {b}", "{a}.shape == {b}.shape", "len({l}) > 1",
    "{a}.numel() > 10", "{a}.mean() < {b}.mean()", "{a}.flatten()[0] > 0", "g and {a}.sum() > 0",
    "{a}.sum() > 0 or n > 2", "'z' in table", "{a}.dim() == 2", "{a}.is_floating_point()",
    "bool({a}.isfinite().all())", "torch.equal({a}, {b})",
)  # fmt: skip

HEADS = (
    ("if {c}:", None), ("if {c}:", None), ("if {c}:", "else:"), ("if {c}:", "else:"),
    ("for i in range(n % 9):", None), ("for i in range(n % 5 + 3):", None),
    ("for i in range(4):", None), ("for i in range(25):", None), ("for i in range({s}):", None),
    ("for row in {a}:", None), ("for i, row in enumerate({a}):", None),
    ("for row, other in zip({a}, {b}):", None), ("for o in list({l}):", None),
    ("for o in halves({a}, {n}):", None), ("for o in list(table.values()):", None),
    ("while len(LOG) < 6 and LOG.append(0) is None:", None),
    ("while {a}.abs().sum() > 1 and meter.step():", None), ("with torch.no_grad():", None),
    ("with torch.enable_grad():", None), ("with torch.set_grad_enabled(g):", None),
    ("with torch.autocast('cpu'):", None), ("try:", "except (RuntimeError, IndexError):"),
    ("try:", "finally:"), ("for i in range(3):", "else:"),
)  # fmt: skip
"""The line before a block and, where there is a second block, the line before that one."""

LEAVING = ("break", "continue", "return {a}, {b}", "break")
"""What may end a block early, behind a condition; the first two only in loops."""

RISKY = (
    "{a}[{n} + 2]", "{a} + {a}[..., :2]", "{a}.view(7, -1)", "{l}[{n} + 1]", "table['none']",
    "1 // (n - 2)", "{a}.gather({d}, ({b}.long() + 2))",
    "{a}.index_select({d}, torch.tensor([{n}, 3]))", "{a} @ {b}", "F.one_hot({a}.long(), 2)",
    "{a}.scatter({d}, {b}.long(), 1.0)", "torch.cat([{a}, {b}], {d})", "F.embedding({a}.long(), {b})",
    "torch.stack([{a}, {b}])", "{a}.squeeze({n})", "{a}.item()", "torch.linalg.cholesky({a})",
    "{a}.long() // ({b}.long())", "{a}.missing", "int('x')",
)  # fmt: skip
"""Expressions that raise for some arguments."""

PRELUDE = """
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

LOG = []


def scaled(m, by=2.0):
    return m * by + m.sum()


def halves(m, times):
    for k in range(times % 4):
        m = m / 2
        yield m + k


def counting():
    total = 0
    while True:
        given = yield total
        total = total + 1 if given is None else total + given % 3


class Half:
    def __call__(self, m):
        return m * 0.5


class Meter:
    def __init__(self):
        self.total, self.count, self.last = 0.0, 0, None

    def add(self, value):
        self.total = self.total + value.sum()
        self.count += 1

    def step(self):
        self.count += 1
        return self.count % 5

    @property
    def average(self):
        return float(self.total) / max(self.count, 1)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.75, dtype=torch.float64))
        self.register_buffer("seen", torch.tensor(0))
        self.scale = 0.5

    def forward(self, m):
        self.seen += 1
        return m * self.weight.to(m.dtype) * self.scale


meter, layer = Meter(), Layer()
"""
