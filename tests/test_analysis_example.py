"""The graph-analysis example needs the capture stage alone."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples" / "analyse_graphs.py"

HIDE_THE_REST = """
import runpy, sys
class Hidden:
    names = {"weft", "weft_functionalize", "weft_aot_autograd", "weft_loop_ir",
             "weft_codegen_cpp", "weft_codegen_triton"}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"{name} is not installed in this test")
sys.meta_path.insert(0, Hidden())
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_prints_graphs_guards_and_breaks() -> None:
    run = subprocess.run(
        [sys.executable, "-c", HIDE_THE_REST, str(EXAMPLE)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "2 graphs" in run.stdout
    assert "1 breaks" in run.stdout
    assert "analyse_graphs.py" in run.stdout  # guards and breaks name the user's lines
