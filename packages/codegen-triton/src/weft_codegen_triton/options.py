"""How the Triton code generator works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft_codegen_triton.gpu import Gpu

INT32_SAFE = 2**31 - 2**21
"""Indices below this do not overflow 32 bits, the padding of the last block included."""


@dataclass(frozen=True)
class TritonOptions:
    """Options of :class:`~weft_codegen_triton.TritonCodegen`.

    ``cache_directory``: where sources and compiled kernels are kept; None: ``$WEFT_CACHE_DIR/triton``, else
    ``weft/triton`` in the user's cache directory.
    ``cache_limit``: bytes that it may have, what was used longest ago goes; 0 for any number, None:
    ``$WEFT_CACHE_LIMIT``, or 4 GiB.
    ``persistent_elements``: the longest row that a reduction holds in registers.
    ``loop_elements``: how much of a longer row a step of its loop handles, more or less; a power of two.
    ``cuda_graphs``: replay a recorded CUDA graph where that is sound.
    ``min_recorded_steps``: kernels and calls of a program from which it is recorded.
    ``copied_bytes``: how much a recording may copy at each call, of inputs that move and of results, for
    which it holds memory of its own; more if it is at most half of what the call is given besides
    parameters.
    ``launch_graphs``: make launches that follow each other as one CUDA graph, in programs that are not
    replayed as a whole.
    ``autotune``: time several block sizes of each kernel on the device and keep the fastest.
    ``fuse_matmuls``: let kernels of our own compute matmuls and convolutions, with the loops around them;
    None: where that is faster on the device, if ``autotune`` is on, else where it is known to be.
    ``fuse_attention``: let a kernel of our own compute the matmuls of attention and the softmax between
    them, where the library has none for what is done to scores; None: where that is faster on the device, if
    ``autotune`` is on, else in 16 bits.
    ``program_loops``: have one program of the device run a loop that data ends, where that is faster than
    waiting for its test in the host.
    ``narrow_below``: where sizes vary, indices have 32 bits in calls that keep them below this, else 64.
    ``compile_processes``: kernels compiled at once; 0 for one a processor, at most 16.
    ``interpret``: run kernels on CPU tensors through Triton's interpreter, for tests; None: as the
    environment's ``TRITON_INTERPRET`` says.
    ``gpu``: what kernels are made for, in place of what the device's driver says of it.
    """

    cache_directory: Path | None = None
    cache_limit: int | None = None
    persistent_elements: int = 8192
    loop_elements: int = 4096
    cuda_graphs: bool = True
    min_recorded_steps: int = 4
    copied_bytes: int = 1 << 28
    launch_graphs: bool = True
    autotune: bool = False
    fuse_matmuls: bool | None = None
    fuse_attention: bool | None = None
    program_loops: bool = True
    narrow_below: int = INT32_SAFE
    compile_processes: int = 0
    interpret: bool | None = None
    gpu: Gpu | None = None


MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {"cuda_graphs": True, "autotune": False},
    "reduce-overhead": {"copied_bytes": 1 << 40},
    "max-autotune": {"autotune": True, "copied_bytes": 1 << 40},
    "max-autotune-no-cudagraphs": {"autotune": True, "cuda_graphs": False},
}
"""torch.compile's modes, by the options that they change.

Its default replays no CUDA graphs, since they may overwrite what a caller holds; here they never do.  Those
that are to save time at the price of memory replay whatever it costs, where as much again is free.
"""


def options_for_mode(options: TritonOptions, mode: str) -> TritonOptions:
    """``options`` as ``mode`` changes them; raises ValueError for an unknown one."""
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}, known are {', '.join(MODES)}")
    return replace(options, **{**MODES["default"], **MODES[mode]})
