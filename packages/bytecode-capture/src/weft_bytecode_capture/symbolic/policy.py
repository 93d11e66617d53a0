"""Which modules count as libraries.

Functions, classes, modules and other objects that are not plain constants, which *library* code finds as
globals or class attributes of library modules, are taken as they are found, without a guard: replacing
(monkey-patching) what a library's function calls after a capture is not noticed.  Constants read there are
guarded.  Everything that the user's own code names is guarded, functions of libraries and builtins included.
"""

from __future__ import annotations

import sys
from typing import Any

# Top-level packages beside the standard library.
LIBRARY_PACKAGES = frozenset(
    {
        "accelerate", "diffusers", "einops", "huggingface_hub", "numpy", "packaging", "peft", "safetensors",
        "scipy", "sympy", "timm", "tokenizers", "torch", "torchaudio", "torchvision", "tqdm",
        "transformers", "typing_extensions", "weft", "weft_bytecode_capture", "weft_guards",
    }
)  # fmt: skip


def is_library_module(name: Any) -> bool:
    """Whether a module's ``__name__`` is of the standard library or of a listed package."""
    if not isinstance(name, str):
        return False
    top = name.partition(".")[0]
    if top in LIBRARY_PACKAGES:
        return True
    return top in sys.stdlib_module_names and top != "__main__"


_COMPILERS = (
    "torch._dynamo",
    "torch._compile",
    "torch._inductor",
    "torch.nn.attention.flex_attention",  # calls the compiler
)


def is_other_compiler(name: Any) -> bool:
    """Whether a module's ``__name__`` is of torch's own compiler: what it calls is left alone."""
    return isinstance(name, str) and name.startswith(_COMPILERS)
