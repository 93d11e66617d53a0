"""Tokens of language models on a GPU: ``python -m benchmarks.gpu_decode [--compilers A,B] [CASE ...]``.

``decode``: a token of a Llama-3-8B-like model in bfloat16, batch 1, that writes keys and values to buffers of
its own.  ``generate`` and ``long``: transformers' ``generate`` of a 1B Llama with a static cache, 100 tokens
after 64 and after 2048.  A process a measurement, one after another, each with empty caches; prints a table
of medians.  ``--tiny`` tries all this on the processor.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu import compile_with

CASES = {"decode": 0, "generate": 64, "long": 2048}
"""With the tokens that there are before."""
COMPILERS = ("eager", "torch.compile:reduce-overhead", "weft")
NEW_TOKENS = 100
CALLS = 30
LENGTH, POSITION = 2048, 1000
"""Of the caches of ``decode``, and where its token stands."""


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class Norm(nn.Module):
    """As models of Llama's kind write it out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (wide * scale).to(x.dtype) * self.weight


class Layer(nn.Module):
    """Grouped attention to the tokens so far, whose keys and values are buffers, and a gated layer."""

    def __init__(self, width: int, heads: int, shared: int, hidden: int, length: int) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads

        def linear(inside: int, outside: int) -> nn.Linear:
            return nn.Linear(inside, outside, bias=False)

        self.query, self.out = linear(width, width), linear(width, width)
        self.key, self.value = (linear(width, shared * self.size) for _ in range(2))
        self.gate, self.up = linear(width, hidden), linear(width, hidden)
        self.down = linear(hidden, width)
        self.norms = nn.ModuleList(Norm(width) for _ in range(2))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(1, shared, length, self.size))

    def forward(self, x: Tensor, at: Tensor, wave: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        y = self.norms[0](x)

        def split(z: Tensor, heads: int) -> Tensor:
            return z.view(1, -1, heads, self.size).transpose(1, 2)

        query = rotated(split(self.query(y), self.heads), *wave)
        self.keys[:, :, at] = rotated(split(self.key(y), self.shared), *wave)
        self.values[:, :, at] = split(self.value(y), self.shared)
        y = F.scaled_dot_product_attention(
            query, self.keys, self.values, attn_mask=mask, enable_gqa=True
        )
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """A language model that is given one token after another."""

    def __init__(self, layers: int, sizes: tuple[int, int, int, int, int], words: int) -> None:
        super().__init__()
        width, heads, *_, self.length = sizes
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(*sizes) for _ in range(layers))
        self.norm, self.head = Norm(width), nn.Linear(width, words, bias=False)
        size = width // heads
        steps = 500000.0 ** (-torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(self.length).float(), steps).repeat(1, 2)
        dtype = torch.get_default_dtype()
        self.register_buffer("cosine", angles.cos().to(dtype))
        self.register_buffer("sine", angles.sin().to(dtype))

    def forward(self, token: Tensor, at: Tensor) -> Tensor:
        x, wave = self.embed(token), (self.cosine[at], self.sine[at])
        mask = torch.arange(self.length, device=at.device)[None] <= at[:, None]
        for layer in self.layers:
            x = layer(x, at, wave, mask)
        return self.head(self.norm(x))


