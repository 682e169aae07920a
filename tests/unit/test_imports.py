"""The structure of the code: allowed imports, import costs, length of files and functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import traceml

ROOT = Path(traceml.__file__).parent
FILES = sorted(p for p in ROOT.rglob("*.py"))
TREES = {p: ast.parse(p.read_text()) for p in FILES}
STDLIB = sys.stdlib_module_names | {"tomllib"}  # new in 3.11; tomli stands in for it on 3.10
MOST_LINES, MOST_FUNCTION_LINES = 400, 60


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def package_of(path: Path) -> str:
    """The first folder below traceml, or the file itself."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or inside a function, but for type checkers only."""
    hidden = {
        id(inner)
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(TREES[path]):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: relative import"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}".replace(".", "/")
                inside = (ROOT.parent / f"{whole}.py").exists() or (ROOT.parent / whole).is_dir()
                yield f"{node.module}.{alias.name}" if inside else node.module


# Who may import whom, as in docs/architecture.md. `errors` and `settings` are open to all, like `schema`.
NOUNS = ("traceml.schema", "traceml.errors")
ALLOWED: dict[str, tuple[str, ...]] = {
    "schema": ("traceml.schema",),
    "errors": (),
    "settings": ("traceml.errors", "traceml.files", "yaml", "tomli"),
    "files": ("traceml.errors",),
    "__init__": ("traceml.capture.api", "traceml.export.tables", "traceml.notebook"),
    "__main__": ("traceml.cli.main",),
    "notebook": (
        *NOUNS,
        "traceml.settings",
        "traceml.capture",
        "traceml.recording.layout",
        "traceml.present.page",
        "IPython",
    ),
    "decorators": ("traceml.capture.api",),
    "hf_decorators": ("traceml.integrations.huggingface",),
    "utils": ("traceml.integrations.lightning",),
    "integrations": (*NOUNS, "traceml.settings", "traceml.capture", "traceml.integrations"),
    "inject": ("traceml.capture.install", "traceml.errors", "sitecustomize"),
    "capture": (
        *NOUNS,
        "traceml.settings",
        "traceml.capture",
        "traceml.recording.writer",
        "traceml.recording.layout",
        "traceml.inject.watch",
        "torch",
    ),
    "recording": (*NOUNS, "traceml.files", "traceml.recording", "numpy", "msgspec"),
    "runs": (*NOUNS, "traceml.files", "traceml.runs", "traceml.recording", "msgspec", "psutil", "mlflow"),
    "export": (
        *NOUNS,
        "traceml.files",
        "traceml.export",
        "traceml.recording",
        "traceml.runs",
        "numpy",
        "pyarrow",
        "pandas",
    ),
    "analyze": (*NOUNS, "traceml.analyze", "numpy"),
    "compare": (*NOUNS, "traceml.compare", "numpy"),
    "present": (*NOUNS, "traceml.present", "rich", "textual"),
    # The pipeline's root: rows become a Summary here and go to the views.
    "monitor": (
        *NOUNS,
        "traceml.files",
        "traceml.settings",
        "traceml.monitor",
        "traceml.recording",
        "traceml.runs",
        "traceml.analyze.summarize",
        "traceml.analyze.recordings",
        "traceml.analyze.window_arrays",
        "traceml.present",
        "numpy",
        "psutil",
        "pynvml",
        "msgspec",
        "zmq",
    ),
    # Beside the monitor, not inside it: `traceml run` must never load a web server.
    "serve": (
        *NOUNS,
        "traceml.serve",
        "traceml.monitor.live",
        "traceml.runs",
        "msgspec",
        "starlette",
        "uvicorn",
    ),
    "sinks": (*NOUNS, "traceml.sinks"),
    "cli": (
        *NOUNS,
        "traceml",
        "traceml.cli",
        "traceml.files",
        "traceml.settings",
        "traceml.monitor",
        "traceml.runs",
        "traceml.compare",
        "traceml.present",
        "traceml.serve",
        "traceml.export",
        "traceml.sinks",
        "msgspec",
    ),
}


def covers(allowed: str, module: str) -> bool:
    if allowed == "traceml":
        return module == "traceml"
    return module == allowed or module.startswith(allowed + ".")


def test_each_package_imports_only_what_it_may() -> None:
    """The training side and the monitor's side never meet; analyze and present see only schema."""
    packages = {package_of(path) for path in FILES}
    assert packages - ALLOWED.keys() == set(), "give each a row in ALLOWED, as in docs/architecture.md"
    wrong = [
        f"{name_of(path)} imports {module}"
        for path in FILES
        for module in imports(path)
        if module.partition(".")[0] not in STDLIB
        and not any(covers(allowed, module) for allowed in ALLOWED[package_of(path)])
    ]
    assert wrong == []


def test_the_writer_needs_nothing_but_the_standard_library() -> None:
    """It runs in the training process, in whatever environment that is."""
    for name in ("recording/writer.py", "recording/layout.py", "recording/__init__.py"):
        found = [m for m in imports(ROOT / name) if m.partition(".")[0] not in STDLIB]
        assert all(m.startswith("traceml.recording") for m in found)


def loaded_by(code: str) -> set[str]:
    """Top-level packages in sys.modules after running this in a fresh interpreter."""
    listing = "import sys; print(' '.join(sorted({m.partition('.')[0] for m in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{listing}"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


HEAVY = {"torch", "numpy", "psutil", "msgspec", "pynvml", "yaml", "rich", "textual"}


@pytest.mark.parametrize("code", ["import traceml", "import traceml.settings, traceml.schema.catalog"])
def test_import_traceml_loads_no_heavy_library(code: str) -> None:
    """`import traceml` loads neither torch nor numpy, nor any other dependency."""
    assert loaded_by(code) & HEAVY == set()


def test_capture_loads_none_of_the_monitors_libraries() -> None:
    """The training process imports none of our dependencies; what torch brings is torch's."""
    code = "import traceml.capture.api, traceml.capture.patches, traceml.capture.wrappers"
    assert loaded_by(code) & HEAVY == set()


def test_the_monitors_side_never_loads_torch() -> None:
    """`traceml view` and the monitor work where torch is not installed."""
    code = "import traceml.cli.main, traceml.cli.run, traceml.cli.view, traceml.monitor.result"
    assert "torch" not in loaded_by(code)


def test_only_the_server_loads_a_web_server() -> None:
    """Every other command, and with it each `traceml run`, starts without Starlette and uvicorn."""
    code = "import traceml.cli.main, traceml.cli.run, traceml.cli.view, traceml.cli.compare, traceml.cli.ui"
    assert loaded_by(f"{code}, traceml.monitor.live") & {"starlette", "uvicorn", "anyio", "asyncio"} == set()


@pytest.mark.parametrize("path", [p for p in FILES if package_of(p) == "inject"], ids=name_of)
def test_injected_files_parse_on_any_python(path: Path) -> None:
    """They start in every Python below us: no annotation, no f-string, no walrus, no newer import form."""
    for node in ast.walk(TREES[path]):
        assert not isinstance(node, (ast.AnnAssign, ast.JoinedStr, ast.NamedExpr, ast.Match))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.returns is None
            assert all(a.annotation is None for a in (*node.args.args, *node.args.kwonlyargs))
            assert not node.args.posonlyargs


BROAD = {"Exception", "BaseException"}


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether this handler takes anything and does not hand it on."""
    names = (
        []
        if handler.type is None
        else [ast.unparse(n) for n in ast.walk(handler.type) if isinstance(n, ast.Name)]
    )
    broad = handler.type is None or bool(BROAD & set(names))
    last = handler.body[-1]
    return broad and not (isinstance(last, ast.Raise) and last.exc is None)


def test_only_failsafe_catches_every_exception() -> None:
    """failsafe() is the only broad handler; any other one must raise again what it caught."""
    found = [
        name_of(path)
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and swallows(node)
    ]
    assert found == ["errors.py"]


ARITHMETIC = (ast.Div, ast.Mod, ast.Pow, ast.MatMult)
NUMBERS = {"sum", "round", "divmod", "pow", "mean", "median", "float"}


def test_presenters_do_no_arithmetic() -> None:
    """All arithmetic is in analyze: present may lay out (widths, cutting), never divide, round or average.

    Sums are allowed of characters only, and whole-number division of widths only: both are layout.
    """
    found = []
    for path in (p for p in FILES if package_of(p) == "present"):
        for node in ast.walk(TREES[path]):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ARITHMETIC):
                found.append(f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}")
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                sides = {type(s.value) for s in (node.left, node.right) if isinstance(s, ast.Constant)}
                if float in sides:
                    found.append(f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}")
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id
            if isinstance(node, ast.Call) and called in NUMBERS and "unicodedata" not in ast.unparse(node):
                found.append(f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_files_are_short() -> None:
    """One idea per file: under 400 lines."""
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in FILES}
    assert {name: lines for name, lines in lengths.items() if lines >= MOST_LINES} == {}


def test_functions_are_short() -> None:
    """Under 60 lines each, nested functions not counted against their parent's neighbours."""
    long = [
        f"{name_of(path)}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 >= MOST_FUNCTION_LINES
    ]
    assert long == []


def test_every_module_has_a_docstring() -> None:
    """A docstring at the top of every file."""
    assert [name_of(p) for p, tree in TREES.items() if not ast.get_docstring(tree)] == []


def test_there_are_no_folders_by_domain() -> None:
    """Split by stage, never by domain; and no utils, common, base or manager in the core."""
    names = {part.removesuffix(".py") for p in FILES for part in p.relative_to(ROOT).parts}
    assert names & {"common", "base", "manager", "helpers", "misc", "step_time", "step_memory"} == set()
