"""Checks of the workspace. `nox` runs the default sessions; `nox -s "tests(guards)"` runs one.

Isolation without a copy of torch each: all third-party packages live in one environment, which
the environment of every package sees through a `.pth` file, while weft's own packages are
installed into the environment of a package only when it declares them. Everything is kept under
`.nox/` and reinstalled only when its inputs change.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tarfile
import tomllib
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "types", "docs", "suite"]
nox.options.default_venv_backend = "none"

ROOT = Path(__file__).resolve().parent
PACKAGES = [
    "guards",
    "bytecode-capture",
    "functionalize",
    "aot-autograd",
    "loop-ir",
    "codegen-cpp",
    "codegen-triton",
    "weft",
]
ENVIRONMENTS = ROOT / ".nox" / f"python{sys.version_info.major}.{sys.version_info.minor}"
# Each worker imports torch and collects every test, so more of them than this cost more than they save.
MAX_WORKERS = 4
# How many sessions are run beside each other, which share the processors: `.ci/run` says so.
ROWS = int(os.environ.get("WEFT_ROWS", "1"))
# From how many characters on the suite compiles programs without optimization, which takes two thirds of
# the time for short ones, an eighth for long ones. codegen-cpp's own tests optimize what is short.
UNOPTIMIZED_LENGTH = "1"
# Bytecode is written when a module is imported: environments have three times as many as are.
NOT_COMPILED = "--no-compile"
# What the suite runs in one run of pytest: to start one and its workers takes ten seconds; some tests fail
# in a process that has run other packages'.
SUITE = {
    "graphs": ("guards", "functionalize", "aot-autograd", "loop-ir"),
    **{name: (name,) for name in ("bytecode-capture", "codegen-cpp", "codegen-triton", "weft")},
    "integration": (),
}
# What `.ci/run` runs in its two rows, of about as many minutes: the suite's longest part, and all others.
FIRST, BESIDE = ["first"], ["beside"]
IN_FIRST = ("integration",)
# How many random programs the suite and `nox -s random` run, by the tests' own variables.
FEW_PROGRAMS = {
    "WEFT_REGION_BLOCKS": "1",
    "WEFT_ORDINARY_BLOCKS": "1",
    "WEFT_CHAINS": "2",
    "WEFT_GRADIENT_PROGRAMS": "1",
    "WEFT_EXAMPLES": "8",
}
# One in so many cases of those folders of `tests/` that are about captures and gradients is compiled as C++,
# the others are run by the reference evaluator: `tests/coverage/evaluation.py`.
COMPILED_EVERY = "6"
LEFT_OUT = {"WEFT_LEAVE_OUT": "1"}  # what tests/coverage/like_others.txt has: it counts as `slow`
MEASURED_ANEW = {
    "WEFT_UNOPTIMIZED_LENGTH": UNOPTIMIZED_LENGTH,
    "WEFT_COMPILED_EVERY": COMPILED_EVERY,
    **FEW_PROGRAMS,
}
AS_IN_SUITE = {**LEFT_OUT, **MEASURED_ANEW}
MANY_PROGRAMS = {
    "WEFT_REGION_BLOCKS": "40",
    "WEFT_ORDINARY_BLOCKS": "40",
    "WEFT_CHAINS": "100",
    "WEFT_GRADIENT_PROGRAMS": "100",
    "WEFT_EXAMPLES": "150",
    "WEFT_PROGRAMS": "600",
}

# The releases of torch with which each CPython is tested: one row a CPython, of all that have wheels.
MATRIX = {
    "3.11": ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"),
    "3.12": ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"),
    "3.13": ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"),
    "3.14": ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"),
    "3.15": ("2.15.0",),
}

each_package = nox.parametrize("package", [nox.param(name, id=name) for name in PACKAGES])


# --- environments -----------------------------------------------------------------------------


def python_of(environment: Path) -> str:
    return str(environment / "bin" / "python")


def digest(*parts: str | Path) -> str:
    """A hash of texts and of files' contents, with the interpreter's version."""
    state = hashlib.sha256(sys.version.encode())
    for part in parts:
        state.update(part.read_bytes() if isinstance(part, Path) else part.encode())
        state.update(b"\0")
    return state.hexdigest()


def site_packages(environment: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment / "lib" / version / "site-packages"


def is_stamped(environment: Path, stamp: str) -> bool:
    file = environment / "stamp"
    return file.is_file() and file.read_text() == stamp


def create(
    session: nox.Session, environment: Path, *options: str, interpreter: str = sys.executable
) -> None:
    shutil.rmtree(environment, ignore_errors=True)
    environment.parent.mkdir(parents=True, exist_ok=True)
    session.run_install(interpreter, "-m", "venv", *options, str(environment), silent=True)


def development_requirements() -> list[str]:
    """The dev group of the root's ``pyproject.toml``."""
    document = nox.project.load_toml(ROOT / "pyproject.toml")
    return list(nox.project.dependency_groups(document, "dev"))


