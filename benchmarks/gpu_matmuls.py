"""Products and convolutions of models on a GPU: the library beside kernels of our own.

``python -m benchmarks.gpu_matmuls [--check] [WORDS]`` times each problem whose description has one of WORDS
(all without) with random values of float16: the library's calls and the fused loops around them, our kernel
for the contraction alone with the loops around it apart, and one kernel for all that may be in it, each in
the fastest of the tiles that are tried.  ``--check`` compares one kernel with float64 instead, in several
dtypes.  Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen, TritonOptions
from weft_codegen_triton.kernel.frame import RowLimits
from weft_codegen_triton.matmuls.choose_matmuls import MatmulChooser
from weft_codegen_triton.matmuls.fuse_matmuls import all_forms
from weft_codegen_triton.matmuls.precision import Precision
from weft_codegen_triton.runtime.cuda_device import CudaDevice
from weft_codegen_triton.runtime.cuda_driver import gpu_of_device
from weft_loop_ir import Schedule

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
ERROR = {torch.float16: 2e-3, torch.bfloat16: 1.5e-2, torch.float32: 1e-5}
"""Of results of one dtype, relative to float64's, by norm."""
TF32_ERROR = 2e-3


def r(*size: int) -> torch.Tensor:
    return torch.randn(size, device="cuda") / size[-1] ** 0.25


def image(images: int, channels: int, height: int, width: int) -> torch.Tensor:
    """Channels-last, weights too."""
    return r(images, height, width, channels).permute(0, 3, 1, 2)


def linear_cases() -> dict[str, Case]:
    """Of transformers, at the batches of the PyTorch 2 suites."""
    return {
        "BERT query, 8192x768x768": (F.linear, (r(8192, 768), r(768, 768), r(768))),
        "BERT output + residual, 8192x768x768": (
            lambda x, w, b, y: F.linear(x, w, b) + y,
            (r(8192, 768), r(768, 768), r(768), r(8192, 768)),
        ),
        "BERT gelu, 8192x768x3072": (
            lambda x, w, b: F.gelu(F.linear(x, w, b)),
            (r(8192, 768), r(3072, 768), r(3072)),
        ),
        "BERT second + residual, 8192x3072x768": (
            lambda x, w, b, y: F.linear(x, w, b) + y,
            (r(8192, 3072), r(768, 3072), r(768), r(8192, 768)),
        ),
        "GPT-2 query key value, 2048x768x2304": (
            torch.addmm,
            (r(2304), r(2048, 768), r(768, 2304)),
        ),
        "GPT-2 gelu, 2048x768x3072": (
            lambda b, x, w: F.gelu(torch.addmm(b, x, w), approximate="tanh"),
            (r(3072), r(2048, 768), r(768, 3072)),
        ),
        "GPT-2 second + residual, 2048x3072x768": (
            lambda b, x, w, y: torch.addmm(b, x, w) + y,
            (r(768), r(2048, 3072), r(3072, 768), r(2048, 768)),
        ),
        "Llama gate, silu(x w) * (x v), 2048x1024x2816": (
            lambda x, w, v: F.silu(F.linear(x, w)) * F.linear(x, v),
            (r(2048, 1024), r(2816, 1024), r(2816, 1024)),
        ),
        "Llama down + residual, 2048x2816x1024": (
            lambda x, w, y: F.linear(x, w) + y,
            (r(2048, 2816), r(1024, 2816), r(2048, 1024)),
        ),
        "Llama query, key and value, 2048x1024": (
            lambda x, q, k, v: (F.linear(x, q), F.linear(x, k), F.linear(x, v)),
            (r(2048, 1024), r(1024, 1024), r(256, 1024), r(256, 1024)),
        ),
        "T5 relu, 2048x512x2048": (
            lambda x, w: F.linear(x, w).relu(),
            (r(2048, 512), r(2048, 512)),
        ),
        "ViT gelu, 12608x384x1536": (
            lambda x, w, b: F.gelu(F.linear(x, w, b)),
            (r(12608, 384), r(1536, 384), r(1536)),
        ),
        "ViT second + residual, 12608x1536x384": (
            lambda x, w, b, y: F.linear(x, w, b) + y,
            (r(12608, 1536), r(384, 1536), r(384), r(12608, 384)),
        ),
        "scores * scale + mask, 192 of 512x64x512": (
            lambda q, k, m: torch.bmm(q, k.transpose(1, 2)) * 0.125 + m,
            (r(192, 512, 64), r(192, 512, 64), r(512, 512)),
        ),
        "8 experts of 2048 rows, 1024x2816, silu": (
            lambda x, w, e: F.silu(torch._grouped_mm(x.bfloat16(), w.bfloat16(), e)),
            (
                r(2048, 1024),
                r(8, 1024, 2816),
                torch.arange(256, 2049, 256, device="cuda", dtype=torch.int32),
            ),
        ),
    }


