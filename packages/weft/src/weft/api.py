"""``weft.compile``: torch.compile's signature over weft's pipeline."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import torch
import weft_bytecode_capture as capture
from weft_functionalize import check_operands

from ._torch import BROADCASTS
from .compiled_module import CompiledModule
from .contexts import context_of, note_options
from .errors import StageError, WeftWarning
from .foreign_backend import foreign_backend
from .guard_filter import of_guards
from .logs import requested_logs
from .options import CompileOptions, Numerics, resolve_options
from .pausing_functions import compile_pausing, pauses
from .pipeline import Pipeline
from .program_cache import ProgramCache
from .registry import BackendFunction, find_backend, stage_folders
from .report import Watch
from .results_on_disk import ResultsOnDisk
from .shared_cache import shared_cache
from .standing_observers import standing_observers

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=torch.nn.Module)

_EAGER_IN_TRAINING: frozenset[Callable[..., object]] = frozenset(BROADCASTS)
"""A broadcast has no formula, and what eager makes of its gradient comes with a warning."""

_STEPS_IN_TRAINING: Mapping[Callable[..., object], int] = {torch.lstm: 128}
"""On the CPU oneDNN computes ``torch.lstm`` and leaves a workspace for backward whose size only it knows.

So it is unrolled into its steps, of each layer and direction.  A step is a dozen operators in forward, and
compiling as many as 128 takes some seconds; longer sequences stay oneDNN's.
"""

_LIBRARY_RECURRENCES = frozenset(
    ("cuda", dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
)
"""Where cuDNN computes recurrent networks: it is given one memory with all of a network's weights."""

_SPARSE_GRADIENTS: Mapping[Callable[..., object], int] = {
    torch.embedding: 4,
    torch.embedding_bag: 5,
    torch.nn.functional.embedding: 6,
    torch.nn.functional.embedding_bag: 7,
}
"""Functions that give gradients which lie in no strided memory, and where their argument ``sparse`` is."""