def third_party(session: nox.Session) -> Path:
    """The environment that holds every third-party package, and nothing of weft."""
    environment = ENVIRONMENTS / "third-party"
    requirements = development_requirements()
    stamp = digest(*requirements)
    if not is_stamped(environment, stamp):
        create(session, environment)
        session.log("installing the third-party packages, torch among them")
        pip = [python_of(environment), "-m", "pip", "install", "--quiet", NOT_COMPILED]
        session.run_install(*pip, *requirements, silent=False)
        (environment / "stamp").write_text(stamp)
    return environment


def install_requirements(session: nox.Session, environment: Path, *requirements: str) -> None:
    """Into an environment that needs no pip of its own, which takes seconds to install."""
    pip = [python_of(third_party(session)), "-m", "pip", f"--python={python_of(environment)}"]
    session.run_install(*pip, "install", "--quiet", NOT_COMPILED, *requirements, silent=False)


def create_isolated(session: nox.Session, environment: Path) -> None:
    """An empty environment that sees the third-party packages and can't be seen by them."""
    create(session, environment, "--without-pip")
    link = site_packages(environment) / "third-party.pth"
    link.write_text(f"{site_packages(third_party(session))}\n")


def pip_install(session: nox.Session, environment: Path, *arguments: str) -> None:
    session.run_install(
        python_of(environment),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        *arguments,
        silent=False,
    )


def folder(package: str) -> Path:
    return ROOT / "packages" / package


def folders_of(part: str) -> list[str]:
    """Where the tests of a part of the suite are."""
    folders = [folder(name) / "tests" for name in SUITE[part]] or [ROOT / "tests"]
    return [str(path) for path in folders]


def module_of(package: str) -> str:
    return "weft" if package == "weft" else f"weft_{package.replace('-', '_')}"


def with_siblings(package: str) -> list[str]:
    """The package and the siblings that it declares, directly or through one another."""
    found: list[str] = []

    def visit(name: str) -> None:
        if name in found:
            return
        metadata = tomllib.loads((folder(name) / "pyproject.toml").read_text())
        for requirement in metadata["project"]["dependencies"]:
            for sibling in PACKAGES:
                if requirement.startswith(f"weft-{sibling}>"):
                    visit(sibling)
        found.append(name)

    visit(package)
    return found


def build_extensions(
    session: nox.Session, packages: list[str], interpreter: str = sys.executable
) -> None:
    """Bring C extensions up to date: an editable install doesn't notice a changed source."""
    for name in packages:
        if (folder(name) / "hatch_build.py").exists():
            session.run(interpreter, str(folder(name) / "hatch_build.py"), silent=True)


def development_environment(session: nox.Session, package: str) -> Path:
    """The package and the siblings it declares, editable, and nothing else of weft."""
    environment = ENVIRONMENTS / package
    members = with_siblings(package)
    metadata = [folder(name) / "pyproject.toml" for name in members]
    shared = third_party(session)
    stamp = digest((shared / "stamp").read_text(), *members, *metadata)
    if not is_stamped(environment, stamp):
        create_isolated(session, environment)
        editable = [f"--editable={folder(name)}" for name in members]
        pip_install(session, environment, *editable)
        (environment / "stamp").write_text(stamp)
    build_extensions(session, members)
    return environment


