"""How the C++ code generator works."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class CppOptions:
    """Options of :class:`~weft_codegen_cpp.CppCodegen`.

    ``cache_directory``: where compiled libraries are kept; None: ``$WEFT_CACHE_DIR/cpp``, else the user's
    cache directory.
    ``cache_limit``: bytes that it may have, what was used longest ago goes; 0 for any number, None:
    ``$WEFT_CACHE_LIMIT``, or 4 GiB.
    ``compiler``: the command of a GCC or Clang, words quoted as in a shell; None: ``$CXX``, then ``g++``,
    ``clang++``, ``c++`` on the path.
    ``threads``: the most threads a kernel runs on, 0 for torch's own number.
    ``architecture``: the value of ``-march``; None: ``native``.
    ``lanes``: values of any type in a vector (4, 8 or 16); None: by the instruction set.
    ``keep_sources``: keep the generated source beside the library.
    ``poison_arena``: fill intermediate memory with NaN before each call, to find reads of memory that nothing
    wrote.
    ``timed``: programs note when each step ends, for :meth:`CppProgram.timeline`.
    ``processes``: how many compilers work on one graph at once; 0: by its kernels and the idle cores.
    ``compiler_seconds``: how long one run of the compiler may take; None: ``$WEFT_COMPILER_SECONDS``, or 900.
    ``unoptimized_length``: characters of source from which a program is compiled without optimization, in an
    eighth of the time, for tests of what programs compute; None: ``$WEFT_UNOPTIMIZED_LENGTH``, or never.
    ``matmul_library``: the library of large float32 matmuls, "torch" for the one that torch uses, "onednn",
    or "auto" for oneDNN where torch's is MKL on a processor whose AVX-512 it leaves unused.
    ``eager_numerics``: programs give eager's bits, by loops where these do, else by eager's own calls.
    """

    cache_directory: Path | None = None
    cache_limit: int | None = None
    compiler: str | None = None
    threads: int = 0
    architecture: str | None = None
    lanes: int | None = None
    keep_sources: bool = False
    poison_arena: bool = False
    timed: bool = False
    processes: int = 0
    compiler_seconds: float | None = None
    unoptimized_length: int | None = None
    matmul_library: Literal["auto", "torch", "onednn"] = "auto"
    eager_numerics: bool = False
