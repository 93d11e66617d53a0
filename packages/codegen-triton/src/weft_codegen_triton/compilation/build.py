"""Compiles one kernel with Triton.  Runs in the compile server, which has no torch."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
import triton.compiler.code_generator
import triton.language.extra.libdevice
import triton.runtime.cache
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from weft_codegen_triton.compilation.binary import CompileJob, KernelBinary, triton_version
from weft_codegen_triton.compilation.cache import load_module, put


def prepare() -> None:
    """Do before children are forked what Triton would do in each of them.

    This module has imported what Triton imports at its first kernel.  The entries of Triton's own cache are
    named by a hash of its whole library, of 400 MB; its version says enough, as it does for ours.
    """
    version = triton_version()
    triton.runtime.cache.triton_key = lambda: version


class TargetOnly:
    """A driver that knows only what is compiled for; Triton's own would import torch and start CUDA."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        """The GPU that functions which look at it are compiled for."""
        return self._target


def build(job: CompileJob, folder: Path) -> KernelBinary:
    """The machine code of ``job``'s kernel; its module's text stays in ``folder`` for debuggers.

    Loops are not unrolled where Triton fails on that: 3.6 loses values of a row that two unrolled loops use
    (``remove-layout-conversions``: "operand does not dominate this use").
    """
    path = folder / f"{job.key()}.py"
    if job.rolled is not None:
        with contextlib.suppress(RuntimeError), _no_diagnostics():
            return _build(job, job.module, path)
        path = path.with_stem(f"{path.stem}_rolled")
    return _build(job, job.rolled or job.module, path)


@contextlib.contextmanager
def _no_diagnostics() -> Iterator[None]:
    """Nothing on the process's standard error, where LLVM's passes print whole modules when they fail."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _build(job: CompileJob, module: str, path: Path) -> KernelBinary:
    """The machine code of ``module``, the text of ``job``'s or one for it, which is written to ``path``."""
    put(path, module.encode())
    function = getattr(load_module(path), job.name)
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


def _parameter_count(ptx: str) -> int:
    """How many parameters the entry function has."""
    found = re.search(r"\.entry\s+\w+\s*\((.*?)\)", ptx, re.DOTALL)
    assert found is not None
    return found.group(1).count(".param")
