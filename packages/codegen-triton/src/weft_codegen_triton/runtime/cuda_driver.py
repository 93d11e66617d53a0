"""Loads compiled kernels and launches them, through the CUDA driver's own interface.

Triton's launcher compiles a C file for each signature and looks its kernel up by its arguments at each
call.  A program here knows its kernels and their arguments' types, so a launch is one call of the driver.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from weft_codegen_triton.compilation.binary import KernelBinary
from weft_codegen_triton.errors import DeviceUnavailable, LaunchError

MAX_DYNAMIC_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
DEFAULT_SHARED_MEMORY = 48 * 1024
"""Bytes that a block may have without asking."""

PARAMETER_TYPES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}
"""By Triton's name; all others are pointers."""


@functools.cache
def _library() -> ctypes.PyDLL:
    """The driver, called without releasing the GIL: every call used here only enqueues work."""
    try:
        library = ctypes.PyDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceUnavailable(f"there is no CUDA driver on this machine: {error}") from error
    pointer, integer, unsigned = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint
    library.cuModuleLoadData.argtypes = [ctypes.POINTER(pointer), ctypes.c_char_p]
    library.cuModuleGetFunction.argtypes = [ctypes.POINTER(pointer), pointer, ctypes.c_char_p]
    library.cuFuncSetAttribute.argtypes = [pointer, integer, integer]
    library.cuLaunchKernel.argtypes = [pointer, *[unsigned] * 7, pointer, pointer, pointer]
    library.cuGetErrorString.argtypes = [integer, ctypes.POINTER(ctypes.c_char_p)]
    return library


def _check(status: int, what: str) -> None:
    if status:
        text = ctypes.c_char_p()
        _library().cuGetErrorString(status, ctypes.byref(text))
        raise LaunchError(f"{what}: {(text.value or b'unknown error').decode()}")


class LoadedKernel:
    """A kernel in the current CUDA context, to be called with a stream, the grid and its arguments.

    ``parameters`` are the types of the arguments by Triton's names (``*fp32``, ``i32``).  Not safe to call
    from several threads at once: a program holds a lock.
    """

    def __init__(self, binary: KernelBinary, parameters: Sequence[str]) -> None:
        library = _library()
        self._binary = binary.cubin  # the driver may read it later
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(library.cuModuleLoadData(ctypes.byref(module), binary.cubin), binary.name)
        name = binary.name.encode()
        _check(library.cuModuleGetFunction(ctypes.byref(function), module, name), binary.name)
        if binary.shared_bytes > DEFAULT_SHARED_MEMORY:
            _check(
                library.cuFuncSetAttribute(
                    function, MAX_DYNAMIC_SHARED_MEMORY, binary.shared_bytes
                ),
                binary.name,
            )
        types: list[Any] = [PARAMETER_TYPES.get(p, ctypes.c_void_p) for p in parameters]
        types += [ctypes.c_void_p] * binary.scratch_parameters
        self._values = tuple(t() for t in types)
        addresses = [ctypes.addressof(v) for v in self._values]
        self._addresses = (ctypes.c_void_p * len(addresses))(*addresses)
        self._function = function
        self._threads = binary.warps * 32
        self._shared = binary.shared_bytes
        self._launch = library.cuLaunchKernel
        self._name = binary.name

    def __call__(self, stream: int, columns: int, rows: int, *arguments: int) -> None:
        """Enqueue the kernel over ``columns`` x ``rows`` blocks; raises :class:`LaunchError`."""
        for value, argument in zip(self._values, arguments, strict=False):
            value.value = argument
        status = self._launch(
            self._function, columns, rows, 1, self._threads, 1, 1, self._shared, stream,
            self._addresses, None,
        )  # fmt: skip
        if status:
            _check(status, self._name)
