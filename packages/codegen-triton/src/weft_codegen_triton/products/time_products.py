"""Whether a product is faster in one kernel with the loops that read it: timed beside the library's.

Both run on random values; what was found is kept on disk by problem and device.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from weft_loop_ir import Buffer, BufferView

from weft_codegen_triton.compilation.cache import put
from weft_codegen_triton.kernel.frame import RowLimits
from weft_codegen_triton.kernel.kernel_printer import Function, PrintedKernel, print_kernel
from weft_codegen_triton.products.find_products import ProductKernel
from weft_codegen_triton.products.print_product import print_product

LAUNCHES = 20
"""Runs that are timed together."""
REPEATS = 5
BUSY_EXTENT = 8192
"""Of the matrices of a product that takes more than a millisecond, longer than the launches."""
LEAST_GAIN = 0.97
"""The share of the library's time that a kernel takes at most, to be chosen."""


class KernelLoader(Protocol):
    """The device: compiles functions, gives their launchers, and the current stream."""

    index: int

    def load(self, functions: Mapping[str, Function]) -> dict[str, Callable[..., None]]: ...

    def stream(self) -> int: ...


class ProductTimer:
    """Says which products are to be fused, by their times on ``device``; ``folder`` holds what is known."""

    def __init__(
        self,
        device: KernelLoader,
        folder: Path,
        buffers: Mapping[str, Buffer],
        limits: RowLimits,
    ) -> None:
        self._device = device
        self._folder = folder
        self._buffers = buffers
        self._limits = limits

    def __call__(self, product: ProductKernel) -> bool:
        fused = print_product(product, self._buffers)
        path = self._folder / f"{self._key(product, fused)}.product"
        known = _read(path)
        if known is None:
            apart, together = self._times(product, fused)
            known = together < LEAST_GAIN * apart
            record = {"fused": known, "ms_apart": apart, "ms_fused": together}
            put(path, json.dumps(record).encode())
        return known

    def _key(self, product: ProductKernel, fused: PrintedKernel) -> str:
        """A hash of the problem: the kernel's text holds sizes, strides and dtypes."""
        name = torch.cuda.get_device_name(self._device.index)
        text = [fused.function.template, str(product.product.operator), name, torch.__version__]
        return hashlib.sha256("\n".join(text).encode()).hexdigest()[:32]

    def _times(self, product: ProductKernel, fused: PrintedKernel) -> tuple[float, float]:
        """Milliseconds of the library's call with the kernel after it, and of the one kernel."""
        rest = print_kernel(product.rest, self._buffers, self._limits)
        launchers = self._device.load({"fused": fused.function, "rest": rest.function})
        names = {product.result, *fused.buffers, *rest.buffers}
        tensors = {n: _random(self._buffers[n]) for n in sorted(names)}
        call, result = product.product, tensors[product.result]
        operands = [_window(tensors[v.buffer], v) for v in call.arguments]
        out_variant = call.out_variant
        assert out_variant is not None

        def apart() -> None:
            out_variant(*operands, out=result)
            self._launch(launchers["rest"], rest, tensors)

        def together() -> None:
            self._launch(launchers["fused"], fused, tensors)

        return _milliseconds(apart, result.device), _milliseconds(together, result.device)

    def _launch(
        self,
        launcher: Callable[..., None],
        printed: PrintedKernel,
        tensors: Mapping[str, torch.Tensor],
    ) -> None:
        blocks = zip(printed.counts, printed.blocks, strict=True)
        grid = [-(-int(count) // block) for count, block in blocks]
        scratch = [
            torch.empty(int(s.elements), dtype=s.dtype, device="cuda") for s in printed.scratch
        ]
        pointers = [t.data_ptr() for t in (*(tensors[n] for n in printed.buffers), *scratch)]
        launcher(self._device.stream(), *(*grid, 1)[:2], *pointers)


def can_be_timed(product: ProductKernel) -> bool:
    """Whether the kernels need nothing but memory."""
    return not any(
        instruction.operation == "scalar"
        for stage in product.stages
        for instruction in stage.body.instructions
    )


def _read(path: Path) -> bool | None:
    try:
        known = json.loads(path.read_text()).get("fused")
    except (OSError, ValueError, AttributeError):
        return None
    return known if isinstance(known, bool) else None


def _random(buffer: Buffer) -> torch.Tensor:
    layout = buffer.layout
    size, stride = ([int(n) for n in numbers] for numbers in (layout.size, layout.stride))
    tensor = torch.empty_strided(size, stride, dtype=layout.dtype, device=layout.device)
    return tensor.normal_() if layout.dtype.is_floating_point else tensor.zero_()


def _window(tensor: torch.Tensor, view: BufferView) -> torch.Tensor:
    size, stride = ([int(n) for n in numbers] for numbers in (view.size, view.stride))
    return tensor.as_strided(size, stride, int(view.offset))


def _milliseconds(run: Callable[[], None], device: torch.device) -> float:
    """The median time of a run on the device, after some that warm up and choose among variants.

    A large product comes first, so that the host has launched all that is timed before it begins.
    """
    operand = torch.empty(BUSY_EXTENT, BUSY_EXTENT, dtype=torch.float16, device=device).normal_()
    result = torch.empty_like(operand)
    for _ in range(3):
        run()
    times: list[float] = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.mm(operand, operand, out=result)
        start.record()
        for _ in range(LAUNCHES):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / LAUNCHES)
    return sorted(times)[REPEATS // 2]
