"""The command ``weft``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import __version__

# What a command does is imported when it is run: rich, the models and torch take a while.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0 if all is well, 1 if not."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    status: int = options.run(options)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weft",
        description="A compiler for PyTorch programs.",
        epilog="WEFT_LOGS=help python program.py names the logs that a program can write.",
    )
    parser.add_argument("--version", action="version", version=f"weft {__version__}")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")

    doctor = commands.add_parser(
        "doctor", help="look at all that weft needs here, and say what to do where it lacks"
    )
    doctor.set_defaults(run=_doctor)

    explain = commands.add_parser(
        "explain", help="run a program and say what became of all that it compiled"
    )
    explain.add_argument("--guards", action="store_true", help="show the guards too")
    explain.add_argument(
        "--torch-compile", action="store_true", help="take its torch.compile for weft.compile"
    )
    explain.add_argument("script", type=Path)
    explain.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own")
    explain.set_defaults(run=_explain)

    _add_cache(commands)

    report = commands.add_parser(
        "report", help="make one HTML page of what a program run with WEFT_DUMP=DIR has written"
    )
    report.add_argument("directory", type=Path)
    report.add_argument(
        "--output", type=Path, help="where to write the page (default: DIR/report.html)"
    )
    report.set_defaults(run=_report)

    _add_minify(commands)

    demo = commands.add_parser(
        "demo", help="compile a transformer and a convolutional network and compare with eager"
    )
    demo.add_argument("--runs", type=_positive, default=20, help="timed calls of each (default 20)")
    demo.set_defaults(run=_demo)
    return parser


def _add_cache(commands: Any) -> None:
    cache = commands.add_parser("cache", help="look at what is kept on disk, empty or carry it")
    actions = cache.add_subparsers(dest="action", title="actions", metavar="ACTION", required=True)
    actions.add_parser("info", help="where the caches are, and what they hold").set_defaults(
        run=_cache_info
    )
    actions.add_parser("clear", help="remove all that is kept").set_defaults(run=_cache_clear)
    for name, text, run in (
        ("export", "write all entries to one file", _cache_export),
        (
            "import",
            "take the entries of such a file, which are run later: trust its maker",
            _cache_import,
        ),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("file", help="a path, or a URL that fsspec knows")
        action.set_defaults(run=run)


def _add_minify(commands: Any) -> None:
    minify = commands.add_parser(
        "minify", help="find the smallest part of a dumped graph on which a stage still fails"
    )
    minify.add_argument(
        "file", type=Path, help="1_captured.py of a dump, or one like it; it is run"
    )
    minify.add_argument(
        "--accuracy",
        action="store_true",
        help="look for the first stage that is farther from float64 than eager is",
    )
    minify.add_argument("--limit", type=_positive, default=500, help="graphs to try (default 500)")
    minify.add_argument(
        "--output", type=Path, default=Path("minified.py"), help="default: minified.py"
    )
    minify.set_defaults(run=_minify)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _doctor(options: argparse.Namespace) -> int:
    from rich.console import Console

    from .doctor import examine
    from .report_tables import findings_table

    findings = examine()
    Console().print(findings_table(findings))
    return int(any(finding.is_fatal for finding in findings))


def _explain(options: argparse.Namespace) -> int:
    from .explain_script import explain_script

    try:
        explanation = explain_script(
            options.script, options.arguments, takes_torch_compile=options.torch_compile
        )
    except FileNotFoundError as error:
        if error.filename != str(options.script):
            raise
        return _fail(f"no such script: {options.script}")
    except BaseException as error:  # whatever ends the script: its report is shown before
        found = getattr(error, "explanation", None)
        if found is not None:
            found.show(guards=options.guards)
        raise
    explanation.show(guards=options.guards)
    return 0


def _cache_info(options: argparse.Namespace) -> int:
    from rich.console import Console

    from .caches import cache_infos
    from .report_tables import caches_table

    infos = cache_infos()
    Console().print(caches_table(infos))
    return int(any(info.problem is not None for info in infos))


def _cache_clear(options: argparse.Namespace) -> int:
    from .caches import clear_caches

    try:
        removed = clear_caches()
    except OSError as error:
        return _fail(str(error))
    sys.stdout.write(f"removed {removed} bytes\n")
    return 0


def _cache_export(options: argparse.Namespace) -> int:
    from .caches import ArchiveError, pack_caches, write_place

    content, packed = pack_caches()
    try:
        write_place(options.file, content)
    except (OSError, ArchiveError) as error:
        return _fail(str(error))
    sys.stdout.write(f"{packed.entries} entries, {packed.size} bytes, in {options.file}\n")
    return 0


def _cache_import(options: argparse.Namespace) -> int:
    from .caches import ArchiveError, read_place, unpack_caches

    try:
        packed = unpack_caches(read_place(options.file))
    except (OSError, ArchiveError) as error:
        return _fail(str(error))
    sys.stdout.write(f"{packed.entries} entries, {packed.size} bytes\n")
    return 0


def _report(options: argparse.Namespace) -> int:
    from .report_page import DumpError, write_page

    page = options.output or options.directory / "report.html"
    try:
        write_page(options.directory, page)
    except (DumpError, OSError) as error:
        return _fail(str(error))
    sys.stdout.write(f"{page}\n")
    return 0


def _minify(options: argparse.Namespace) -> int:
    from .minify.command import NothingToMinify, minify_file

    try:
        fault, reduced = minify_file(
            options.file, options.output, accuracy=options.accuracy, limit=options.limit
        )
    except (NothingToMinify, OSError) as error:
        return _fail(str(error))
    operations = "operation" if reduced.size == 1 else "operations"
    sys.stdout.write(f"{fault}\n{options.output}: {reduced.size} {operations}\n")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from .demo.run import run_demo

    return run_demo(options.runs)


def _fail(message: str) -> int:
    sys.stderr.write(f"weft: {message}\n")
    return 1
