"""What is private to torch here: where its C functions are, and how a Python tensor holds its C++ tensor.

Checked on torch 2.13.  Everything is probed at first use; a
:class:`~weft_codegen_cpp.errors.CodegenError` names what a torch release has moved.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from weft_loop_ir.unsupported import Unsupported

from weft_codegen_cpp.errors import CodegenError
from weft_codegen_cpp.host.api import OPENMP_FUNCTIONS, OPTIONAL_TORCH_FUNCTIONS, TORCH_FUNCTIONS

_WRAP_SYMBOL = (
    "_Z16THPVariable_WrapRKN2at10TensorBaseE"  # PyObject* THPVariable_Wrap(const TensorBase&)
)
_DTYPE_NAMES = (
    "float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 "
    "complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"
).split()


@functools.cache
def _library(name: str) -> ctypes.CDLL:
    suffix = "dylib" if (_folder() / f"lib{name}.dylib").exists() else "so"
    return ctypes.CDLL(str(_folder() / f"lib{name}.{suffix}"))


def _folder() -> Path:
    return Path(torch.__file__).parent / "lib"


def _address(library: ctypes.CDLL, name: str) -> int:
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


@functools.cache
def tensor_offset() -> int:
    """Bytes from a Python tensor object to the ``at::Tensor`` inside it, found by its pointer."""
    tensor = torch.empty(1)
    for offset in (16, 24, 32):
        held = ctypes.c_void_p.from_address(id(tensor) + offset).value
        if held == tensor._cdata:
            return offset
    raise CodegenError(f"torch {torch.__version__} lays out Python tensors in an unknown way")


@functools.cache
def torch_functions() -> Mapping[str, int]:
    """The address of each function of torch's C interface that a host program calls; 0 if optional."""
    library = _library("torch_cpu")
    found = {name: _address(library, name) for name in TORCH_FUNCTIONS + OPTIONAL_TORCH_FUNCTIONS}
    missing = [name for name in TORCH_FUNCTIONS if not found[name]]
    found["wrap"] = _address(_library("torch_python"), _WRAP_SYMBOL)
    if not found["wrap"]:
        missing.append("THPVariable_Wrap")
    if not torch.backends.mkldnn.is_available():
        found["aoti_torch_cpu__linear_pointwise"] = 0
        found["aoti_torch_cpu_mkldnn__convolution_pointwise"] = 0
    if missing:
        raise CodegenError(f"torch {torch.__version__} has no {', '.join(missing)}")
    return found


def has_linear() -> bool:
    """Whether torch can multiply matrices through oneDNN, and is to use it."""
    return _uses_onednn() and bool(torch_functions()["aoti_torch_cpu__linear_pointwise"])


def has_packed_convolution() -> bool:
    """Whether torch can convolve with a weight that oneDNN has laid out, and is to use it."""
    function = torch_functions()["aoti_torch_cpu_mkldnn__convolution_pointwise"]
    return _uses_onednn() and bool(function)


def _uses_onednn() -> bool:
    """Whether the program lets torch call oneDNN (``torch.backends.mkldnn.flags``)."""
    enabled: bool = torch.backends.mkldnn.enabled  # type: ignore[assignment]
    return enabled


@functools.cache
def packs_bfloat16() -> bool:
    """Whether oneDNN takes weights of bfloat16 on this processor: with AVX-512 or its conversions."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packed_convolution_weight(
    weight: torch.Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    input_size: Sequence[int] | None,
) -> torch.Tensor:
    """``weight`` as oneDNN wants it for images of ``input_size``: an opaque tensor."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        weight, padding, stride, dilation, groups, input_size
    )
    return packed


def packed_linear_weight(weight: torch.Tensor, rows: int | None) -> torch.Tensor:
    """``weight`` [n, k] as oneDNN wants it for ``rows`` rows (None: any number): an opaque tensor."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return packed


@functools.cache
def openmp_functions() -> Mapping[str, int]:
    """The OpenMP functions of the runtime that torch itself uses; all 0 if it isn't GNU's."""
    try:
        library = ctypes.CDLL("libgomp.so.1")
    except OSError:
        return dict.fromkeys(OPENMP_FUNCTIONS, 0)
    return {name: _address(library, name) for name in OPENMP_FUNCTIONS}


@functools.cache
def dtype_code(dtype: torch.dtype) -> int:
    """The number by which torch's C interface knows ``dtype``."""
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPE_NAMES:
        raise Unsupported("no code is generated for a dtype", str(dtype))
    function = getattr(_library("torch_cpu"), f"aoti_torch_dtype_{name}")
    return int(function())
