"""What `import weft` brings with it."""

import subprocess
import sys

import pytest


@pytest.mark.kept
def test_importing_weft_imports_no_other_compiler() -> None:
    others = ("torch._dynamo", "torch._inductor", "triton")
    program = f"import sys, weft; print([name for name in {others} if name in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
