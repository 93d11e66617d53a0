"""Imports inside a compiled function: what is imported when, and what is raised, is CPython's in each call.

A case is a program that defines ``f(x)``; the packages are written anew for each run, eager or compiled.
"""

import importlib
import sys
import textwrap

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, capture, compile_frames

FILES = {
    "__init__": "log = []\nvalue = 2.0\n",
    "plain": "from lazypkg import log\nlog.append('plain')\nscale = 3.0\ndef g(x): return x * scale\n",
    "broken": "from lazypkg import log\nlog.append('broken')\nimport weft_tests_nowhere\n",
    "raising": "from lazypkg import log\nlog.append('raising')\nraise ValueError('no')\n",
    "sub.__init__": "from .. import log\nlog.append('sub')\n",
    "sub.deep": "from lazypkg import log\nlog.append('deep')\nscale = 5.0\n",
    "sub.inner": """
        from .. import log
        def outer(x):
            from . import deep
            from ..plain import scale
            return x * deep.scale + scale
        """,
    "dynamic.__init__": """
        from lazypkg import log
        def __getattr__(name):
            log.append(name)
            if name == "made":
                return 7.0
            if name == "lazy":
                import importlib
                return importlib.import_module("lazypkg.dynamic.lazy")
            raise AttributeError(name)
        """,
    "dynamic.lazy": "from lazypkg import log\nlog.append('dynamic.lazy')\nscale = 9.0\n",
    "dynamic.other": "scale = 11.0\n",
    "computing": """
        import torch
        def table(): return torch.arange(3.0) * 2
        scale = table()
        """,
    "backend": "from lazypkg import log\nlog.append('backend')\nscale = 13.0\n",
}

CASES = {
    "submodule": """
        from lazypkg import plain
        return x * plain.scale
        """,
    "submodule, handled": """
        try:
            from lazypkg import plain
        except ImportError:
            return x * 100
        return x * plain.scale
        """,
    "submodule after operators": """
        y = x.exp()
        from lazypkg import plain
        return plain.g(y) + 1
        """,
    "submodule of a submodule": """
        from lazypkg.sub import deep
        return x * deep.scale
        """,
    "name of a submodule": """
        from lazypkg.sub.deep import scale
        return x * scale
        """,
    "dotted": """
        import lazypkg.sub.deep
        return x * lazypkg.sub.deep.scale
        """,
    "dotted, renamed": """
        import lazypkg.sub.deep as d
        return x * d.scale
        """,
    "several": """
        from lazypkg import value, plain, sub
        from lazypkg.sub import deep as d
        return x * value * plain.scale * d.scale
        """,
    "what is missing": """
        from lazypkg import missing
        return x * missing
        """,
    "what is missing, handled": """
        try:
            from lazypkg import missing
        except ImportError as error:
            return x * 2, type(error).__name__, error.name
        return x
        """,
    "a missing module, handled": """
        try:
            import weft_tests_nowhere
        except ModuleNotFoundError as error:
            return x * 2, str(error), error.name
        return x
        """,
    "a missing module of a package, handled": """
        try:
            import lazypkg.missing
        except ImportError as error:
            return x * 2, str(error), error.name
        return x
        """,
    "a submodule whose imports fail": """
        try:
            from lazypkg import broken
        except ImportError as error:
            return x * 2, str(error)
        return x
        """,
    "a submodule that raises": """
        try:
            from lazypkg import raising
        except ValueError as error:
            return x * 2, str(error)
        return x
        """,
    "a chain of alternatives": """
        for name in ("missing", "broken", "plain"):
            try:
                if name == "missing":
                    from lazypkg import missing as m
                elif name == "broken":
                    from lazypkg import broken as m
                else:
                    from lazypkg import plain as m
            except ImportError:
                continue
            return x * m.scale
        """,
    "relative, in a callee": """
        from lazypkg.sub import inner
        return inner.outer(x)
        """,
    "relative, without a package": """
        try:
            from . import plain
        except ImportError as error:
            return x * 2, type(error).__name__
        return x
        """,
    "a module's __getattr__": """
        from lazypkg import dynamic
        return x * dynamic.made
        """,
    "from a module's __getattr__": """
        from lazypkg.dynamic import made
        return x * made
        """,
    "a lazy submodule": """
        from lazypkg.dynamic import lazy
        return x * lazy.scale
        """,
    "a submodule that __getattr__ does not know": """
        from lazypkg.dynamic import other
        return x * other.scale
        """,
    "what __getattr__ refuses, handled": """
        from lazypkg import dynamic
        try:
            return x * dynamic.nothing
        except AttributeError as error:
            return x * 2, str(error)
        """,
    "__import__": """
        m = __import__("lazypkg.plain", fromlist=["scale"])
        return x * m.scale
        """,
    "importlib.import_module": """
        import importlib
        m = importlib.import_module("lazypkg.plain")
        return x * m.scale
        """,
    "import_module of a part, handled": """
        import importlib
        try:
            m = importlib.import_module(".missing", "lazypkg")
        except ImportError as error:
            return x * 2, str(error)
        return x
        """,
    "by sys.modules": """
        import sys
        if "lazypkg.backend" in sys.modules:
            return x * sys.modules["lazypkg.backend"].scale
        return x * 2
        """,
    "backends by name": """
        import sys
        for name in ("weft_tests_nowhere", "lazypkg"):
            if name in sys.modules:
                from lazypkg import backend
                return x * backend.scale
        """,
}

