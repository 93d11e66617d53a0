"""Seeds every test; the tests' own helper modules are imported by name.

The fixtures import what is tested: of a run's processes the one that hands tests out needs none of it.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def seeded() -> None:
    import torch

    torch.default_generator.manual_seed(0)  # those of devices that are not there take longer


RUNNERS = frozenset(sys._current_frames())


@pytest.fixture(autouse=True)
def runner_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runner's own threads, which wake now and then, are none that may draw random numbers."""
    from weft_bytecode_capture.symbolic.graph import recovery

    times = recovery._times_of_others

    def of_others() -> dict[int, int] | None:
        found = times()
        return None if found is None else {t: n for t, n in found.items() if t not in RUNNERS}

    monkeypatch.setattr(recovery, "_times_of_others", of_others)
