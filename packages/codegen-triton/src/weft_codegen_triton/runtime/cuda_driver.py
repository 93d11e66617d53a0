"""Loads compiled kernels and launches them, through the CUDA driver's own interface.

Triton's launcher compiles a C file for each signature and looks its kernel up by its arguments at each
call.  A program here knows its kernels and their arguments' types, so a launch is one call of the driver.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence

from weft_codegen_triton.compilation.binary import KernelBinary
from weft_codegen_triton.errors import DeviceUnavailable, LaunchError

MAX_DYNAMIC_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
DEFAULT_SHARED_MEMORY = 48 * 1024
"""Bytes that a block may have without asking."""

SLOT = 8
"""Bytes of a parameter's place; the driver reads the first 4 of a 32-bit one, which are the low ones."""


class LaunchConfiguration(ctypes.Structure):
    """The driver's ``CUlaunchConfig``."""

    _fields_ = (
        ("columns", ctypes.c_uint),
        ("rows", ctypes.c_uint),
        ("layers", ctypes.c_uint),
        ("threads_x", ctypes.c_uint),
        ("threads_y", ctypes.c_uint),
        ("threads_z", ctypes.c_uint),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


@functools.cache
def _library() -> ctypes.PyDLL:
    """The driver, called without releasing the GIL: every call used here only enqueues work."""
    try:
        library = ctypes.PyDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceUnavailable(f"there is no CUDA driver on this machine: {error}") from error
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    library.cuModuleLoadData.argtypes = [ctypes.POINTER(pointer), ctypes.c_char_p]
    library.cuModuleGetFunction.argtypes = [ctypes.POINTER(pointer), pointer, ctypes.c_char_p]
    library.cuFuncSetAttribute.argtypes = [pointer, integer, integer]
    library.cuLaunchKernelEx.argtypes = [pointer, pointer, pointer, pointer]
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
        slots = len(parameters) + binary.scratch_parameters  # scratch pointers are null
        self._values = ctypes.create_string_buffer(SLOT * slots)
        start = ctypes.addressof(self._values)
        addresses = [start + SLOT * k for k in range(slots)]
        self._addresses = (ctypes.c_void_p * slots)(*addresses)
        self._pack = struct.Struct(f"<{len(parameters)}q").pack_into
        self._function = function
        self._configuration = LaunchConfiguration(
            1, 1, 1, binary.warps * 32, 1, 1, binary.shared_bytes, None, None, 0
        )
        self._place = ctypes.byref(self._configuration)
        self._launch = library.cuLaunchKernelEx
        self._name = binary.name

    def __call__(self, stream: int, columns: int, rows: int, *arguments: int) -> None:
        """Enqueue the kernel over ``columns`` x ``rows`` blocks; raises :class:`LaunchError`."""
        self._pack(self._values, 0, *arguments)
        configuration = self._configuration
        configuration.columns = columns
        configuration.rows = rows
        configuration.stream = stream
        status = self._launch(self._place, self._function, self._addresses, None)
        if status:
            _check(status, self._name)
