"""Builds the C extensions of packages that have one, in place.

hatchling calls :class:`ExtensionBuildHook` when it builds a wheel or an editable install.  The shared object
is written beside the Python sources, because that is where an editable install imports from.  A package's
sdist carries a copy of this file, put there by its ``pyproject.toml``.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPILE_FLAGS = ("-O2", "-fPIC", "-std=c11", "-Wall", "-fvisibility=hidden")

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run as a script in an environment that has no hatchling
    BuildHookInterface = object


class BuildError(Exception):
    """The extension can't be built; the message is one sentence that names the fix."""


@dataclass(frozen=True)
class NativeExtension:
    """The extension ``package.module``, of all C files in ``csrc/`` of the package whose folder is ``root``.

    ``internal_headers``: it includes Python's internal headers, under ``Py_BUILD_CORE``.
    """

    root: Path
    package: str
    module: str
    internal_headers: bool = False

    @property
    def sources(self) -> Path:
        """The folder of C files and headers."""
        return self.root / "src" / self.package / "csrc"

    @property
    def path(self) -> Path:
        """The shared object."""
        return self.sources.parent / f"{self.module}{sysconfig.get_config_var('EXT_SUFFIX')}"

    def build(self) -> None:
        """Compile, unless the shared object says that it was made of the same sources.

        Times of files don't tell: they change with a checkout or a copy.

        Raises :class:`BuildError` without a compiler or headers, or with the compiler's messages.
        """
        origin = self._origin()
        if self.path.exists() and origin.encode() in self.path.read_bytes():
            return
        # Compiled beside the target and then renamed, so that a running process keeps the file it
        # has mapped and two builds at once never leave a half-written one.
        unfinished = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        command = [
            *self._compiler(),
            *COMPILE_FLAGS,
            *_link_flags(),
            *(f"-I{folder}" for folder in [*self._include_folders(), self.sources]),
            *map(str, sorted(self.sources.rglob("*.c"))),
            *("-x", "c", "-"),  # one more file, on standard input
            "-o",
            str(unfinished),
        ]
        named = f'__attribute__((visibility("default"))) const char weft_origin[] = "{origin}";\n'
        try:
            result = subprocess.run(
                command, input=named, capture_output=True, text=True, check=False
            )
            if result.returncode:
                raise BuildError(f"{self.package}: {shlex.join(command)} failed:\n{result.stderr}")
            if result.stderr:
                print(result.stderr, file=sys.stderr, end="")
            unfinished.replace(self.path)
        finally:
            unfinished.unlink(missing_ok=True)

    def _origin(self) -> str:
        """What the shared object holds of that which it is made of: a hash of names and contents."""
        needed = [
            *sorted(self.sources.rglob("*.[ch]")),
            self.root / "hatch_build.py",
            Path(__file__),
        ]
        state = hashlib.sha256(sys.version.encode())
        for path in needed:
            state.update(f"{path.name} {path.stat().st_size}\n".encode())
            state.update(path.read_bytes())
        return f"weft origin {state.hexdigest()}"

    def _compiler(self) -> list[str]:
        """The C compiler: `CC` from the environment, else the one Python was built with, else `cc`."""
        requested = os.environ.get("CC")
        if requested:
            command = shlex.split(requested)
            if shutil.which(command[0]) is None:
                raise BuildError(
                    f"{self.package} needs a C compiler, but CC={requested!r} is not on PATH: "
                    "set CC to an installed compiler or unset it."
                )
            return command
        configured = shlex.split(sysconfig.get_config_var("CC") or "")
        for command in (configured, ["cc"], ["gcc"], ["clang"]):
            if command and shutil.which(command[0]):
                return command
        raise BuildError(
            f"{self.package} needs a C compiler and none was found on PATH: "
            "install one (for example `apt install build-essential`) or set CC to its path."
        )

    def _include_folders(self) -> list[Path]:
        """The folders of Python's headers."""
        include = Path(sysconfig.get_path("include"))
        needed = [include / "Python.h"]
        if self.internal_headers:
            needed.append(include / "internal" / "pycore_frame.h")
        for header in needed:
            if not header.is_file():
                version = f"{sys.version_info.major}.{sys.version_info.minor}"
                raise BuildError(
                    f"{self.package} needs Python {version}'s headers and {header} is missing: "
                    f"install them (for example `apt install python{version}-dev`)."
                )
        return [header.parent for header in needed]


def _link_flags() -> list[str]:
    if sys.platform == "darwin":
        return ["-bundle", "-undefined", "dynamic_lookup"]
    return ["-shared"]


class ExtensionBuildHook(BuildHookInterface):
    """Adds ``extension``, which a package's own subclass names, to its wheel."""

    PLUGIN_NAME = "custom"
    extension: NativeExtension

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        try:
            self.extension.build()
        except BuildError as error:
            raise SystemExit(f"error: {error}") from None
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        # Git ignores the shared object, and hatchling leaves ignored files out unless told.
        path = self.extension.path.relative_to(self.extension.root)
        build_data["artifacts"].append(f"/{path.as_posix()}")


def build_in_place(extension: NativeExtension) -> int:
    """Build and say so; the exit status of a package's script."""
    try:
        extension.build()
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{extension.package}: {extension.path.relative_to(extension.root)} is up to date")
    return 0
