"""Runs generated kernels on CPU tensors through Triton's interpreter: how they are tested without a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from weft_codegen_triton.compilation.binary import ENTRY, KernelBinary
from weft_codegen_triton.compilation.cache import holds, load_module, put
from weft_codegen_triton.errors import DeviceUnavailable
from weft_codegen_triton.exported import Compiled
from weft_codegen_triton.gpu import REFERENCE, Gpu
from weft_codegen_triton.kernel.aligned_sizes import SIZE_MULTIPLE
from weft_codegen_triton.kernel.dtypes import POINTER_TYPES
from weft_codegen_triton.kernel.kernel_printer import Function
from weft_codegen_triton.runtime.launch_list import Launches, LaunchList

DTYPES = {name: dtype for dtype, name in POINTER_TYPES.items()}


class InterpretedDevice:
    """The CPU as the place where programs run.

    Raises :class:`DeviceUnavailable` unless Triton is imported with its interpreter on, for which
    ``TRITON_INTERPRET=1`` must be in the environment before.
    """

    records = False
    asserts_later = False

    def __init__(self, folder: Path, gpu: Gpu = REFERENCE) -> None:
        self.gpu = gpu
        try:
            import triton
        except ImportError as error:
            raise DeviceUnavailable("Triton, whose interpreter is asked for, is missing") from error
        if not triton.knobs.runtime.interpret:
            raise DeviceUnavailable("set TRITON_INTERPRET=1 before Triton is imported")
        from triton.runtime.interpreter import interpreter_builder

        interpreter_builder.options = dataclasses.replace(
            interpreter_builder.options, debug=True, sanitize_overflow=False
        )  # debug: assertions are checked
        mend_interpreter(type(interpreter_builder))
        self.turn = threading.RLock()
        self._folder = folder

    def guard(self) -> AbstractContextManager[Any]:
        """Nothing: there is one CPU."""
        return contextlib.nullcontext()

    def stream(self) -> int:
        """0: kernels run at once."""
        return 0

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor``: it is on the CPU."""
        return tensor

    def load(self, functions: Mapping[str, Function]) -> dict[str, Callable[..., None]]:
        """Import the functions' modules; gives their launchers by name."""
        return {name: InterpretedKernel(f, self._load(_text(f))) for name, f in functions.items()}

    def compile_variants(self, functions: Mapping[str, Function]) -> dict[str, Compiled]:
        """What takes the place of machine code is a kernel's text."""
        return {n: {0: (f, KernelBinary(ENTRY, _text(f), 0, 0, 0))} for n, f in functions.items()}

    def load_variants(
        self, name: str, function: Function, compiled: Compiled
    ) -> Callable[..., None]:
        """The launcher of what :meth:`compile_variants` gave for ``function``."""
        return InterpretedKernel(function, self._load(compiled[0][1].cubin))

    def launch_list(self, launches: Launches) -> Callable[..., None]:
        """What makes ``launches``."""
        return LaunchList(launches)

    def _load(self, text: bytes) -> Any:
        path = self._folder / f"{hashlib.sha256(text).hexdigest()[:32]}.py"
        if not holds(path, text):
            put(path, text)
        return load_module(path).kernel


def _text(function: Function) -> bytes:
    return function.module("kernel").encode()


def mend_interpreter(builder: Any) -> None:
    """Give the class of the interpreter's builder the operations of ``_MENDED`` in place of its own."""
    for name, mend in _MENDED.items():
        plain = getattr(builder, name)
        if not hasattr(plain, "is_mended"):
            mended = mend(plain)
            mended.is_mended = True
            setattr(builder, name, mended)


