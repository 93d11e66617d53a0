"""Builds this package's C extension in place.

hatchling calls the hook below when it builds a wheel or an editable install; run as a script
(`python hatch_build.py`) it rebuilds the extension without reinstalling anything. The shared
object is written beside the Python sources, because that is where an editable install imports
from.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

PACKAGE = "weft_codegen_triton"
MODULE = "_launcher"

ROOT = Path(__file__).resolve().parent
PACKAGE_DIR = ROOT / "src" / PACKAGE
SOURCES_DIR = PACKAGE_DIR / "csrc"
COMPILE_FLAGS = ("-O2", "-fPIC", "-std=c11", "-Wall", "-fvisibility=hidden")

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run as a script in an environment that has no hatchling
    BuildHookInterface = object


class BuildError(Exception):
    """The extension can't be built; the message is one sentence that names the fix."""


def extension_path() -> Path:
    return PACKAGE_DIR / f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"


def compiler() -> list[str]:
    """The C compiler: `CC` from the environment, else the one Python was built with, else `cc`."""
    requested = os.environ.get("CC")
    if requested:
        command = shlex.split(requested)
        if shutil.which(command[0]) is None:
            raise BuildError(
                f"{PACKAGE} needs a C compiler, but CC={requested!r} is not on PATH: "
                "set CC to an installed compiler or unset it."
            )
        return command
    configured = shlex.split(sysconfig.get_config_var("CC") or "")
    for command in (configured, ["cc"], ["gcc"], ["clang"]):
        if command and shutil.which(command[0]):
            return command
    raise BuildError(
        f"{PACKAGE} needs a C compiler and none was found on PATH: "
        "install one (for example `apt install build-essential`) or set CC to its path."
    )


def include_dir() -> Path:
    """Python's headers."""
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise BuildError(
            f"{PACKAGE} needs Python {version}'s headers and {include / 'Python.h'} is missing: "
            f"install them (for example `apt install python{version}-dev`)."
        )
    return include


def is_current(extension: Path, sources: list[Path]) -> bool:
    if not extension.exists():
        return False
    headers = list(SOURCES_DIR.rglob("*.h"))
    built = extension.stat().st_mtime_ns
    return all(path.stat().st_mtime_ns < built for path in [*sources, *headers, Path(__file__)])


def link_flags() -> list[str]:
    if sys.platform == "darwin":
        return ["-bundle", "-undefined", "dynamic_lookup"]
    return ["-shared"]


def build_extension() -> Path | None:
    """Compile all of `csrc/` into the extension; None when there are no C sources."""
    sources = sorted(SOURCES_DIR.rglob("*.c"))
    if not sources:
        return None
    extension = extension_path()
    if is_current(extension, sources):
        return extension
    # Compiled beside the target and then renamed, so that a running process keeps the file it
    # has mapped and two builds at once never leave a half-written one.
    unfinished = extension.with_name(f".{extension.name}.{os.getpid()}")
    command = [
        *compiler(),
        *COMPILE_FLAGS,
        *link_flags(),
        f"-I{include_dir()}",
        *map(str, sources),
        "-o",
        str(unfinished),
    ]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise BuildError(f"{PACKAGE}: {shlex.join(command)} failed:\n{result.stderr}")
        if result.stderr:
            print(result.stderr, file=sys.stderr, end="")
        unfinished.replace(extension)
    finally:
        unfinished.unlink(missing_ok=True)
    return extension


class ExtensionBuildHook(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        try:
            extension = build_extension()
        except BuildError as error:
            raise SystemExit(f"error: {error}") from None
        if extension is None:
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        # Git ignores the shared object, and hatchling leaves ignored files out unless told.
        build_data["artifacts"].append(f"/{extension.relative_to(ROOT).as_posix()}")


def main() -> int:
    try:
        extension = build_extension()
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if extension is None:
        print(f"{PACKAGE}: no C sources in {SOURCES_DIR.relative_to(ROOT)}, nothing to build")
    else:
        print(f"{PACKAGE}: {extension.relative_to(ROOT)} is up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
