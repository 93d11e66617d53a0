"""Compiles where a disk becomes full: processes, one after another, on a file system of more and more bytes.

Arguments: a folder, on which one is mounted, and ``once`` for no mount and one process.  None may fail, and
once there is room, what was compiled is kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cut_short import compile_program, in_a_process, loads

PAGE = 4096
SIZES = (1, 2, 3, 4, 6, 8, 12, 20, 40)


def mount(folder: Path, size: int, *options: str) -> None:
    chosen = ",".join((*options, f"size={size}", "mode=700"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", chosen, "none", str(folder)], check=True)


def main() -> None:
    folder = Path(sys.argv[1])
    cache = folder / "cache"
    if "once" in sys.argv:
        in_a_process(compile_program, cache)
    else:
        mount(folder, PAGE)
        os.environ["TMPDIR"] = str(folder)
        for pages in SIZES:
            mount(folder, pages * PAGE, "remount")
            in_a_process(compile_program, cache)
        mount(folder, 1 << 26, "remount")
        in_a_process(compile_program, cache)
        assert in_a_process(loads, cache)
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
