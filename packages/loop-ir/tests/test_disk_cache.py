"""What others may have written is not read, what is damaged is made again, and caches stay small."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from weft_loop_ir import disk_cache
from weft_loop_ir.disk_cache import (
    CacheWarning,
    DamagedEntry,
    cache_folder,
    collect,
    has_entry,
    locked,
    private_folder,
    read_entry,
    size_limit,
    trusted_folder,
    write_entry,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and modes")
KEY = "0123456789abcdef" * 2
STRANGER = 12345


@pytest.fixture(autouse=True)
def _every_warning_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "_warned", set())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "cache"
    trusted_folder(made)
    return made


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a path another user's: in truth where root runs the tests."""
    if os.geteuid() == 0:
        return lambda path: os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    theirs: set[tuple[int, int]] = set()

    def pretending(function: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def look(*arguments: object, **keywords: object) -> os.stat_result:
            found = function(*arguments, **keywords)
            if (found.st_dev, found.st_ino) not in theirs:
                return found
            return os.stat_result((*found[:4], STRANGER, *found[5:]))

        return look

    def give(path: Path) -> None:
        found = os.lstat(path)
        theirs.add((found.st_dev, found.st_ino))

    for name in ("lstat", "fstat"):
        monkeypatch.setattr(os, name, pretending(getattr(os, name)))
    return give


def test_what_is_made_is_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_entry(tmp_path / "a" / "b", "entry", b"content")
    finally:
        os.umask(before)
    for path in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "entry"):
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path
    assert read_entry(tmp_path / "a" / "b", "entry") == b"content"
    assert [p.name for p in (tmp_path / "a" / "b").iterdir()] == ["entry"]


def harmless(folder: Path) -> None:
    (folder.parent / "link").symlink_to(folder.parent, target_is_directory=True)


def writable_by(mode: int, above: int = 0) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder, folder.parent)[above].chmod(mode)

    return change


@pytest.mark.parametrize(
    ("change", "is_trusted"),
    [
        (harmless, True),
        (writable_by(0o755), True),
        (writable_by(0o775), False),
        (writable_by(0o707), False),
        (writable_by(0o1777), False),  # others could add entries
        (writable_by(0o1777, above=1), True),  # as /tmp
        (writable_by(0o777, above=1), False),
        (writable_by(0o770, above=1), False),
    ],
)
def test_modes_of_folders(folder: Path, change: Callable[[Path], None], is_trusted: bool) -> None:
    write_entry(folder, "entry", b"content")
    change(folder)
    if is_trusted:
        assert cache_folder("cpp", folder) == folder
        assert read_entry(folder, "entry") == b"content"
        return
    with pytest.raises(OSError, match="others may write"):
        read_entry(folder, "entry")
    with pytest.warns(CacheWarning, match="others may write"):
        private = cache_folder("cpp", folder)
    assert private != folder
    assert not (private / "entry").exists()


def test_folders_of_others(folder: Path, give_away: Callable[[Path], None]) -> None:
    write_entry(folder, "entry", b"content")
    above = folder.parent / "above"
    above.mkdir(mode=0o700)
    trusted_folder(above / "cache")
    (folder.parent / "link").symlink_to(folder)
    assert read_entry(folder.parent / "link", "entry") == b"content"
    for theirs, used in (
        (folder.parent / "link", folder.parent / "link"),  # /tmp/weft -> the user's documents
        (above, above / "cache"),
        (folder, folder),
    ):
        give_away(theirs)
        with pytest.raises(OSError, match="belongs to user 12345"):
            trusted_folder(used)
        with pytest.warns(CacheWarning, match="belongs to user 12345"):
            assert cache_folder("cpp", used) != used