def environment_with(session: nox.Session, python: str, torch: str) -> Path:
    """All of weft, editable, on a CPython and with a torch of its own."""
    interpreter = shutil.which(f"python{python}")
    if interpreter is None:
        session.skip(f"no python{python} on PATH")
    environment = ROOT / ".nox" / "matrix" / f"python{python}-torch{torch}"
    requirements = [f"torch=={torch}", "triton"]  # torch says which triton, or any will do
    requirements += [
        line for line in development_requirements() if not line.startswith(("torch=", "triton="))
    ]
    stamp = digest(*requirements, *(folder(name) / "pyproject.toml" for name in PACKAGES))
    if not is_stamped(environment, stamp):
        create(session, environment, interpreter=interpreter)
        pip = [python_of(environment), "-m", "pip", "install", "--quiet"]
        session.run_install(*pip, *requirements, silent=False)
        pip_install(session, environment, *(f"--editable={folder(name)}" for name in PACKAGES))
        (environment / "stamp").write_text(stamp)
    build_extensions(session, PACKAGES, python_of(environment))
    return environment


def notebook_environment(session: nox.Session) -> Path:
    """All of weft, editable, and what runs a notebook."""
    environment = ENVIRONMENTS / "notebook"
    document = nox.project.load_toml(ROOT / "pyproject.toml")
    requirements = nox.project.dependency_groups(document, "notebook")
    metadata = [folder(name) / "pyproject.toml" for name in PACKAGES]
    stamp = digest((third_party(session) / "stamp").read_text(), *requirements, *metadata)
    if not is_stamped(environment, stamp):
        create_isolated(session, environment)
        install_requirements(session, environment, *requirements)
        pip_install(session, environment, *(f"--editable={folder(name)}" for name in PACKAGES))
        (environment / "stamp").write_text(stamp)
    build_extensions(session, PACKAGES)
    return environment


# --- sessions ---------------------------------------------------------------------------------


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, and the table of what a package may import."""
    environment = development_environment(session, "weft")
    scripts = third_party(session) / "bin"
    session.run(str(scripts / "ruff"), "check", ".")
    session.run(str(scripts / "ruff"), "format", "--check", ".")
    session.run(
        python_of(environment),
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
    )


@nox.session(tags=BESIDE)
def types(session: nox.Session) -> None:
    """mypy --strict on the packages' sources, or on those named: `nox -s types -- guards`."""
    environment = development_environment(session, "weft")
    session.run(
        python_of(environment),
        "-m",
        "mypy",
        "--strict",
        "--num-workers=2",
        f"--cache-dir={ENVIRONMENTS / 'mypy-cache'}",
        *(str(folder(name) / "src" / module_of(name)) for name in session.posargs or PACKAGES),
    )


@nox.session
@nox.parametrize(
    "part",
    [nox.param(name, id=name, tags=FIRST if name in IN_FIRST else BESIDE) for name in SUITE],
)
def suite(session: nox.Session, part: str) -> None:
    """The tests of packages, or those that cross packages, but those marked `slow`, all in one environment.

    `tests/test_package_borders.py` looks after what packages may import; the session `tests` proves it.
    """
    environment = development_environment(session, "weft")
    run_pytest(session, environment, *folders_of(part), **AS_IN_SUITE)


