"""A code generator of a third party takes the CPU's place by being installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "third_party_codegen"

PROGRAM = """
import torch, weft
def f(x, y):
    return torch.softmax(x @ y, dim=-1) * 2
x, y = torch.randn(4, 8), torch.randn(8, 3)
torch.testing.assert_close(torch.compile(f, backend="weft", fullgraph=True)(x, y), f(x, y))
"""


def test_an_installed_package_takes_the_devices_place(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the build backend of the package is not installed")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    install += ["--no-build-isolation", "--target", str(tmp_path), str(EXAMPLE)]
    subprocess.run(install, check=True)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "torch_codegen:" in run.stdout