def decode_cases() -> dict[str, Case]:
    """Of a token at a time, or a few."""
    found: dict[str, Case] = {}
    for rows in (1, 4, 16):
        found[f"decode + residual, {rows}x4096x4096"] = (
            lambda x, w, y: F.linear(x, w) + y,
            (r(rows, 4096), r(4096, 4096), r(rows, 4096)),
        )
        found[f"decode gelu, {rows}x768x3072"] = (
            lambda x, w, b: F.gelu(F.linear(x, w, b)),
            (r(rows, 768), r(3072, 768), r(3072)),
        )
    found["decode silu(x) before, 1x11008x4096"] = (
        lambda x, y, w: F.linear(F.silu(x) * y, w),
        (r(1, 11008), r(1, 11008), r(4096, 11008)),
    )
    weight = torch.randint(-127, 128, (4096, 4096), dtype=torch.int8, device="cuda")
    found["decode int8 weight, 4x4096x4096"] = (
        lambda x, w, s: F.linear(x, w.to(x.dtype) * s),
        (r(4, 4096), weight, r(4096, 1)),
    )
    return found


def convolution_cases() -> dict[str, Case]:
    """Of ResNet-50, ConvNeXt and MobileNet at 64 images, channels-last."""
    return {
        "ResNet 1x1 relu, 256 to 64 at 56": (
            lambda x, w, b: F.relu(F.conv2d(x, w, b)),
            (image(64, 256, 56, 56), image(64, 256, 1, 1), r(64)),
        ),
        "ResNet 1x1 + residual, 64 to 256 at 56": (
            lambda x, w, b, y: F.relu(F.conv2d(x, w, b) + y),
            (image(64, 64, 56, 56), image(256, 64, 1, 1), r(256), image(64, 256, 56, 56)),
        ),
        "ResNet 1x1 in steps of 2, 256 to 512 at 56": (
            lambda x, w, b: F.conv2d(x, w, b, stride=2),
            (image(64, 256, 56, 56), image(512, 256, 1, 1), r(512)),
        ),
        "ResNet 1x1 relu, 1024 to 256 at 14": (
            lambda x, w, b: F.relu(F.conv2d(x, w, b)),
            (image(64, 1024, 14, 14), image(256, 1024, 1, 1), r(256)),
        ),
        "ResNet 3x3 relu, 64 at 56": (
            lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
            (image(64, 64, 56, 56), image(64, 64, 3, 3), r(64)),
        ),
        "ResNet 3x3 relu, 256 at 14": (
            lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
            (image(64, 256, 14, 14), image(256, 256, 3, 3), r(256)),
        ),
        "ResNet 3x3 in steps of 2, 128 at 56": (
            lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1, stride=2)),
            (image(64, 128, 56, 56), image(128, 128, 3, 3), r(128)),
        ),
        "ConvNeXt 7x7 each channel, 96 at 56": (
            lambda x, w, b: F.conv2d(x, w, b, padding=3, groups=96),
            (image(64, 96, 56, 56), r(96, 1, 7, 7), r(96)),
        ),
        "MobileNet 3x3 each channel, 64 at 56, relu": (
            lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1, groups=64)),
            (image(64, 64, 56, 56), r(64, 1, 3, 3), r(64)),
        ),
        "MobileNet 5x5 each channel, 120 at 28, hardswish": (
            lambda x, w, b: F.hardswish(F.conv2d(x, w, b, padding=2, groups=120)),
            (image(64, 120, 28, 28), r(120, 1, 5, 5), r(120)),
        ),
        "MobileNet 1x1 hardswish, 40 to 240 at 28": (
            lambda x, w, b: F.hardswish(F.conv2d(x, w, b)),
            (image(64, 40, 28, 28), image(240, 40, 1, 1), r(240)),
        ),
    }


