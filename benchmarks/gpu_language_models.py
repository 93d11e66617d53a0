"""Language models of transformers on a GPU: ``python -m benchmarks.gpu_language_models [CASE ...]``.

A token with a static cache of 2048 (``token``; ``token 8 bits``, ``token 4 bits``: weights that plain PyTorch
widens; ``token of experts``), a prompt of 4096 tokens, and training of 4 x 2048 (``training``; ``training
float8``: products by ``torch._scaled_mm``, a scale a tensor).  Parameters are random, in bfloat16.  A process
a measurement, one after another, each with empty caches; prints a table of medians.  ``--tiny`` tries all
this on the processor, but float8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu import compile_with
from benchmarks.gpu_decode import milliseconds, run_command

COMPILERS = ("torch.compile:reduce-overhead", "weft")
EIGHT_B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
ONE_B = EIGHT_B | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
EXPERTS = EIGHT_B | {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32000,
    "moe_intermediate_size": 768,
    "num_experts": 32,
    "num_experts_per_tok": 4,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}
GROUP = 128
"""Weights of 4 bits that have a scale in common."""

Case = tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]
"""What is measured, the same in eager, and what brings about the state before a first call."""


def nothing() -> None:
    """Of calls that leave no state."""


class Of8Bits(nn.Module):
    """A linear layer whose weight is stored in int8, a scale a row."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(1) / 127
        self.register_buffer("numbers", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale.to(linear.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.numbers.to(x.dtype)) * self.scale


class Of4Bits(nn.Module):
    """A linear layer whose weight is stored in 4 bits, neighbours of a row in a byte."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        groups = weight.view(len(weight), -1, min(GROUP, weight.shape[1]))
        scale = groups.abs().amax(2, keepdim=True) / 7
        numbers = ((groups / scale).round() + 8).to(torch.uint8).view(weight.shape)
        self.register_buffer("numbers", numbers[:, ::2] | (numbers[:, 1::2] << 4))
        self.register_buffer("scale", scale.to(linear.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        both = torch.stack((self.numbers & 15, self.numbers >> 4), -1)
        weight = both.view(*self.scale.shape[:2], -1).to(x.dtype) - 8
        return F.linear(x, (weight * self.scale).flatten(1))


def scaled(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``x`` in float8, and by what it was divided."""
    top = torch.finfo(dtype).max
    scale = x.abs().max().float().clamp(min=1e-12) / top
    return (x.float() / scale).clamp(-top, top).to(dtype), scale


class Product8(torch.autograd.Function):
    """``x @ w.T`` with products in float8, those of gradients too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        (a, by_a), (b, by_b) = scaled(x, torch.float8_e4m3fn), scaled(w, torch.float8_e4m3fn)
        return torch._scaled_mm(a, b.t(), scale_a=by_a, scale_b=by_b, out_dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        g, by_g = scaled(gradient, torch.float8_e5m2)
        (a, by_a), (b, by_b) = (scaled(t, torch.float8_e4m3fn) for t in ctx.saved_tensors)

        def product(left: Tensor, right: Tensor, scale: Tensor) -> Tensor:
            columns = right.t().contiguous().t()
            dtype = gradient.dtype
            return torch._scaled_mm(left, columns, scale_a=by_g, scale_b=scale, out_dtype=dtype)

        return product(g, b, by_b), product(g.t().contiguous(), a, by_a)


class Float8(nn.Module):
    """A linear layer whose products are in float8."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight

    def forward(self, x: Tensor) -> Tensor:
        return Product8.apply(x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


def replace_linears(module: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> None:
    """``make`` a layer of each linear one in ``module``."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, make(child))
        else:
            replace_linears(child, make)


def model_of(kind: str, sizes: dict[str, int], make: Any, device: str) -> Any:
    """A causal language model of transformers; ``make``: of its layers' linear ones, None to keep them."""
    import transformers

    if device == "cpu":
        sizes = sizes | TINY | ({"moe_intermediate_size": 32} if "num_experts" in sizes else {})
    config = getattr(transformers, f"{kind}Config")(**sizes)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
    torch.set_default_dtype(torch.float32)
    if make is not None:
        replace_linears(model.model.layers, make)
    return model


def tokens(model: Any, batch: int, length: int) -> Tensor:
    return torch.randint(0, model.config.vocab_size, (batch, length), device=model.device)


def token(model: Any, compiler: str) -> Case:
    """One token behind those there are, which each call adds to, with a static cache."""
    from transformers import StaticCache

    model.eval()
    cache = StaticCache(config=model.config, max_cache_len=2048)
    first = tokens(model, 1, 16)

    def begin() -> None:
        cache.reset()
        with torch.no_grad():
            model(input_ids=first, past_key_values=cache, use_cache=True)

    one, place = tokens(model, 1, 1), torch.tensor([[20]], device=model.device)

    def call(function: Any) -> Tensor:
        with torch.no_grad():
            return function(
                input_ids=one, position_ids=place, past_key_values=cache, use_cache=True
            ).logits

    compiled = compile_with(compiler, model)
    return lambda: call(compiled), lambda: call(model), begin


def prompt(model: Any, compiler: str) -> Case:
    model.eval()
    given = tokens(model, 1, 16 if model.device.type == "cpu" else 4096)

    def call(function: Any) -> Tensor:
        with torch.no_grad():
            return function(input_ids=given, logits_to_keep=1, use_cache=False).logits

    compiled = compile_with(compiler, model)
    return lambda: call(compiled), lambda: call(model), nothing


def training(model: Any, compiler: str) -> Case:
    """Forward and backward."""
    given = tokens(model, 4, 16 if model.device.type == "cpu" else 2048)

    def call(function: Any) -> Tensor:
        loss = function(input_ids=given, labels=given, use_cache=False).loss
        loss.backward()
        model.zero_grad(set_to_none=True)
        return loss.detach()

    compiled = compile_with(compiler, model)
    return lambda: call(compiled), lambda: call(model), nothing


CASES: dict[str, tuple[Callable[[Any, str], Case], str, dict[str, int], Any]] = {
    "token": (token, "Llama", EIGHT_B, None),
    "token 8 bits": (token, "Llama", EIGHT_B, Of8Bits),
    "token 4 bits": (token, "Llama", EIGHT_B, Of4Bits),
    "token of experts": (token, "Qwen3Moe", EXPERTS, None),
    "prompt": (prompt, "Llama", EIGHT_B, None),
    "training": (training, "Llama", ONE_B, None),
    "training float8": (training, "Llama", ONE_B, Float8),
}


def measure(case: str, compiler: str, device: str) -> dict[str, float]:
    """Milliseconds of a call, and its result's distance from eager's."""
    prepare, kind, sizes, make = CASES[case]
    compiled, plain, begin = prepare(model_of(kind, sizes, make, device), compiler)
    begin()
    for _ in range(4):
        compiled()
    alone, flow = milliseconds(compiled, device)
    begin()
    got = compiled().clone()
    begin()
    want = plain()
    error = float((got.float() - want.float()).norm() / want.float().norm())
    return {"ms": alone, "ms one after another": flow, "difference from eager": error}


if __name__ == "__main__":
    run_command("benchmarks.gpu_language_models", __doc__, CASES, COMPILERS, measure)
