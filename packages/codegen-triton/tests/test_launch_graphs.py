"""Lists of launches as one graph, with functions of the test's in place of the driver's."""

from __future__ import annotations

import array
import ctypes
import gc

import pytest
from weft_codegen_triton import LaunchError

native = pytest.importorskip("weft_codegen_triton._launcher", reason="the extension isn't built")

P, PP = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
KERNEL, THREADS, SHARED = 0x1000, 128, 4096


class KernelNode(ctypes.Structure):
    """The driver's ``CUDA_KERNEL_NODE_PARAMS_v2``."""

    _fields_ = (
        ("function", P),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.POINTER(ctypes.POINTER(ctypes.c_int64))),
        ("extra", P),
        ("kernel", P),
        ("context", P),
    )


NP = ctypes.POINTER(KernelNode)
SIGNATURES = {
    "create": (PP, ctypes.c_uint),
    "add": (PP, P, PP, ctypes.c_size_t, NP),
    "instantiate": (PP, P, ctypes.c_ulonglong),
    "set": (P, P, NP),
    "launch": (P, P),
    "is_capturing": (P, ctypes.POINTER(ctypes.c_int)),
    "destroy_executable": (P,),
    "destroy": (P,),
}


class Driver:
    """Keeps graphs of kernels that take two numbers, and notes what runs.

    ``ran``: ``(stream, columns, rows, arguments)`` of each kernel.  ``calls`` counts the functions called.
    ``failing`` give status 1.
    """

    def __init__(self, *failing: str) -> None:
        self.ran: list[tuple[object, ...]] = []
        self.calls: dict[str, int] = dict.fromkeys([*SIGNATURES, "plain"], 0)
        self.failing = set(failing)
        self.capturing = 0
        self.nodes: list[tuple[object, ...]] = []
        self.before: list[int | None] = []
        self._kept = [self._function(name, *types) for name, types in SIGNATURES.items()]
        self.plain = ctypes.CFUNCTYPE(
            ctypes.c_int, P, P, ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)), P
        )(self._plain)

    def _function(self, name: str, *types: object) -> object:
        def called(*arguments: object) -> int:
            self.calls[name] += 1
            if name in self.failing:
                return 1
            getattr(self, f"_{name}", lambda *_: None)(*arguments)
            return 0

        return ctypes.CFUNCTYPE(ctypes.c_int, *types)(called)

    @property
    def functions(self) -> bytes:
        addresses = [ctypes.cast(function, P).value or 0 for function in self._kept]
        return array.array("Q", addresses).tobytes()

    def _create(self, graph, flags) -> None:
        graph[0] = 0x77
        self.nodes, self.before = [], []

    def _read(self, node) -> tuple[object, ...]:
        seen = node.contents
        assert (seen.function, *seen.block, seen.shared_bytes) == (KERNEL, THREADS, 1, 1, SHARED)
        assert not (seen.extra or seen.kernel or seen.context) and seen.grid[2] == 1
        return (*seen.grid[:2], [seen.parameters[k].contents.value for k in range(2)])

    def _add(self, made, graph, before, count, node) -> None:
        assert graph == 0x77
        self.before.append(before[0] if count else None)
        self.nodes.append(self._read(node))
        made[0] = len(self.nodes)

    def _instantiate(self, executable, graph, flags) -> None:
        executable[0] = 0x88

    def _set(self, executable, node, parameters) -> None:
        assert executable == 0x88
        self.nodes[node - 1] = self._read(parameters)

    def _launch(self, executable, stream) -> None:
        assert executable == 0x88
        self.ran += [(stream, *node) for node in self.nodes]

    def _is_capturing(self, stream, status) -> None:
        status[0] = self.capturing

    def _plain(self, configuration, kernel, parameters, extra) -> int:
        self.calls["plain"] += 1
        words = ctypes.cast(configuration, ctypes.POINTER(ctypes.c_uint))
        stream = ctypes.cast(configuration + 32, PP)[0]
        values = [parameters[k].contents.value for k in range(2)]
        self.ran.append((stream, words[0], words[1], values))
        return 0


def fail(status: int) -> None:
    raise LaunchError(f"status {status}")


def launch_list(driver: Driver, length: int = 3) -> object:
    """Launches of one kernel: k-th with value 1 columns, value 2 rows and arguments (value 3 + k, k)."""
    address = ctypes.cast(driver.plain, P).value or 0
    launcher = native.Launcher(address, KERNEL, THREADS, SHARED, 2, 0, fail)
    terms = [(1, 0), (2, 0), (3, 0), (0, 0)] * length
    for k in range(length):
        terms[4 * k + 2 : 4 * k + 4] = [(3, k), (0, k)]
    numbers = array.array("q", [n for pair in terms for n in pair]).tobytes()
    return native.LaunchList((launcher,) * length, numbers, 3, driver.functions)


