"""The extension that launches kernels, with a function of the test's in place of the driver's."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable
from typing import Any

import pytest
from weft_codegen_triton import LaunchError
from weft_codegen_triton.runtime import cuda_driver

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


def terms(*pairs: tuple[int, int]) -> bytes:
    return array.array("q", [number for pair in pairs for number in pair]).tobytes()


def test_a_list_launches_in_order() -> None:
    first, second = Driver(parameters=2), Driver(parameters=0)
    one, two = first.launcher(2, fail), second.launcher(0, fail)
    launch = native.LaunchList(
        (one, two, one),
        terms((0, 3), (0, 2), (1, 0), (2, -5), (3, 0), (0, 1), (3, 1), (0, 1), (1, 512), (0, 9)),
        3,
    )
    launch(7, ADDRESS, 2, 4)
    signed = ADDRESS - (1 << 64)
    assert first.calls == [
        ((3, 2, 1, 128, 1, 1, 4096, 7, 0), ADDRESS, [signed, -3], None),
        ((5, 1, 1, 128, 1, 1, 4096, 7, 0), ADDRESS, [signed + 512, 9], None),
    ]
    assert [call[0] for call in second.calls] == [(4, 1, 1, 128, 1, 1, 4096, 7, 0)]
    launch(7, ADDRESS, 2, 0)  # without a column nothing is launched
    assert (len(first.calls), len(second.calls)) == (4, 1)


def test_a_failure_ends_the_list() -> None:
    bad, good = Driver(parameters=0, status=1), Driver(parameters=0)
    launchers = tuple(driver.launcher(0, fail) for driver in (good, bad, good))
    launch = native.LaunchList(launchers, terms(*[(0, 1)] * 6), 0)
    with pytest.raises(LaunchError, match="status 1"):
        launch(0)
    assert len(good.calls) == 1


class Contexts:
    """A driver with GPU 1, whose context is 77; ``current`` is the thread's."""

    def __init__(self, current: int) -> None:
        self.current = current
        self.retained: list[int] = []

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self.current
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index + 10
        return 0 if index == 1 else 101

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        self.retained.append(device.value)
        context._obj.value = 77
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.current = context.value
        return 0

    def cuGetErrorString(self, status: int, text: Any) -> int:
        text._obj.value = f"status {status}".encode()
        return 0


@pytest.mark.parametrize(("current", "after", "retained"), [(0, 77, [11]), (5, 5, [])])
def test_a_thread_without_a_context_gets_one(
    monkeypatch: pytest.MonkeyPatch, current: int, after: int, retained: list[int]
) -> None:
    driver = Contexts(current)
    monkeypatch.setattr(cuda_driver, "_library", lambda: driver)
    cuda_driver.make_context_current(1)
    assert (driver.current, driver.retained) == (after, retained)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_library", lambda: Contexts(0))
    with pytest.raises(LaunchError, match="context: status 101"):
        cuda_driver.make_context_current(2)


def test_wrong_lists() -> None:
    launcher = Driver(parameters=1).launcher(1, fail)
    for launchers, given, values in (
        ((launcher,), terms((0, 1), (0, 1)), 0),
        ((launcher,), terms((0, 1), (0, 1), (1, 0)), 0),
        ((launcher,), terms((0, 1), (0, 1), (-1, 0)), 1),
        ((launcher,), terms((0, 1), (0, 1), (1, 0))[:-1], 1),
        ((print,), terms((0, 1), (0, 1)), 0),
        ((), b"", -1),
    ):
        with pytest.raises(ValueError, match="terms"):
            native.LaunchList(launchers, given, values)
    launch = native.LaunchList((launcher,), terms((0, 1), (0, 1), (1, 0)), 1)
    for arguments in ((0,), (0, 1, 2), (0, "1")):
        with pytest.raises(TypeError):
            launch(*arguments)