CHANGES = {
    "nothing": lambda: None,
    "module replaced": lambda: sys.modules.__setitem__(
        "lazypkg.plain", importlib.import_module("lazypkg.backend")
    ),
    "module forbidden": lambda: sys.modules.__setitem__("lazypkg.sub.deep", None),
    "attribute deleted": lambda: vars(sys.modules["lazypkg"]).pop("plain", None),
    "all forgotten": lambda: forget(),
}  # fmt: skip


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "lazypkg"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    root = tmp_path_factory.mktemp("packages")
    for name, text in FILES.items():
        path = root.joinpath("lazypkg", *name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    sys.path.insert(0, str(root))
    yield
    sys.path.remove(str(root))
    forget()


@pytest.mark.parametrize("name", CASES)
def test_imports(packages, name):
    assert _trace(name, "nothing", compiled=True) == _trace(name, "nothing", compiled=False)


@pytest.mark.parametrize("change", list(CHANGES)[1:])
@pytest.mark.parametrize(
    "name", ["submodule, handled", "dotted, renamed", "several", "by sys.modules"]
)
def test_imports_of_what_changes(packages, name, change):
    assert _trace(name, change, compiled=True) == _trace(name, change, compiled=False)


def test_what_a_module_computes_as_it_is_imported_is_no_graph(packages):
    forget()

    def f(x):
        from lazypkg import computing

        return x * computing.scale

    graphs = []

    def backend(graph_module, inputs):
        graphs.append(graph_module)
        return graph_module.forward

    x = torch.arange(3.0)
    assert torch.equal(compile_frames(f, backend)(x), x * x * 2)
    assert len(graphs) == 1


@pytest.mark.parametrize("dotted", [True, False])
def test_a_module_of_torchs_is_imported_in_the_graph(dotted, monkeypatch):
    name = "torch.utils.throughput_benchmark"
    monkeypatch.delitem(sys.modules, name, raising=False)

    def by_its_name(x):
        import torch.utils.throughput_benchmark

        return x + 1, torch.utils.throughput_benchmark.format_time(time_us=2.0)

    def from_it(x):
        from torch.utils.throughput_benchmark import format_time

        return x + 1, format_time(time_us=2.0)

    captured = capture(by_its_name if dotted else from_it, options=CaptureOptions(fullgraph=True))
    result, text = captured(torch.zeros(2)).result
    assert torch.equal(result, torch.ones(2))
    assert text == sys.modules[name].format_time(time_us=2.0)


def _trace(name, change, compiled):
    forget()
    importlib.import_module("lazypkg")
    namespace = {"__name__": "weft_tests_of_imports", "torch": torch}
    body = textwrap.indent(textwrap.dedent(CASES[name]), "    ")
    exec(f"def f(x):\n    x = x + 1\n{body}", namespace)
    function = namespace["f"]
    if compiled:
        function = compile_frames(function, lambda graph_module, inputs: graph_module.forward)
    trace = []
    for call in range(5):
        if call == 3:
            CHANGES[change]()
        try:
            result = function(torch.arange(3.0))
        except Exception as error:
            result = type(error), str(error)
        package = sys.modules.get("lazypkg")
        loaded = sorted(name for name in sys.modules if name.startswith("lazypkg"))
        trace.append((repr(result), list(getattr(package, "log", ())), loaded))
    return trace