def schedule_of(
    codegen: TritonCodegen, function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]
) -> tuple[Schedule, list[str]]:
    """The schedule as the pipeline makes it, and its nodes' names in order."""
    with torch.no_grad():
        graph = make_fx(function, tracing_mode="fake")(*inputs)
    codegen.rewrite(graph)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
    return schedule, [node.name for node in graph.graph.nodes]


def one_function(cases: dict[str, Case]) -> Case:
    """All cases as one, so that their kernels are compiled together."""

    def function(*inputs: torch.Tensor) -> list[Any]:
        left, results = list(inputs), []
        for run, own in cases.values():
            result = run(*left[: len(own)])
            results += result if isinstance(result, tuple) else (result,)
            del left[: len(own)]
        return results

    return function, tuple(tensor for _, own in cases.values() for tensor in own)


def halves(case: Case, dtype: torch.dtype = torch.float16) -> Case:
    function, inputs = case
    return function, tuple(t.to(dtype) if t.is_floating_point() else t for t in inputs)


def time_all(cases: dict[str, Case]) -> None:
    """Print milliseconds of each contraction with what is around it."""
    codegen = TritonCodegen(TritonOptions(cuda_graphs=False))
    cases = {name: halves(case) for name, case in cases.items()}
    schedule, order = schedule_of(codegen, *one_function(cases))
    gpu = gpu_of_device(torch.cuda.current_device())
    found = all_forms(schedule, gpu)
    problems = sorted(found, key=lambda forms: order.index(forms[0].call.origin))
    names = [
        name for name, case in cases.items() for _ in all_forms(schedule_of(codegen, *case)[0], gpu)
    ]
    assert len(names) == len(problems)
    with tempfile.TemporaryDirectory() as folder:
        device = CudaDevice(None, Path(folder), TritonOptions())
        limits, precision = RowLimits(8192, 4096), Precision.current()
        chooser = MatmulChooser(device, Path(folder), schedule.buffers, limits, precision)
        choices = chooser.decide(problems)
    print(
        "| problem | library | alone | fused | best | tile | failed |\n|---|---|---|---|---|---|---|"
    )
    for name, forms, choice in zip(names, problems, choices, strict=True):
        alone, *others = reversed(choice.forms_ms)
        fused = min((t for t in others if t is not None), default=None)
        library = choice.library_ms or float("nan")
        best = min((t for t in choice.forms_ms if t is not None), default=library)
        what = "library" if choice.form is None else f"{len(forms[choice.form].replaces)} steps"
        print(
            f"| {name} | {library:.4f} | {_text(alone)} | {_text(fused)} | "
            f"{library / best:.2f}x, {what} | {choice.tile or ''} | {choice.failed} |"
        )


def _text(time: float | None) -> str:
    return "" if time is None else f"{time:.4f}"


def check_all(cases: dict[str, Case]) -> None:
    """Compare one kernel for each case with float64; raises AssertionError."""
    settings = [(dtype, "ieee") for dtype in ERROR] + [(torch.float32, "tf32")]
    count = 0
    for dtype, precision in settings:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
            precision == "tf32"
        )
        codegen = TritonCodegen(TritonOptions(cuda_graphs=False, fuse_matmuls=True))
        given = {name: halves(case, dtype) for name, case in cases.items()}
        if dtype is not torch.bfloat16:
            given = {n: c for n, c in given.items() if "experts" not in n}
        function, inputs = one_function(given)
        schedule, _ = schedule_of(codegen, function, inputs)
        program = codegen.compile(schedule, {})
        assert program.extern_count == 0, program.source
        results = program(*inputs)
        position = 0
        for name, (own, operands) in given.items():
            exact = own(*(t.double() if t.is_floating_point() else t for t in operands)) if (
                "experts" not in name
            ) else own(*operands)  # fmt: skip
            for wanted in exact if isinstance(exact, tuple) else (exact,):
                error = (results[position].double() - wanted).norm() / wanted.double().norm()
                bound = TF32_ERROR if precision == "tf32" else ERROR[dtype]
                assert error <= bound, f"{name}: {error:.1e} in {dtype}, {precision}"
                position += 1
                count += 1
    print(f"{count} results right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    cases = {**linear_cases(), **decode_cases(), **convolution_cases()}
    if arguments.words:
        cases = {n: c for n, c in cases.items() if any(word in n for word in arguments.words)}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    (check_all if arguments.check else time_all)(cases)


if __name__ == "__main__":
    main()
