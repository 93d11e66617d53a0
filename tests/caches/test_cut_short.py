"""Processes that are killed, or find the disk full, leave caches that serve the next process."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks"),
]


def environment() -> dict[str, str]:
    """Ours, in which a program that can't be compiled runs as it was written."""
    path = os.pathsep.join(p for p in sys.path if p)
    return os.environ | {"WEFT_STRICT": "0", "PYTHONPATH": path}


def run(*arguments: str | Path, prefix: tuple[str, ...] = (), limit: int = -1) -> str:
    """What a script of this folder prints; it must end well."""

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    result = subprocess.run(
        [*prefix, sys.executable, *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=bound if limit >= 0 else None,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("kind", ["kill", "late", "full"])
def test_processes_that_are_cut_short(kind: str, tmp_path: Path) -> None:
    assert "moments" in run(HERE / "cut_short.py", tmp_path, kind, "4")


def can_mount() -> bool:
    """Whether a process may have a small file system of its own."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    command = ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs a file system of its own")
def test_a_file_system_that_is_full(tmp_path: Path) -> None:
    """The compiler's own files are on it, too."""
    printed = run(HERE / "small_disk.py", tmp_path, prefix=("unshare", "-Urm"))
    assert printed.endswith("done\n")


@pytest.mark.parametrize("limit", [1 << 10, 1 << 13])
def test_files_that_may_not_grow(limit: int, tmp_path: Path) -> None:
    """The compiler is ended by a signal, and what this process writes itself fails."""
    printed = run(HERE / "small_disk.py", tmp_path, "once", limit=limit)
    assert printed.endswith("done\n")
    assert run(HERE / "small_disk.py", tmp_path, "once").endswith("done\n")
    assert any((tmp_path / "cache" / "programs").iterdir())
