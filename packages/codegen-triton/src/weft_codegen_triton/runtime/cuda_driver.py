"""Loads compiled kernels and launches them, through the CUDA driver's own interface.

Triton's launcher compiles a C file for each signature and looks its kernel up by its arguments at each
call.  A program here knows its kernels and their arguments' types, so a launch is one call of a function in C
that has everything prepared, and by it one of the driver.
"""

from __future__ import annotations

import array
import ctypes
import functools
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from weft_codegen_triton.compilation.binary import KernelBinary
from weft_codegen_triton.errors import DeviceUnavailable, LaunchError
from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.runtime.launch_list import Launches

if TYPE_CHECKING:
    from weft_codegen_triton._launcher import Launcher

MAX_DYNAMIC_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
DEFAULT_SHARED_MEMORY = 48 * 1024
"""Bytes that a block may have without asking."""

GRAPH_FUNCTIONS = """
    cuGraphCreate cuGraphAddKernelNode_v2 cuGraphInstantiateWithFlags
    cuGraphExecKernelNodeSetParams_v2 cuGraphLaunch cuStreamIsCapturing cuGraphExecDestroy
    cuGraphDestroy
""".split()
"""In the order of ``GraphFunctions`` in ``launch_graph.h``; there since CUDA 12."""

MIN_GRAPH_LAUNCHES = 4
"""Launches in a row from which a graph of them costs the host less."""


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
    library.cuGetErrorString.argtypes = [integer, ctypes.POINTER(ctypes.c_char_p)]
    library.cuCtxGetCurrent.argtypes = [ctypes.POINTER(pointer)]
    library.cuDeviceGet.argtypes = [ctypes.POINTER(integer), integer]
    library.cuDeviceGetAttribute.argtypes = [ctypes.POINTER(integer), integer, integer]
    library.cuDevicePrimaryCtxRetain.argtypes = [ctypes.POINTER(pointer), integer]
    library.cuCtxSetCurrent.argtypes = [pointer]
    return library


def _check(what: str, status: int) -> None:
    """Raise :class:`LaunchError` unless ``status`` is that of success."""
    if status:
        text = ctypes.c_char_p()
        _library().cuGetErrorString(status, ctypes.byref(text))
        raise LaunchError(f"{what}: {(text.value or b'unknown error').decode()}")


def make_context_current(index: int) -> None:
    """Let this thread have the CUDA context that torch uses on the GPU of this number, if it has none yet.

    CUDA's runtime does so at a thread's first call of it.  A thread of autograd may not have made any when it
    runs its first program, whose memory torch had at hand; launches don't do so.
    """
    library, context, device = _library(), ctypes.c_void_p(), ctypes.c_int()
    check = functools.partial(_check, "context")
    check(library.cuCtxGetCurrent(ctypes.byref(context)))
    if context.value:
        return
    check(library.cuDeviceGet(ctypes.byref(device), index))
    check(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(library.cuCtxSetCurrent(context))


@functools.cache
def gpu_of_device(index: int) -> Gpu:
    """What the driver says of the GPU of this number."""
    library, device, value = _library(), ctypes.c_int(), ctypes.c_int()
    _check("a GPU", library.cuDeviceGet(ctypes.byref(device), index))

    def attribute(number: int) -> int:
        status = library.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        _check(f"attribute {number} of a GPU", status)
        return value.value

    return Gpu.of_attributes(attribute)


def load_kernel(binary: KernelBinary, parameters: int) -> Launcher:
    """A kernel in the current CUDA context, to be called with a stream, the grid's extents and its arguments.

    It has ``parameters`` arguments, integers all: addresses, sizes, bits of doubles.  Launching raises
    :class:`LaunchError`.  Not safe to call from several threads at once: a program holds a lock.
    """
    extension = _extension()
    library = _library()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check = functools.partial(_check, binary.name)
    check(library.cuModuleLoadData(ctypes.byref(module), binary.cubin))
    check(library.cuModuleGetFunction(ctypes.byref(function), module, binary.name.encode()))
    if binary.shared_bytes > DEFAULT_SHARED_MEMORY:
        check(library.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_MEMORY, binary.shared_bytes))
    made: Launcher = extension.Launcher(
        launch=_address(library.cuLaunchKernelEx),
        kernel=function.value or 0,
        threads=binary.warps * 32,
        shared_bytes=binary.shared_bytes,
        count=parameters,
        nulls=binary.scratch_parameters,  # memory that Triton may ask for and does not need
        failed=check,
    )
    return made


def native_launch_list(launches: Launches, *, as_graph: bool = True) -> Callable[..., None]:
    """What makes ``launches`` of kernels that :func:`load_kernel` gave, in one call.

    As :class:`~weft_codegen_triton.runtime.launch_list.LaunchList`, and as little safe in threads as these.
    With ``as_graph`` enough launches are one CUDA graph from the third call on, whose nodes are set anew
    where arguments or extents have changed; not while a stream is being recorded.
    """
    numbers = array.array("q")
    for _, terms in launches:
        for term in terms:
            numbers.extend(term)
    values = max(numbers[::2], default=0)
    launchers = tuple(launcher for launcher, _ in launches)
    functions = graph_functions() if as_graph and len(launchers) >= MIN_GRAPH_LAUNCHES else None
    made: Callable[..., None] = _extension().LaunchList(
        launchers, numbers.tobytes(), values, functions
    )
    return made


@functools.cache
def graph_functions() -> bytes | None:
    """The addresses of the driver's functions for graphs, as the extension wants them; None in an old one."""
    library = _library()
    try:
        functions = [getattr(library, name) for name in GRAPH_FUNCTIONS]
    except AttributeError:
        return None
    return array.array("Q", map(_address, functions)).tobytes()


def _extension() -> ModuleType:
    try:
        from weft_codegen_triton import _launcher
    except ImportError as error:
        raise DeviceUnavailable(
            "the extension that launches kernels isn't built: run `python hatch_build.py` in its package"
        ) from error
    return _launcher


def _address(function: object) -> int:
    """Where a function of a library is."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
