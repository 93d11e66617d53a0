"""Compiles one kernel with Triton.  Runs in the compile server, which has no torch."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from weft_codegen_triton.compilation.binary import CompileJob, KernelBinary
from weft_codegen_triton.compilation.cache import put


class TargetOnly:
    """A driver that knows only what is compiled for; Triton's own would import torch and start CUDA."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        """The GPU that functions which look at it are compiled for."""
        return self._target


def build(job: CompileJob, folder: Path) -> KernelBinary:
    """The machine code of ``job``'s kernel; its module's text stays in ``folder`` for debuggers."""
    path = folder / f"{job.key()}.py"
    put(path, job.module.encode())
    function = getattr(_load(path), job.name)
    names = list(job.signature)
    source = ASTSource(
        function,
        dict(job.signature),
        {(names.index(name),): value for name, value in job.constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in job.aligned},
    )
    target = GPUTarget("cuda", job.capability, 32)
    triton.runtime.driver.set_active(TargetOnly(target))
    compiled: Any = triton.compile(
        source,
        target=target,
        options={
            "num_warps": job.warps,
            "num_stages": job.stages,
            "debug": job.checks,
            "sanitize_overflow": False,  # integers wrap
        },
    )
    metadata = compiled.metadata
    if metadata.global_scratch_size:
        raise RuntimeError("the kernel asks for scratch memory")
    arguments = sum(kind != "constexpr" for kind in job.signature.values())
    return KernelBinary(
        metadata.name,
        compiled.asm["cubin"],
        metadata.shared,
        metadata.num_warps,
        _parameter_count(compiled.asm["ptx"]) - arguments,
    )


def _load(path: Path) -> Any:
    specification = importlib.util.spec_from_file_location(f"weft_kernel_{path.stem}", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _parameter_count(ptx: str) -> int:
    """How many parameters the entry function has."""
    found = re.search(r"\.entry\s+\w+\s*\((.*?)\)", ptx, re.DOTALL)
    assert found is not None
    return found.group(1).count(".param")