def milliseconds(call: Callable[[], Any], device: str) -> tuple[float, float]:
    """Of a call alone, the median, and of calls one after another."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    times = []
    for _ in range(CALLS):
        wait()
        start = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    wait()
    return statistics.median(times) * 1e3, (time.perf_counter() - start) / CALLS * 1e3


def decode(compiler: str, device: str) -> dict[str, float]:
    """Figures of the decoder."""
    tiny = device == "cpu"
    sizes = (64, 4, 2, 128, 32) if tiny else (4096, 32, 8, 14336, LENGTH)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Decoder(2 if tiny else 32, sizes, 100 if tiny else 128256).eval()
        token, at = torch.tensor([[7]]), torch.tensor([sizes[-1] // 2 if tiny else POSITION])
    compiled = compile_with(compiler, model)
    with torch.no_grad():
        want = model(token, at)
        for _ in range(4):
            got = compiled(token, at)
        alone, flow = milliseconds(lambda: compiled(token, at), device)
    read = sum(p.numel() * p.itemsize for p in model.parameters()) - model.embed.weight.nbytes
    error = float((got.float() - want.float()).norm() / want.float().norm())
    figures = {"ms alone": alone, "ms": flow, "TB/s of weights": read / flow / 1e9}
    return {**figures, "difference from eager": error}


def generate(compiler: str, device: str, given: int) -> dict[str, float]:
    """Figures of transformers' own loop around a model's ``forward``."""
    from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM

    tiny = device == "cpu"
    width, layers = (64, 2) if tiny else (2048, 16)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64 if not tiny else 4,
        num_key_value_heads=2 if tiny else 8,
        vocab_size=100 if tiny else 128256,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = LlamaForCausalLM(config).eval()
        tokens = torch.randint(0, config.vocab_size, (1, given))
    count = 8 if tiny else NEW_TOKENS
    options: dict[str, Any] = {"max_new_tokens": count, "min_new_tokens": count}
    options |= {"do_sample": False, "cache_implementation": "static", "pad_token_id": 0}
    if compiler.startswith("torch.compile"):
        mode = compiler.partition(":")[2] or "default"
        options["compile_config"] = CompileConfig(mode=mode)
    else:
        options["disable_compile"] = True
        model.forward = compile_with(compiler, model.forward)
    for _ in range(3):
        model.generate(tokens, **options)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        model.generate(tokens, **options).cpu()
        times.append(time.perf_counter() - start)
    return {"tokens/s": count / statistics.median(times)}


def print_table(module: str, cases: Sequence[str], compilers: Sequence[str], tiny: bool) -> None:
    """What ``module`` measures of every case by every compiler, a process each, with empty caches."""
    print("| case | compiler | figures |", "|---|---|---|", sep="\n", flush=True)
    for case, compiler in itertools.product(cases, compilers):
        with tempfile.TemporaryDirectory() as caches:
            folders = {"WEFT_CACHE_DIR": "weft", "TORCHINDUCTOR_CACHE_DIR": "torch"}
            environment = os.environ | {k: f"{caches}/{v}" for k, v in folders.items()}
            command = [sys.executable, "-m", module, case, "--measure", "--compilers", compiler]
            command += ["--tiny"] if tiny else []
            run = subprocess.run(command, env=environment, capture_output=True, text=True)
        if run.returncode:
            print(run.stderr[-1500:], file=sys.stderr)
            continue
        figures = json.loads(run.stdout.splitlines()[-1])
        text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        print(f"| {case} | {compiler} | {text} |", flush=True)


def measure(case: str, compiler: str, device: str) -> dict[str, float]:
    given = min(CASES[case], 8) if device == "cpu" else CASES[case]
    return generate(compiler, device, given) if given else decode(compiler, device)


def run_command(
    module: str,
    description: str | None,
    cases: Iterable[str],
    compilers: Sequence[str],
    measure: Callable[[str, str, str], dict[str, float]],
) -> None:
    """The command line of ``module``, which has ``measure(case, compiler, device)``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("cases", nargs="*", default=list(cases))
    parser.add_argument("--compilers", default=",".join(compilers))
    parser.add_argument("--measure", action="store_true", help="one case, in this process")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.measure:
        (case,) = options.cases
        print(json.dumps(measure(case, options.compilers, "cpu" if options.tiny else "cuda")))
    else:
        print_table(module, options.cases, options.compilers.split(","), options.tiny)


if __name__ == "__main__":
    run_command("benchmarks.gpu_decode", __doc__, CASES, COMPILERS, measure)
