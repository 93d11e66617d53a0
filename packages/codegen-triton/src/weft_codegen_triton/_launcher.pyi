from collections.abc import Callable
from typing import final

@final
class Launcher:
    def __init__(
        self,
        launch: int,
        kernel: int,
        threads: int,
        shared_bytes: int,
        count: int,
        nulls: int,
        failed: Callable[[int], None],
    ) -> None: ...
    def __call__(self, stream: int, columns: int, rows: int, *arguments: int) -> None: ...

@final
class LaunchList:
    def __init__(
        self,
        launchers: tuple[Launcher, ...],
        terms: bytes,
        values: int,
        graph_functions: bytes | None = None,
    ) -> None: ...
    def __call__(self, stream: int, *values: int) -> None: ...
