"""Which modules count as libraries.

Functions, classes, modules and other objects that are not plain constants, which *library* code finds as
globals or class attributes of library modules, are taken as they are found, without a guard: replacing
(monkey-patching) what a library's function calls after a capture is not noticed.  Constants read there are
guarded.  Everything that the user's own code names is guarded: functions of libraries and builtins, methods
of their classes (``normal.log_prob(x)``) and of tensors (``x.relu()``); so are the ``forward`` and
``__call__`` of all modules that are called.

``CaptureOptions.guard_libraries`` guards the rest too, at the cost of more guards in each call.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# Top-level packages beside the standard library.
LIBRARY_PACKAGES = frozenset(
    {
        "accelerate", "diffusers", "einops", "huggingface_hub", "numpy", "packaging", "peft", "safetensors",
        "scipy", "sympy", "timm", "tokenizers", "torch", "torchaudio", "torchvision", "tqdm",
        "transformers", "typing_extensions", "weft", "weft_bytecode_capture", "weft_guards",
    }
)  # fmt: skip


_OWN_PACKAGES = frozenset({"weft", "weft_bytecode_capture", "weft_guards"})

_guarded: ContextVar[bool] = ContextVar("guarded", default=False)


@contextmanager
def guarding_libraries(guarded: bool) -> Iterator[None]:
    """A context in which what library code finds in library modules is guarded too, if ``guarded``."""
    token = _guarded.set(guarded)
    try:
        yield
    finally:
        _guarded.reset(token)


def is_of_library(name: Any) -> bool:
    """Whether a module's ``__name__`` is of the standard library or of a listed package."""
    if not isinstance(name, str):
        return False
    top = name.partition(".")[0]
    if top in LIBRARY_PACKAGES:
        return True
    return top in sys.stdlib_module_names and top != "__main__"


def is_library_module(name: Any) -> bool:
    """Whether what is found in the module of this ``__name__`` is taken without a guard."""
    if _guarded.get() and isinstance(name, str) and name.partition(".")[0] not in _OWN_PACKAGES:
        return False
    return is_of_library(name)


_FLEXIBLE_ATTENTION = "torch.nn.attention.flex_attention"
_COMPILERS = ("torch._dynamo", "torch._compile", "torch._inductor", _FLEXIBLE_ATTENTION)
_MASKS = ("noop_mask", "_identity", "and_masks.<locals>.and_mask", "or_masks.<locals>.or_mask")
_PLAIN = {
    _FLEXIBLE_ATTENTION: _MASKS,
    "torch._dynamo._trace_wrapped_higher_order_op": (
        "TransformGetItemToIndex.__torch_function__",
        *("ModIndex.apply", "ModIndex.forward", "ModIndex.setup_context"),
    ),
}
"""Functions beside torch's compiler, by their module, that just compute something."""


def is_other_compiler(module: Any, function: str) -> bool:
    """Whether a function, by its module's and its own qualified name, is of torch's own compiler.

    What it calls is left alone.
    """
    if not isinstance(module, str) or not module.startswith(_COMPILERS):
        return False
    plain = _PLAIN.get(module, ())
    return not (function in plain or function.partition(".<locals>.")[0] in plain)


def is_beneath_operators(module: Any) -> bool:
    """Whether a module of torch's computes operators of a tensor class: its frames run as they are."""
    return isinstance(module, str) and (
        module == "torch.nested" or module.startswith("torch.nested.")
    )


LEFT_TO_CPYTHON = {
    "torch.optim.lbfgs": ("LBFGS.step", "_strong_wolfe"),
    "torch.optim.sparse_adam": ("SparseAdam.step",),
    "torch.optim._functional": ("sparse_adam",),
}
"""Functions, by their module, that decide by data in each turn of a loop, or compute with sparse tensors."""


def is_left_to_cpython(module: Any, function: str) -> bool:
    """Whether a function of torch runs as it is: pieces of it would be compiled for each length of a history.

    What it calls is captured on its own: the closure of a line search, with the loss and its gradients.
    """
    return isinstance(module, str) and function in LEFT_TO_CPYTHON.get(module, ())


_OPTIMIZERS = "torch.optim.optimizer"
_PLAIN_METHODS = frozenset({"add_param_group", "zero_grad", "state_dict", "_init_group"})


def is_kept_apart_needlessly(function: Any) -> bool:
    """Whether torch keeps a function out of its own compiler that is captured as others are."""
    module, name = (getattr(function, f"__{kind}__", None) for kind in ("module", "qualname"))
    if not isinstance(module, str) or not isinstance(name, str):
        return False
    return module.startswith("torch.optim.") and name.rpartition(".")[2] in _PLAIN_METHODS


_TAGGED = {"patched_init": "init", "patched_setstate": "setstate"}
"""Functions that torch's compiler puts in the place of modules' methods, and its names for what was there."""


def untagged(function: Any) -> Any:
    """The method in whose place torch's compiler has put ``function``, which counts modules for it."""
    while getattr(function, "__module__", None) == "torch._dynamo.mutation_guard":
        code = function.__code__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        cell = cells.get(_TAGGED.get(code.co_name, ""))
        if cell is None:
            break
        function = cell.cell_contents
    return function


def is_break_for_torch(module: Any, function: str, caller: Any) -> bool:
    """Whether torch ends a graph of its own compiler here, before a step of an optimizer and behind it.

    It says that it has to since backward is behind the graph there, and its functional form of the step needs
    another copy of the parameters.
    """
    return (module, function, caller) == ("torch._dynamo.decorators", "graph_break", _OPTIMIZERS)
