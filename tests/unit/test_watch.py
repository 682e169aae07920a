"""The import watch: called right after a module's import, and the module is left unchanged."""

from __future__ import annotations

import builtins
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.scenario import SRC
from traceml.inject.watch import ImportWatch


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that can be imported; what was imported or watched is taken out again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before, finders = set(sys.modules), list(sys.meta_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("watched"):
            del sys.modules[name]
    sys.meta_path[:] = finders


def make(folder: Path, name: str, text: str = "value = 1\n") -> str:
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    return name


def test_the_callback_comes_after_the_import(modules: Path) -> None:
    """The module is complete when its watcher is called, once."""
    name, seen = make(modules, "watched_one"), []
    watch = ImportWatch()
    watch.when_imported(name, lambda module: seen.append(module.value))
    assert seen == []
    importlib.import_module(name)
    importlib.import_module(name)
    assert seen == [1]


def test_watching_imports_nothing(modules: Path) -> None:
    """Waiting for a module does not load it."""
    name = make(modules, "watched_idle")
    ImportWatch().when_imported(name, print)
    assert name not in sys.modules


def test_a_module_that_is_there_calls_back_at_once(modules: Path) -> None:
    """Already imported: no waiting."""
    module = importlib.import_module(make(modules, "watched_there"))
    seen: list[Any] = []
    ImportWatch().when_imported("watched_there", seen.append)
    assert seen == [module]


def test_several_callbacks_come_in_order(modules: Path) -> None:
    """All who wait are called, first come first served."""
    name, seen = make(modules, "watched_many"), []
    watch = ImportWatch()
    for number in range(3):
        watch.when_imported(name, lambda _module, n=number: seen.append(n))
    importlib.import_module(name)
    assert seen == [0, 1, 2]


def test_a_module_that_is_being_imported_is_waited_for(modules: Path) -> None:
    """Half a module is not there: a watcher added during its import is called at its end."""
    text = "import sys\nsys._watch_me()\nvalue = 2\n"
    name, seen = make(modules, "watched_half", text), []
    watch = ImportWatch()
    watch.when_imported(name, lambda _module: None)

    def during() -> None:
        watch.when_imported(name, lambda module: seen.append(getattr(module, "value", None)))

    sys._watch_me = during  # type: ignore[attr-defined]
    try:
        importlib.import_module(name)
    finally:
        del sys._watch_me  # type: ignore[attr-defined]
    assert seen == [2]


def test_watched_module_is_left_unchanged(modules: Path) -> None:
    """Its loader, spec and file are the usual ones: nothing of ours stays in it."""
    plain = importlib.import_module(make(modules, "watched_plain"))
    name = make(modules, "watched_seen")
    ImportWatch().when_imported(name, lambda module: None)
    seen = importlib.import_module(name)
    assert type(seen.__loader__) is type(plain.__loader__)
    assert seen.__spec__ is not None
    assert seen.__spec__.loader is seen.__loader__
    assert seen.__file__ == str(modules / "watched_seen.py")
    assert importlib.reload(seen) is seen


def test_failing_import_raises_the_users_own_error(modules: Path) -> None:
    """The user's own error comes out unchanged, no callback runs, and a second try works."""
    name = make(modules, "watched_bad", "raise RuntimeError('mine')\n")
    seen: list[Any] = []
    watch = ImportWatch()
    watch.when_imported(name, seen.append)
    with pytest.raises(RuntimeError, match="mine"):
        importlib.import_module(name)
    assert (seen, name in sys.modules) == ([], False)
    (modules / f"{name}.py").write_text("value = 'mended, and longer than before'\n")
    importlib.invalidate_caches()
    assert importlib.import_module(name) is seen[0]


def test_missing_module_raises_as_before(modules: Path) -> None:
    """Watching a module does not make it exist."""
    ImportWatch().when_imported("watched_nowhere", print)
    with pytest.raises(ModuleNotFoundError, match="watched_nowhere"):
        importlib.import_module("watched_nowhere")


def test_other_modules_are_not_touched(modules: Path) -> None:
    """The watch answers for its own names only."""
    watch = ImportWatch()
    watch.when_imported("watched_a", print)
    assert watch.find_spec("watched_b") is None
    assert sys.meta_path.count(watch) == 1


def test_a_submodule_can_be_watched(modules: Path) -> None:
    """`torch.utils.data` style names work like any other."""
    package = modules / "watched_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("value = 3\n")
    seen: list[int] = []
    watch = ImportWatch()
    watch.when_imported("watched_package.inner", lambda module: seen.append(module.value))
    importlib.import_module("watched_package.inner")
    assert seen == [3]


def test_two_watches_do_not_ask_each_other_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each asks all other finders, the other watch among them: the module is found, and both are called."""
    (tmp_path / "watched_by_two.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    told = []
    for number in (1, 2):
        ImportWatch().when_imported("watched_by_two", lambda _module, number=number: told.append(number))
    importlib.import_module("watched_by_two")
    assert sorted(told) == [1, 2]


def test_a_module_that_is_being_imported_is_reported_when_it_is_done(modules: Path) -> None:
    """A framework may import torch, and with it us, before its own import is done."""
    make(modules, "watched_inner", "import builtins\nbuiltins.begin_to_watch()\n")
    make(modules, "watched_later")
    outer = make(modules, "watched_outer", "import watched_inner\nvalue = 2\nimport watched_later\n")
    make(modules, "watched_last")
    seen: list[int] = []
    watch = ImportWatch()
    builtins.begin_to_watch = lambda: watch.when_imported(outer, lambda module: seen.append(module.value))  # type: ignore[attr-defined]
    try:
        importlib.import_module(outer)
        assert seen == []  # nothing told us yet
        importlib.import_module("watched_last")
    finally:
        del builtins.begin_to_watch  # type: ignore[attr-defined]
    assert seen == [2]


def test_what_cannot_be_loaded_never_ends_the_import_of_torch(tmp_path: Path) -> None:
    """If our own code cannot be imported, one line and the summary say so, and the script goes on."""
    broken = tmp_path / "traceml" / "capture"
    broken.mkdir(parents=True)
    (tmp_path / "recording").mkdir()
    (tmp_path / "torch.py").write_text("")
    (broken.parent / "__init__.py").write_text("")
    (broken.parent / "errors.py").write_text((SRC / "traceml" / "errors.py").read_text())
    (broken / "install.py").write_text("raise NameError('broken')\n")
    path = os.pathsep.join([str(SRC / "traceml" / "inject"), str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": path, "TRACEML_RUN_DIR": str(tmp_path)}
    command = [sys.executable, "-c", "import torch; print('trains')"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "trains\n"), done.stderr
    assert "broken" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "broken" in (tmp_path / "recording" / "early.events.jsonl").read_text()  # for the summary
