"""The extension that launches kernels, with a function of the test's in place of the driver's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from weft_codegen_triton import LaunchError

native = pytest.importorskip("weft_codegen_triton._launcher", reason="the extension isn't built")

ADDRESS = 0xFEDC_BA98_7654_3210


class Configuration(ctypes.Structure):
    """The driver's ``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


DriverFunction = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(Configuration),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)),
    ctypes.c_void_p,
)


class Driver:
    """Notes what it is called with and gives ``status``."""

    def __init__(self, parameters: int, status: int = 0) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.parameters = parameters
        self.status = status
        self.function = DriverFunction(self._launch)

    def _launch(self, configuration: object, kernel: int, parameters: object, extra: object) -> int:
        seen = configuration.contents  # type: ignore[attr-defined]
        values = [parameters[k].contents.value for k in range(self.parameters)]  # type: ignore[index]
        sizes = (*seen.grid, *seen.block, seen.shared_bytes, seen.stream, seen.attribute_count)
        self.calls.append((sizes, kernel, values, extra))
        return self.status

    def launcher(self, count: int, failed: Callable[[int], None]) -> Callable[..., None]:
        address = ctypes.cast(self.function, ctypes.c_void_p).value or 0
        made: Callable[..., None] = native.Launcher(
            address, ADDRESS, 128, 4096, count, self.parameters - count, failed
        )
        return made


def fail(status: int) -> None:
    raise LaunchError(f"status {status}")


def test_a_launch_hands_everything_over() -> None:
    driver = Driver(parameters=5)
    launch = driver.launcher(4, fail)
    launch(7, 3, 2, ADDRESS, -1, 1 << 62, 5)
    launch(0, 65536, 1, 1, 2, 3, 4)
    signed = ADDRESS - (1 << 64)
    assert driver.calls == [
        ((3, 2, 1, 128, 1, 1, 4096, 7, 0), ADDRESS, [signed, -1, 1 << 62, 5, 0], None),
        ((65536, 1, 1, 128, 1, 1, 4096, None, 0), ADDRESS, [1, 2, 3, 4, 0], None),
    ]


def test_a_kernel_without_arguments() -> None:
    driver = Driver(parameters=0)
    driver.launcher(0, fail)(1, 1, 1)
    assert driver.calls[0][2] == []


def test_a_failure_is_raised() -> None:
    with pytest.raises(LaunchError, match="status 701"):
        Driver(parameters=1, status=701).launcher(1, fail)(0, 1, 1, 0)


def test_wrong_arguments() -> None:
    driver = Driver(parameters=2)
    launch = driver.launcher(2, fail)
    for arguments in ((0, 1, 1, 2), (0, 1, 1, 2, 3, 4), (0, 1, 1, 2, "3"), (0, 1, 1.0, 2, 3)):
        with pytest.raises(TypeError):
            launch(*arguments)
    assert not driver.calls
    with pytest.raises(ValueError, match="negative"):
        native.Launcher(0, 0, 1, 0, -1, 0, fail)