@nox.session
def sample(session: nox.Session) -> None:
    """Which tests reach nothing that others don't, so that `suite` leaves them out: adds to the list of them.

    `nox -s sample -- codegen-cpp` does for a part of the suite, `nox -s sample -- tests/test_programs.py` for
    files, whose tests then have only each other's to be compared with.  With `anew` what is on the list is
    run, too, which takes some times as long, and chosen from again.
    """
    environment = development_environment(session, "weft")
    variables = AS_IN_SUITE if "anew" not in session.posargs else MEASURED_ANEW
    chosen = [name for name in session.posargs if name != "anew"] or list(SUITE)
    measured = {part: folders_of(part) for part in chosen if part in SUITE}
    if files := [str(path) for path in chosen if path not in SUITE]:
        measured["files"] = files
    session.posargs.clear()
    work = ENVIRONMENTS / "coverage"
    for name, folders in measured.items():
        shutil.rmtree(work / name, ignore_errors=True)
        (work / name / "cache").mkdir(mode=0o700, parents=True)  # an empty one: every stage runs
        probed = {
            "WEFT_COVERAGE": str(work / name),
            "WEFT_CACHE_DIR": str(work / name / "cache"),
            "PYTHONPATH": f"{ROOT / 'tests' / 'coverage' / 'children'}:{ROOT}",
        }
        plugin = ("-p", "tests.coverage.probes")
        run_pytest(session, environment, *plugin, *folders, **{**variables, **probed})
    chooser = ("-m", "tests.coverage.choice", *(str(work / name) for name in measured))
    session.run(python_of(environment), *chooser)


@nox.session
@each_package
def tests(session: nox.Session, package: str) -> None:
    """The package's own tests, where only it and the siblings it declares are installed."""
    environment = development_environment(session, package)
    run_pytest(session, environment, str(folder(package) / "tests"))