def test_entries_of_others(folder: Path, give_away: Callable[[Path], None]) -> None:
    for spoil in (give_away, lambda p: p.chmod(0o620), lambda p: p.chmod(0o602)):
        for looks in (True, False):
            write_entry(folder, "entry", b"planted")
            spoil(folder / "entry")
            disk_cache._warned.clear()
            with pytest.warns(CacheWarning, match="entry"):
                assert not (has_entry(folder, "entry") if looks else _is_read(folder, "entry"))
            assert not (folder / "entry").exists()


def _is_read(folder: Path, name: str) -> bool:
    try:
        read_entry(folder, name)
    except DamagedEntry:
        return False
    return True


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    (path / "inner").mkdir(parents=True)
    (path / "inner" / "file").write_text("x")


def _link(path: Path) -> None:
    target = path.parent.parent / "target"
    target.write_bytes(b"planted")
    path.symlink_to(target)


def _lost_link(path: Path) -> None:
    path.symlink_to("nowhere")


STRANGE = {"fifo": _fifo, "folder": _folder, "link": _link, "lost link": _lost_link}


@pytest.mark.parametrize("kind", STRANGE)
def test_what_is_no_entry(folder: Path, kind: str) -> None:
    STRANGE[kind](folder / "entry")
    with pytest.raises(DamagedEntry):
        read_entry(folder, "entry")
    assert not os.path.lexists(folder / "entry")
    STRANGE[kind](folder / "other")
    write_entry(folder, "other", b"content")  # replaced where nobody looked
    assert read_entry(folder, "other") == b"content"
    target = folder.parent / "target"
    assert kind != "link" or target.read_bytes() == b"planted"
    STRANGE[kind](folder / f"{KEY}.lock")
    with locked(folder, KEY, 1):
        pass
    assert not (folder / f"{KEY}.lock").exists()


def test_a_lock_that_nobody_gives_back(folder: Path) -> None:
    """Who waits too long goes on: what is written is written in one step."""
    inside = []
    with locked(folder, KEY, 10), locked(folder, KEY, 0.1):
        inside.append(True)
    assert inside


def test_one_at_a_time(folder: Path) -> None:
    running, most = 0, 0

    def work() -> None:
        nonlocal running, most
        for _ in range(5):
            with locked(folder, KEY, 60):
                running += 1
                most = max(most, running)
                time.sleep(0.005)
                running -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


