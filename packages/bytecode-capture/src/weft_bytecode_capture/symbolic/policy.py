"""Which modules count as libraries.

Functions, classes, modules and other objects that are not plain constants, found as globals or class
attributes of *library* modules, are taken as they are found, without a guard: replacing (monkey-patching)
a library's function or class attribute after a capture is not noticed.  Constants read there are guarded.
Everything found in other modules, the user's own, is guarded.
"""

from __future__ import annotations

import os
import sys
from types import CodeType
from typing import Any

import torch

# Top-level packages beside the standard library.
LIBRARY_PACKAGES = frozenset(
    {
        "accelerate", "diffusers", "einops", "huggingface_hub", "numpy", "packaging", "peft", "safetensors",
        "scipy", "sympy", "timm", "tokenizers", "torch", "torchaudio", "torchvision", "tqdm",
        "transformers", "typing_extensions", "weft", "weft_bytecode_capture", "weft_guards",
    }
)  # fmt: skip

_TORCH_FOLDER = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STANDARD_LIBRARY_FOLDER = os.path.dirname(os.path.abspath(os.__file__)) + os.sep

# Folders of torch whose Python bodies are captured when a frame of them is reached from uncaptured code.
_CAPTURED_TORCH_FOLDERS = tuple(
    _TORCH_FOLDER + part for part in (os.path.join("nn", "modules"), os.path.join("nn", "utils"))
)


def is_library_module(name: Any) -> bool:
    """Whether a module's ``__name__`` is of the standard library or of a listed package."""
    if not isinstance(name, str):
        return False
    top = name.partition(".")[0]
    if top in LIBRARY_PACKAGES:
        return True
    return top in sys.stdlib_module_names and top != "__main__"


def is_skipped_code(code: CodeType) -> bool:
    """Whether a frame of this code, reached from code that runs in CPython, is left to CPython."""
    file = code.co_filename
    if file.startswith("<frozen"):
        return True
    if file.startswith(_TORCH_FOLDER):
        # Calls of modules and reads of their attributes are answered where a user's frame makes them.
        if file.endswith(os.path.join("nn", "modules", "module.py")):
            return True
        return not file.startswith(_CAPTURED_TORCH_FOLDERS)
    return file.startswith(_STANDARD_LIBRARY_FOLDER) and "site-packages" not in file
