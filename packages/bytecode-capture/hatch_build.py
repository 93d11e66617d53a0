"""Builds this package's C extension: when hatchling builds the package, and in place when run as a script."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
# the helper lies beside this file in an sdist, at the root in the repository
sys.path[:0] = [str(ROOT), str(ROOT.parents[1])]

import native_extension  # noqa: E402

EXTENSION = native_extension.NativeExtension(
    ROOT, "weft_bytecode_capture", "_frame_hook", internal_headers=True
)


class BuildHook(native_extension.ExtensionBuildHook):
    extension = EXTENSION


if __name__ == "__main__":
    sys.exit(native_extension.build_in_place(EXTENSION))
