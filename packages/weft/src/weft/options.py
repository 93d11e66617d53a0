"""Options of ``weft.compile``, checked as torch.compile checks its own."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from .guard_filter import GuardFilter

Numerics = Literal["fast", "eager"]
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class CompileOptions:
    """What ``options=`` of :func:`weft.compile` may set.

    ``recompile_limit``: entries a code object may have before it runs eagerly, of objects that are alive.
    ``activation_memory_budget``: bytes kept for backward as a fraction (0 to 1) of what is kept by default;
    less is recomputed in backward.
    ``row_block_bytes``: a matrix of at least so many bytes (in float32), which a matmul makes and the rest
    only reads row by row, as a loss does logits, is computed in blocks of rows, with its gradient, and never
    held whole; None: none is.  In training that are losses: what layers have between two matmuls is whole.
    ``keep_control_flow``: branches and loops on tensors' values and long loops stay in the graph, where
    every stage takes them; elsewhere loops are unrolled and branches break the graph.
    ``freezing``: where no gradients are recorded, parameters are taken for constants: what depends on them
    alone is computed once, batch norms join convolutions, weights are laid out for the library, on GPUs
    matmuls of one matrix with several parameters become one.  A write to a
    parameter has the program made again, except a write through ``.data``, which is not seen.
    ``guard_libraries``: replacing a function or class of a library that other functions of libraries use
    (``torch.nn.functional.gelu = f``, which ``nn.GELU`` calls) is noticed in later calls, at the cost of more
    guards.  What the program's own code names, methods of tensors too, and modules' ``forward`` are guarded
    without it.
    ``share_blocks``: on the CPU, a stack of at least six blocks that are alike, as a transformer's layers, is
    compiled as programs of one block each, and blocks that are alike have one: compiling takes little longer
    for many layers than for few. Each block costs a call of its program, and nothing is fused across blocks:
    it pays where a block takes milliseconds. Graphs that write to tensors or have sizes that vary are one
    program.
    ``error_on_recompile``: raise :class:`weft.RecompileError` where a function that was compiled would have
    to be compiled again, instead of compiling it.
    ``guard_filter_fn``: a function that is given the guards of each compiled frame (a list of
    :class:`weft.GuardEntry`) and gives a truth value for each: those that are false are not checked in later
    calls.  Results are wrong where what they say has changed.
    ``cache_limit``: bytes that each of the caches on disk (libraries, kernels, programs) may have: what was
    used longest ago goes; 0 for any number, None: ``$WEFT_CACHE_LIMIT`` (``500M``, ``2G``, bytes), or 4 GiB.
    ``shared_cache``: a folder by a URL of fsspec (``s3://bucket/weft``): programs that the caches on disk do
    not have are looked for there, and sent there when they are compiled; default from WEFT_SHARED_CACHE.
    What it holds is run: name only a place that nobody writes to whom you do not trust.
    ``dump_directory``: where every stage's result is written, None for nowhere; default from WEFT_DUMP.
    ``strict``: a stage's error is raised instead of falling back to eager; default from WEFT_STRICT.  It is
        raised where the failing frame begins: a mode that the program has switched before stays switched.
    ``verify``: check the IR between stages; default: as ``strict``.
    ``numerics``: "fast", or "eager" for results that are eager's to the last bit, on the CPU: operators that
    round otherwise in our loops run as eager's own kernels, the rest is fused.  Not with ``freezing``.
    ``mode``: what the ``mode`` argument said; not settable by ``options``.
    """

    recompile_limit: int = 8
    activation_memory_budget: float = 1.0
    row_block_bytes: int | None = 1 << 28
    keep_control_flow: bool = True
    freezing: bool = False
    guard_libraries: bool = False
    share_blocks: bool = False
    error_on_recompile: bool = False
    guard_filter_fn: GuardFilter | None = None
    cache_limit: int | None = None
    shared_cache: str | None = None
    dump_directory: Path | None = None
    strict: bool = False
    verify: bool = False
    numerics: Numerics = "fast"
    mode: str = "default"


_OPTIONAL: Mapping[str, type] = {"cache_limit": int, "shared_cache": str, "row_block_bytes": int}
"""Types of options that may be None."""


def resolve_options(
    mode: str | None,
    options: Mapping[str, object] | None,
    environment: Mapping[str, str] = os.environ,
    *,
    numerics: str | None = None,
) -> CompileOptions:
    """The options that ``mode``, ``options``, the environment and ``numerics`` ask for.

    Raises RuntimeError on an unknown mode or option, or when both are given, as torch.compile does, and
    TypeError when ``options`` is no mapping.
    """
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options must be a mapping of names, got {type(options).__name__}")
    if mode is not None and options is not None:
        raise RuntimeError(
            "Either mode or options can be specified, but both can't be specified at the same time."
        )
    if mode is not None and mode not in MODES:
        raise RuntimeError(f"Unrecognized mode={mode}, should be one of: {', '.join(MODES)}")
    strict = environment.get("WEFT_STRICT", "0") not in ("", "0")
    dump = environment.get("WEFT_DUMP")
    defaults = CompileOptions(
        dump_directory=Path(dump) if dump else None,
        shared_cache=environment.get("WEFT_SHARED_CACHE") or None,
        strict=strict,
        verify=strict,
        mode=mode or "default",
    )
    given = dict(options or {}) if numerics is None else {**(options or {}), "numerics": numerics}
    changes = {key: _checked(key, value, defaults) for key, value in given.items()}
    resolved = dataclasses.replace(defaults, **changes)  # type: ignore[arg-type]
    if resolved.freezing and resolved.numerics == "eager":
        raise RuntimeError("freezing changes bits: it can't be combined with numerics='eager'")
    return resolved


def _checked(key: str, value: object, defaults: CompileOptions) -> object:
    """The value of an option.

    Raises RuntimeError for an unknown option, or a value that it cannot have.
    """
    known = {f.name for f in dataclasses.fields(CompileOptions) if f.name != "mode"}
    if key not in known:
        raise RuntimeError(
            f"Unexpected optimization option {key}, known options are {sorted(known)}"
        )
    expected = _OPTIONAL.get(key) or type(getattr(defaults, key))
    if key == "dump_directory":
        return None if value is None else Path(str(value))
    if key == "guard_filter_fn":
        if value is not None and not callable(value):
            raise RuntimeError(f"Unexpected type of attr {key}, got {type(value).__name__}")
        return value
    if type(value) is not expected and not (key in _OPTIONAL and value is None):
        raise RuntimeError(
            f"Unexpected type of attr {key}, got {type(value).__name__} "
            f"should be {expected.__name__}"
        )
    if key in ("cache_limit", "row_block_bytes") and isinstance(value, int) and value < 0:
        raise RuntimeError(f"Unexpected value of attr {key}, got {value}")
    if key == "numerics" and value not in get_args(Numerics):
        raise RuntimeError(
            f"Unrecognized numerics={value}, should be one of: {', '.join(get_args(Numerics))}"
        )
    return value