@overload
def compile(
    model: torch.nn.Module,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | BackendFunction = ...,
    mode: str | None = ...,
    options: Mapping[str, object] | None = ...,
    numerics: Numerics | None = ...,
    disable: bool = ...,
) -> Any: ...
@overload
def compile(
    model: F,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | BackendFunction = ...,
    mode: str | None = ...,
    options: Mapping[str, object] | None = ...,
    numerics: Numerics | None = ...,
    disable: bool = ...,
) -> F: ...
@overload
def compile(
    model: None = ...,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | BackendFunction = ...,
    mode: str | None = ...,
    options: Mapping[str, object] | None = ...,
    numerics: Numerics | None = ...,
    disable: bool = ...,
) -> Callable[[F], F]: ...


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | BackendFunction = "weft",
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    numerics: Numerics | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function or an ``nn.Module``; it is used as ``torch.compile`` is, also as a decorator.

    Compilation happens at the first call, and again when a later call breaks what the compiled code
    assumes (a new shape, dtype, flag ...).  A function or module that was compiled with the same arguments
    before shares that compiled code, which lives as long as the function or module, or what this gave for it.

    Args:
        model: what to compile; None makes a decorator.
        fullgraph: raise on a graph break instead of splitting into several graphs.
        dynamic: None compiles for the sizes and integers of the first call and, once one has changed, for any
            value of it; True compiles for any size of 2 and more and any integer argument from the first call
            on; False compiles for each size anew.  ``weft.mark_dynamic`` and ``weft.mark_static`` decide for
            one dimension of a tensor.
        backend: "weft", "eager" (run captured graphs as they are), another name of
            ``weft.list_backends()``, one of torch's ("inductor", "aot_eager"), or a callable
            ``(GraphModule, example_inputs) -> callable``.
        mode: "default", "reduce-overhead", "max-autotune" or "max-autotune-no-cudagraphs".  On a GPU all
            but the last replay CUDA graphs where that is sound, and those with "autotune" time several
            variants of each kernel.  On a CPU they mean the same.
        options: fields of :class:`weft.CompileOptions`, by name; not together with ``mode``.
        numerics: "eager" for results that are eager's to the last bit, on the CPU; "fast", the default, for
            kernels that round less and sum in another order.  Also ``options={"numerics": "eager"}``.
        disable: return ``model`` unchanged.

    Raises:
        RuntimeError: an unknown backend, mode or option.
        TypeError: ``model`` is not callable.
    """
    resolved = resolve_options(mode, options, numerics=numerics)
    if dynamic not in (None, True, False):
        raise TypeError(f"dynamic must be True, False or None, got {dynamic!r}")
    compile_other = functools.partial(
        compile,
        fullgraph=fullgraph,
        dynamic=dynamic,
        backend=backend,
        mode=mode,
        options=options,
        numerics=numerics,
        disable=disable,
    )
    if model is None:
        return compile_other
    if not callable(model):
        raise TypeError(
            f"weft.compile takes a callable or an nn.Module, got {type(model).__name__}"
        )
    if disable:
        return model
    if isinstance(model, CompiledModule):
        if model.compiled_with(compile_other):
            return model
        model = model._orig_mod
    elif isinstance(getattr(model, "context", None), capture.Context):
        model = model.callable  # of a function compiled before: these options decide
    named = backend if backend == "weft" or callable(backend) else find_backend(backend)
    frames = _compile_frames(resolved, fullgraph, dynamic, named)
    if pauses(model):
        return compile_pausing(model, frames, fullgraph)
    if isinstance(model, torch.nn.Module):
        return CompiledModule(model, frames, compile_other)
    return frames(model)


def compile_module(module: M, **options: Any) -> M:
    """Compile a module in place: calls of it run compiled, and it is the same object in all else.

    Its class, attributes and the names in ``state_dict()`` stay as they are; ``options`` are those of
    :func:`weft.compile`.  Compiled again, the new options count; with ``disable=True`` it is as it was.

    :raises TypeError: ``module`` is no ``nn.Module``, or one that :func:`weft.compile` gave.
    """
    given: Any = module
    if not isinstance(given, torch.nn.Module) or isinstance(given, CompiledModule):
        raise TypeError(f"compile_module takes an nn.Module, got {type(given).__name__}")
    call = module._call_impl
    compiled = compile(call, **options)
    # Where torch's own `module.compile()` puts it: hooks run, copies and pickles leave it out.
    module._compiled_call_impl = None if compiled is call else compiled
    return module


def _compile_frames(
    options: CompileOptions,
    fullgraph: bool,
    dynamic: bool | None,
    backend: str | BackendFunction,
) -> Callable[[Callable[..., Any]], Any]:
    """What compiles a function's frames, in the context that these settings give it."""
    logs = requested_logs()
    watch = Watch(standing_observers(logs, options.dump_directory))
    make_context = functools.partial(
        capture.make_context,
        backend=(
            foreign_backend(backend) if callable(backend) else _pipeline(options, fullgraph, watch)
        ),
        options=capture.CaptureOptions(
            fullgraph=fullgraph,
            dynamic=dynamic,
            recompile_limit=options.recompile_limit,
            keep_control_flow=options.keep_control_flow,
            guard_libraries=options.guard_libraries,
            error_on_recompile=options.error_on_recompile,
            guard_filter=of_guards(options.guard_filter_fn),
            eager_in_training=_EAGER_IN_TRAINING,
            steps_in_training=_STEPS_IN_TRAINING,
            assume_decisions=None,
            sparse_gradients=_SPARSE_GRADIENTS,
            library_recurrences=_LIBRARY_RECURRENCES,
            backend_folders=stage_folders(),
            check_operands=check_operands,
            known_results=_known_results(options, backend),
            operator_warnings=not callable(backend),
        ),
        on_error=functools.partial(_on_error, raise_errors=fullgraph or options.strict),
        observer=watch.frame_converted,
        began=watch.frame_began,
    )
    backend_key = id(backend) if callable(backend) else backend  # a context keeps its backend alive
    settings = (backend_key, options, fullgraph, dynamic, logs)

    def frames(function: Callable[..., Any]) -> Any:
        context = context_of(function, settings, make_context)
        note_options(context, options)
        return capture.compile_in(context, function)

    return frames


def _pipeline(options: CompileOptions, fullgraph: bool, watch: Watch) -> Pipeline:
    return Pipeline(
        options,
        raise_errors=fullgraph or options.strict,
        observers=watch.observers,
        programs=ProgramCache(
            limit=options.cache_limit,
            shared=None if options.shared_cache is None else shared_cache(options.shared_cache),
        ),
    )


def _known_results(options: CompileOptions, backend: str | BackendFunction) -> ResultsOnDisk | None:
    """Results of operators for other processes, where programs are kept for them too."""
    if callable(backend) or options.verify or options.dump_directory is not None:
        return None
    return ResultsOnDisk(limit=options.cache_limit)


def _on_error(error: Exception, location: str, *, raise_errors: bool) -> None:
    """An error of capture or of the backend: raise it, or warn and let the frame run eagerly."""
    wrapped = (
        error if isinstance(error, StageError) else StageError("bytecode-capture", location, error)
    )
    if raise_errors:
        raise wrapped
    capture.warn(f"{wrapped}. The function runs eagerly.", WeftWarning)