def _dot_of_bfloat16(plain: Callable[..., Any]) -> Any:
    """Matmuls in bfloat16, whose bits the interpreter takes for numbers."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def widened(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        bits = operand.data.view("uint16").astype("uint32") << 16
        return TensorHandle(bits.view("float32"), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        return plain(self, widened(a), widened(b), *others)

    return create_dot


def _splat_of_truth(plain: Callable[..., Any]) -> Any:
    """Blocks of one truth value: a comparison's has the dtype of what was compared in the interpreter."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def create_splat(self: Any, kind: Any, operand: Any) -> Any:
        if operand.data.dtype == bool:
            operand = TensorHandle(operand.data, tl.int1)
        return plain(self, kind, operand)

    return create_splat


def _atomic_of_one_value(plain: Callable[..., Any]) -> Any:
    """Atomic updates with one value for a whole block: the interpreter reads memory of a block's size."""
    from triton.runtime.interpreter import TensorHandle

    def create_atomic_rmw(
        self: Any, operation: Any, place: Any, value: Any, mask: Any, *others: Any
    ) -> Any:
        handles = (TensorHandle(h.data.copy(), h.dtype) for h in (place, value, mask))
        return plain(self, operation, *handles, *others)

    return create_atomic_rmw


def _ones_without_sign(plain: Callable[..., Any]) -> Any:
    """All bits of an unsigned integer: the interpreter makes them of -1, which NumPy takes for none."""
    from triton.runtime.interpreter import TensorHandle

    def get_all_ones_value(self: Any, kind: Any) -> Any:
        zeros = self.get_null_value(kind)
        if zeros.data.dtype.kind != "u":
            return plain(self, kind)
        return TensorHandle(~zeros.data, zeros.dtype)

    return get_all_ones_value


_MENDED = {
    "create_dot": _dot_of_bfloat16,
    "create_splat": _splat_of_truth,
    "create_atomic_rmw": _atomic_of_one_value,
    "get_all_ones_value": _ones_without_sign,
}
"""Operations of the interpreter that are wrong or fail where compiled kernels are right."""


class InterpretedKernel:
    """Launches a kernel as what :func:`~weft_codegen_triton.runtime.cuda_driver.load_kernel` gives does."""

    def __init__(self, function: Function, kernel: Any) -> None:
        self._kernel = kernel
        self._kinds = [kind for _, kind in function.parameters]
        self._constants = dict(function.constants)
        names = [name for name, _ in function.parameters]
        self._aligned = [names.index(name) for name in function.aligned]

    def __call__(self, stream: int, columns: int, rows: int, *arguments: int) -> None:
        """Run the kernel over ``columns`` x ``rows`` blocks, on addresses and sizes."""
        if any(arguments[k] % SIZE_MULTIPLE for k in self._aligned):
            raise ValueError(f"{arguments}: one is no multiple of {SIZE_MULTIPLE} as it should be")
        widths: dict[int, int] = {}  # of the widest element at an address
        for argument, kind in zip(arguments, self._kinds, strict=True):
            if kind in DTYPES:
                widths[argument] = max(DTYPES[kind].itemsize, widths.get(argument, 0))
        values = [
            _at_address(argument, DTYPES[kind], widths[argument])
            if kind in DTYPES
            else _size(argument, kind)
            for argument, kind in zip(arguments, self._kinds, strict=True)
        ]
        self._kernel[(columns, rows)](*values, **self._constants)


def _at_address(address: int, dtype: torch.dtype, width: int) -> torch.Tensor:
    """A tensor of one element at ``address``; the interpreter goes on from there as a kernel does.

    Its storage has ``width`` bytes: the interpreter takes what begins at one address for one storage.
    """
    if address == 0:  # of an empty tensor, from which nothing is read
        return torch.empty(1, dtype=dtype)
    memory = (ctypes.c_char * width).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)[:1]


def _size(value: int, kind: str) -> Any:
    """A size as the interpreter's scalar; its own are arrays of one element, which bound no loop."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    dtype, held = (torch.int32, tl.int32) if kind == "i32" else (torch.int64, tl.int64)
    return tl.tensor(TensorHandle(torch.tensor(value, dtype=dtype).numpy(), held), held)