HOLD = """
import os, pathlib, sys
from weft_loop_ir.disk_cache import locked
with locked(pathlib.Path(sys.argv[1]), sys.argv[2], 60):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_a_process_that_was_killed(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), KEY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    process.kill()
    process.wait()
    assert (folder / f"{KEY}.lock").exists()
    with locked(folder, KEY, 60):
        pass
    assert not (folder / f"{KEY}.lock").exists()


# Where there is no place.


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "WEFT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    import pwd

    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.usefixtures("no_home")
def test_no_home() -> None:
    with pytest.warns(CacheWarning, match="no home directory") as caught:
        folders = {cache_folder(name) for name in ("cpp", "triton", "programs", "cpp")}
    assert len(caught) == 1
    assert len(folders) == 3
    assert folders == {private_folder(name) for name in ("cpp", "triton", "programs")}
    for folder in folders:
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        write_entry(folder, "entry", b"content")
        assert read_entry(folder, "entry") == b"content"


@pytest.mark.usefixtures("no_home")
def test_a_warning_that_is_an_error_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache_folder("cpp") == private_folder("cpp")
    assert "no home directory" in caplog.text


@pytest.mark.parametrize("named", ["/proc/self/weft", "/dev/null/weft", "{0}/file"])
def test_a_place_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("WEFT_CACHE_DIR", named.format(tmp_path))
    with pytest.warns(CacheWarning, match="cannot be used"):
        assert cache_folder("cpp") == private_folder("cpp")


def test_a_private_folder_goes_with_its_process() -> None:
    program = (
        "from weft_loop_ir.disk_cache import private_folder; import os\n"
        "here = private_folder('cpp')\n"
        "if os.fork() == 0:\n    assert private_folder('cpp') != here; os._exit(0)\n"
        "assert os.waitpid(-1, 0)[1] == 0 and here.is_dir(); print(here)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    made = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment, check=True
    ).stdout.decode()
    assert "weft-cache-" in made
    assert not Path(made.strip()).exists()


# Sizes.


def entry(folder: Path, number: int, size: int, age: float) -> list[Path]:
    key = f"{number:032x}"
    paths = [folder / f"{key}.so", folder / f"{key}.sum", folder / f"{key}.cpp"]
    for path in paths:
        path.write_bytes(os.urandom(size if path.suffix == ".so" else 10))
        then = time.time() - (age if path.suffix == ".sum" else age + 1000)
        os.utime(path, (then, then))
    return paths


def test_what_was_used_last_stays(folder: Path) -> None:
    entries = [entry(folder, k, 100_000, 10_000 - 1000 * k) for k in range(6)]
    (folder / "notes.txt").write_text("the user's own")
    (folder / f"headers-{KEY}").mkdir()
    (folder / f"headers-{KEY}" / "weft_host.h.gch").write_bytes(bytes(range(256)) * 400)
    collect(folder, 0)
    assert all(path.exists() for paths in entries for path in paths)
    collect(folder, 450_000)
    there = [[path.exists() for path in paths] for paths in entries]
    assert there == [[False] * 3] * 3 + [[True] * 3] * 3
    collect(folder, 1)
    left = {path.name for path in folder.iterdir()}
    assert left == {"notes.txt", f"headers-{KEY}"}  # made just now, it may be in use


def test_the_limit_is_kept_by_writing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_LIMIT", "1M")
    for number in range(30):
        write_entry(folder, f"{number:032x}.program", bytes(100_000))
        then = time.time() - 1000 + number
        os.utime(folder / f"{number:032x}.program", (then, then))
    names = sorted(path.name for path in folder.iterdir())
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1.2e6
    assert names == [f"{number:032x}.program" for number in range(30 - len(names), 30)]


@pytest.mark.parametrize(("limit", "left"), [(1_000_000, 9), (0, 30), (None, 30)])
def test_a_limit_that_a_process_asks_for(
    folder: Path, limit: int | None, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts instead of the variable's, until the folder is asked for with another."""
    monkeypatch.delenv("WEFT_CACHE_LIMIT", raising=False)
    cache_folder("programs", folder, 1)
    assert cache_folder("programs", folder, limit) == folder
    for number in range(30):
        write_entry(folder, f"{number:032x}.program", bytes(100_000))
        os.utime(folder / f"{number:032x}.program", (1000 + number, 1000 + number))
    assert len(list(folder.iterdir())) == left


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 4 << 30),
        ("1000", 1000),
        ("2G", 2 << 30),
        ("1.5 MiB", 3 << 19),
        ("0", 0),
        ("x", 4 << 30),
    ],
)
def test_limits(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv("WEFT_CACHE_LIMIT", text)
    assert size_limit() == size


def test_what_killed_processes_leave(folder: Path) -> None:
    whole = entry(folder, 1, 100, 1e6)
    halves = [folder / f"{2:032x}.so", folder / f"{3:032x}.sum", folder / f"{4:032x}.cubin"]
    leftovers = [
        *halves,
        folder / "tmpabcdef12",
        folder / "tmpabcdef12.so",
        folder / f"{5:032x}.lock",
        folder / f"{1:032x}.lock",
    ]
    recent = [folder / "tmpzzzzzz99.so", folder / f"{6:032x}.so"]
    for path in (*leftovers, *recent):
        path.write_bytes(b"x")
    for path in leftovers:
        os.utime(path, (0, 0))
    source = folder / f"{7:032x}.cpp"  # of a compiler that failed
    source.write_text("x")
    os.utime(source, (0, 0))
    collect(folder)
    assert set(folder.iterdir()) == {*whole, *recent, source}
