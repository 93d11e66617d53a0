"""The command ``weft``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="weft", description="A compiler for PyTorch programs.")
    parser.add_argument("--version", action="version", version=f"weft {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo", help="compile a transformer and a convolutional network and compare with eager"
    )
    demo.add_argument("--runs", type=int, default=20, help="timed calls of each (default 20)")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error(f"--runs must be at least 1, got {options.runs}")
    from .demo.run import run_demo  # rich and the models load only when they are shown

    return run_demo(options.runs)
