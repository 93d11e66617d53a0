"""What can go wrong in this package."""

from __future__ import annotations


class CodegenError(RuntimeError):
    """The schedule is not sound, or torch is not as expected; a form that is missing is ``Unsupported``."""


class CompilerNotFound(RuntimeError):
    """There is no C++ compiler on this machine."""


class CompileError(RuntimeError):
    """The C++ compiler failed.  The message reports the command, the source's path and its stderr."""

    def __init__(self, command: list[str], source_path: str, stderr: str) -> None:
        super().__init__(
            f"the C++ compiler failed on {source_path}\ncommand: {' '.join(command)}\n{stderr.strip()}"
        )
        self.command = command
        self.source_path = source_path
        self.stderr = stderr


class CompilerTimeout(CompileError):
    """The C++ compiler did not end in time."""

    def __init__(self, command: list[str], source_path: str, seconds: float) -> None:
        super().__init__(
            command,
            source_path,
            f"it did not end in {seconds:g} seconds (options: compiler_seconds; WEFT_COMPILER_SECONDS)",
        )
