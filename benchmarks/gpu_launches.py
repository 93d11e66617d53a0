"""What launches cost the host, one by one and as CUDA graphs: ``python -m benchmarks.gpu_launches``.

Prints a Markdown table: microseconds of the host for each kernel of a list, medians of 200 calls, with
nothing waiting on the device; arguments as in the call before, and all of them changed.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_triton import TritonCodegen, TritonOptions
from weft_codegen_triton.compilation.cache import cache_directory
from weft_codegen_triton.runtime.cuda_device import CudaDevice
from weft_codegen_triton.runtime.cuda_driver import native_launch_list

LENGTHS = (1, 8, 64)


def microseconds(call: Callable[..., None], lists: list[list[int]], length: int) -> float:
    """Of the host, for each of ``length`` kernels, over calls with ``lists`` of addresses in turn."""
    times = []
    stream = torch.cuda.current_stream().cuda_stream
    for k in range(210):
        torch.cuda.synchronize()
        addresses = lists[k % len(lists)]
        start = time.perf_counter()
        call(stream, *addresses)
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times[10:]) / length


def main() -> None:
    xs = [torch.randn(1 << 12, device="cuda") for _ in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        options = TritonOptions(cache_directory=Path(folder), interpret=False)
        codegen = TritonCodegen(options)
        graph = make_fx(lambda x: x + 1, tracing_mode="fake")(xs[0])
        schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
        printed = codegen.print(schedule)
        device = CudaDevice(xs[0].device, cache_directory(Path(folder)), options)
        launchers = device.load(printed.functions)
        ((launch,),) = printed.host.launches.values()
        print("| launches in a list | one by one, µs | a graph, the same arguments | others |")
        print("|---|---|---|---|")
        for length in LENGTHS:
            launches = [(launchers[launch.function], launch.terms)] * length
            one_by_one = native_launch_list(launches, as_graph=False)
            as_graph = native_launch_list(launches, as_graph=True)
            pairs = [[x.data_ptr(), y.data_ptr()] for x, y in (xs[:2], xs[2:])]
            cells = [
                microseconds(one_by_one, pairs[:1], length),
                microseconds(as_graph, pairs[:1], length),
                microseconds(as_graph, pairs, length),
            ]
            print(f"| {length} | " + " | ".join(f"{c:.2f}" for c in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