@nox.session
@each_package
def wheel(session: nox.Session, package: str) -> None:
    """sdist, from it a wheel, from that a clean install, and there the sdist's tests."""
    work = ENVIRONMENTS / "wheels" / package
    shutil.rmtree(work, ignore_errors=True)
    distributions = work / "dist"
    for member in with_siblings(package):
        session.run(
            python_of(third_party(session)),
            "-m",
            "build",
            "--no-isolation",
            f"--outdir={distributions}",
            str(folder(member)),
            silent=True,
        )
    environment = work / "environment"
    create_isolated(session, environment)
    pip_install(session, environment, *map(str, sorted(distributions.glob("*.whl"))))

    name = module_of(package)
    (sdist,) = distributions.glob(f"{name}-[0-9]*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "sdist", filter="data")
    (unpacked,) = (work / "sdist").iterdir()
    run_pytest(session, environment, f"--rootdir={unpacked}", str(unpacked / "tests"))


@nox.session
def integration(session: nox.Session) -> None:
    """The tests that cross packages, with all of them installed."""
    environment = development_environment(session, "weft")
    run_pytest(session, environment, str(ROOT / "tests"))


@nox.session
def random(session: nox.Session) -> None:
    """The random programs of the tests, about ten times as many."""
    environment = development_environment(session, "weft")
    folders = [
        str(ROOT / "tests" / name) for name in ("regions", "ordinary", "operators", "autograd")
    ]
    folders.append(str(folder("bytecode-capture") / "tests" / "test_programs.py"))
    chosen = "random or programs_do_the_same or of_any_operators or any_sizes"
    run_pytest(session, environment, "-k", chosen, *folders, **MANY_PROGRAMS)


@nox.session
def slow(session: nox.Session) -> None:
    """Tests that cover more of what others sample: operators in further dtypes, optimizers."""
    environment = development_environment(session, "weft")
    folders = [str(ROOT / "packages"), str(ROOT / "tests")]
    run_pytest(session, environment, "-m", "slow and not gpu", *folders, **LEFT_OUT)


@nox.session
def opinfo(session: nox.Session) -> None:
    """The whole operator database through ``weft.compile``, beside eager; about an hour."""
    environment = development_environment(session, "weft")
    session.run(python_of(environment), "-m", "tests.opinfo.report", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Random whole programs beside eager; `nox -s fuzz -- --programs 20000 --first 0`."""
    environment = development_environment(session, "weft")
    session.run(python_of(environment), "-m", "tests.fuzz.report", *session.posargs)


@nox.session
def families(session: nox.Session) -> None:
    """Families of transformers, timm, torchvision beside eager; `-- --only llama --backend eager`."""
    environment = development_environment(session, "weft")
    session.run(python_of(environment), "-m", "tests.families.report", *session.posargs)


@nox.session(tags=BESIDE)
def docs(session: nox.Session) -> None:
    """The documentation site, in `.nox/site`; a warning is an error.  And the notebook, run."""
    environment = ENVIRONMENTS / "docs"
    document = nox.project.load_toml(ROOT / "pyproject.toml")
    requirements = nox.project.dependency_groups(document, "docs")
    stamp = digest(*requirements)
    if not is_stamped(environment, stamp):
        create(session, environment, "--without-pip")
        install_requirements(session, environment, *requirements)
        (environment / "stamp").write_text(stamp)
    session.run(python_of(environment), "-m", "mkdocs", "build", "--strict", *session.posargs)
    notebook = python_of(notebook_environment(session))
    session.run(notebook, "-m", "pytest", "-q", str(ROOT / "tests" / "test_notebook.py"))


@nox.session
def cpython(session: nox.Session) -> None:
    """CPython's own test modules under the frame hook; `nox -s cpython -- test_scope` runs one."""
    environment = development_environment(session, "bytecode-capture")
    suite = folder("bytecode-capture") / "tests" / "cpython_suite.py"
    session.run(python_of(environment), str(suite), *session.posargs)


@nox.session
def full(session: nox.Session) -> None:
    """All that runs on a CPU: each package's tests alone, those marked `slow`, the long sweeps; hours."""
    for name in ("lint", "types", "docs"):
        session.notify(name)
    for name in (*(f"tests({package})" for package in PACKAGES), "integration"):
        session.notify(name, posargs=["-m", "not gpu"])
    for name in ("random", "fuzz", "opinfo", "families", "cpython"):
        session.notify(name)


@nox.session
@nox.parametrize(
    "python,torch", [(python, torch) for python, releases in MATRIX.items() for torch in releases]
)
def matrix(session: nox.Session, python: str, torch: str) -> None:
    """Every test on a CPython and a torch: `nox -s "matrix(python='3.12', torch='2.15.0')"`.

    With `-- --one-in=8` one in eight of them, with `-- --one-in=8:1` to `8:7` the others.
    """
    environment = environment_with(session, python, torch)
    run_pytest(session, environment, str(ROOT / "packages"), str(ROOT / "tests"))


@nox.session
def gpu(session: nox.Session) -> None:
    """Every test that needs a CUDA device, in the current interpreter."""
    session.run(sys.executable, "-m", "pytest", "-m", "gpu", *session.posargs)


def workers() -> list[str]:
    """Options for a process of tests each processor of this row; where it has one, no worker beside pytest.

    Each has a run of neighbouring tests, which share what their module compiled, until it takes some of
    another's.
    """
    number = min(len(os.sched_getaffinity(0)) // ROWS, MAX_WORKERS)
    return [f"--numprocesses={number}", "--dist=worksteal"] if number > 1 else []


def run_pytest(session: nox.Session, environment: Path, *arguments: str, **variables: str) -> None:
    cache = ROOT / ".nox" / "cache"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    session.run(
        python_of(environment),
        "-m",
        "pytest",
        f"--config-file={ROOT / 'pyproject.toml'}",
        *workers(),
        *arguments,
        *session.posargs,
        # With probes a few fail, of those that look at weft's own modules: they count as not measured.
        success_codes=[0, 1] if "WEFT_COVERAGE" in variables else [0],
        # Passive: test processes share the cores, and threads that spin while they wait would stall
        # each other. Strict: a fallback to eager fails a test that doesn't ask for it. Bytecode is
        # written: many tests start processes, each of which would compile weft's modules again.
        env={
            "OMP_WAIT_POLICY": "passive",
            "WEFT_STRICT": "1",
            "PYTHONDONTWRITEBYTECODE": "",
            "WEFT_CACHE_DIR": str(cache),  # what is compiled stays for the next run
            **variables,
        },
    )