def wanted(stream: int, columns: int, rows: int, value: int) -> list[tuple[object, ...]]:
    return [(stream, columns, rows, [value + k, k]) for k in range(3)]


def test_a_graph_does_what_single_launches_do() -> None:
    driver = Driver()
    launch = launch_list(driver)
    calls = [(7, 3, 2, 100)] * 4 + [(7, 3, 2, 100), (9, 3, 2, 200), (9, 5, 2, 200), (9, 5, 1, -1)]
    for call in calls:
        driver.ran.clear()
        launch(*call)
        assert driver.ran == wanted(*call)
    assert driver.before == [None, 1, 2]
    seen = driver.calls
    assert (seen["plain"], seen["create"], seen["add"], seen["instantiate"]) == (6, 1, 3, 1)
    assert (seen["launch"], seen["set"]) == (6, 9)


def two_launches(driver: Driver, terms: list[tuple[int, int]]) -> native.LaunchList:
    """A list of one kernel twice, of two numbers."""
    address = ctypes.cast(driver.plain, P).value or 0
    launcher = native.Launcher(address, KERNEL, THREADS, SHARED, 2, 0, fail)
    numbers = array.array("q", [n for pair in terms for n in pair]).tobytes()
    return native.LaunchList((launcher, launcher), numbers, 2, driver.functions)


def test_only_what_has_changed_is_set() -> None:
    driver = Driver()
    terms = [(0, 1), (0, 1), (1, 0), (0, 0), (0, 1), (0, 1), (2, 0), (0, 0)]
    launch = two_launches(driver, terms)
    for values in ((1, 2), (1, 2), (1, 2), (1, 2), (1, 3), (4, 3)):
        driver.ran.clear()
        launch(0, *values)
        assert driver.ran == [(None, 1, 1, [value, 0]) for value in values]
    assert driver.calls["set"] == 2


def test_nothing_is_launched_without_a_column() -> None:
    driver = Driver()
    launch = launch_list(driver)
    for columns in (1, 1, 0, 1, 0, 2, 0, 1):
        driver.ran.clear()
        launch(7, columns, 1, columns)
        assert driver.ran == (wanted(7, columns, 1, columns) if columns else [])


def test_a_list_of_which_one_has_no_row_is_launched_one_by_one() -> None:
    driver = Driver()
    terms = [(0, 1), (0, 1), (2, 0), (0, 0), (0, 1), (1, 0), (2, 0), (0, 0)]
    launch = two_launches(driver, terms)
    for rows, value in ((1, 1), (1, 1), (0, 2), (1, 3), (0, 4), (0, 4), (1, 4), (1, 3)):
        driver.ran.clear()
        launch(7, rows, value)
        both = [(7, 1, 1, [value, 0]), (7, 1, rows, [value, 0])]
        assert driver.ran == both[: 1 + rows]


def test_not_while_a_stream_is_recorded() -> None:
    driver = Driver()
    launch = launch_list(driver)
    for _ in range(3):
        launch(7, 1, 1, 1)
    driver.capturing = 1
    before = driver.calls["plain"]
    driver.ran.clear()
    launch(7, 1, 1, 5)
    assert driver.ran == wanted(7, 1, 1, 5)
    assert driver.calls["plain"] == before + 3


@pytest.mark.parametrize("function", ["create", "add", "instantiate", "set", "is_capturing"])
def test_what_the_driver_refuses_is_launched_one_by_one(function: str) -> None:
    driver = Driver(function)
    launch = launch_list(driver)
    for value in range(5):
        driver.ran.clear()
        launch(7, 1, 1, value)
        assert driver.ran == wanted(7, 1, 1, value)
    del launch
    gc.collect()
    made = driver.calls["instantiate"] if function != "instantiate" else 0
    assert driver.calls["destroy_executable"] == made


def test_a_failing_launch_is_raised() -> None:
    driver = Driver("launch")
    launch = launch_list(driver)
    for _ in range(2):
        launch(7, 1, 1, 1)
    with pytest.raises(LaunchError, match="status 1"):
        launch(7, 1, 1, 1)


def test_graphs_are_dropped() -> None:
    driver = Driver()
    launch = launch_list(driver)
    for _ in range(3):
        launch(7, 1, 1, 1)
    del launch
    gc.collect()
    assert (driver.calls["destroy_executable"], driver.calls["destroy"]) == (1, 1)


def test_wrong_functions() -> None:
    with pytest.raises(ValueError, match="functions for graphs"):
        native.LaunchList((), b"", 0, b"12345678")
