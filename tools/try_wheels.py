"""Install the built wheels as a user would, with several Pythons, and see that they work.

`make test-dist` and `make test-pythons` run this on what `make dist` made. Each Python gets a virtual
environment under .venv-pythons. Installation and training have a PATH without a compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DIST: Final = ROOT / "dist"
VENVS: Final = ROOT / ".venv-pythons"
COMPILERS: Final = ("cc", "gcc", "clang", "c99", "zig")
DEMO: Final = ROOT / "examples" / "diagnosis" / "dataloader_bottleneck_demo.py"
DEMO_ARGUMENTS: Final = (
    *("--scenario", "slow", "--sleep-ms", "2", "--batch-size", "16"),
    *("--num-samples", "960", "--hidden-dim", "256", "--depth", "2"),
)
TORCH_FREE: Final = ("tests/unit", "tests/compare", "tests/docs", "tests/relay")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tests", nargs="*", default=[], help="Pythons to run the tests on that need no torch"
    )
    parser.add_argument("--train", nargs="*", default=[], help="Pythons to install torch for and train on")
    parser.add_argument("--fresh", action="store_true", help="make new environments even if they exist")
    asked = parser.parse_args()
    failed = []
    for work, names in ((run_tests, asked.tests), (run_training, asked.train)):
        for name in names:
            python = find_python(name)
            if python is None:
                print(f"{name}: skipped, this machine has no such Python", flush=True)
            elif not work(python, name, asked.fresh):
                failed.append(f"{work.__name__} on {name}")
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}")


def find_python(name: str) -> str | None:
    """The interpreter for a version ("3.12") or a command, from PATH or pyenv; None if there is none."""
    asked = [shutil.which(name), shutil.which(f"python{name}")]
    if shutil.which("pyenv"):
        found = subprocess.run(["pyenv", "prefix", name], capture_output=True, text=True, check=False)
        asked += [f"{found.stdout.strip()}/bin/python"] if found.returncode == 0 else []
    # A pyenv shim is on PATH for every installed version, but runs only if that version is selected.
    return next((p for p in asked if p and works(p)), None)


def works(python: str) -> bool:
    return (
        subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode
        == 0
    )


class Environment:
    """A virtual environment with the built package in it."""

    def __init__(self, python: str, name: str, fresh: bool) -> None:
        self.folder = VENVS / Path(name).name
        if fresh or not (self.folder / "bin" / "pip").exists():
            subprocess.run([python, "-m", "venv", "--clear", str(self.folder)], check=True)
        self.python = str(self.folder / "bin" / "python")
        self.path = str(self.folder / "bin")
        compilers = [c for c in COMPILERS if shutil.which(c, path=self.path)]
        if compilers:
            sys.exit(f"{self.path} has a compiler, so this would prove nothing: {compilers}")
        self._install_package()

    def _install_package(self) -> None:
        """Let pip choose among our wheels, then install that file and what it depends on.

        Another project on PyPI has our name, so pip must not look there for our own package.
        """
        with tempfile.TemporaryDirectory() as folder:
            only_ours = ["--no-index", "--no-deps", "--find-links", str(DIST), "--dest", folder]
            self.pip("download", *only_ours, "traceml")
            (chosen,) = Path(folder).iterdir()
            self.pip("install", str(chosen))
            self.pip("install", "--force-reinstall", "--no-deps", str(chosen))  # an older build may be there
        print(f"{self.folder.name}: installed {chosen.name}", flush=True)

    def pip(self, command: str, *arguments: str) -> None:
        """Wheels only: nothing can be compiled here."""
        options = ["-q", "--disable-pip-version-check", "--only-binary", ":all:"]
        self.run(["-m", "pip", command, *options, *arguments])

    def run(self, arguments: list[str], cwd: Path = ROOT, **more: str) -> None:
        """Run Python without a compiler in reach; show its output only if it fails."""
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "CC")}
        done = subprocess.run(
            [self.python, *arguments],
            cwd=cwd,
            env={**environment, "PATH": self.path, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{self.folder.name}: {' '.join(arguments)} ended with {done.returncode}\n{done.stdout}")


def run_tests(python: str, name: str, fresh: bool) -> bool:
    """The tests that need no torch, on the installed package."""
    environment = Environment(python, name, fresh)
    environment.pip("install", "-r", "requirements-test.txt")
    chosen = ["-m", "not scenario and not framework", *TORCH_FREE]
    done = subprocess.run(
        [environment.python, "-m", "pytest", "-p", "no:cacheprovider", *chosen], cwd=ROOT, check=False
    )
    return done.returncode == 0


def run_training(python: str, name: str, fresh: bool) -> bool:
    """The demo under `traceml run`, with the C switch and without: both complete with the right verdict, and
    only the second summary says that the C switch is missing."""
    environment = Environment(python, f"{Path(name).name}-torch", fresh)
    environment.pip("install", "-c", "constraints.txt", "torch")
    return all([demo_is_right(environment, in_c=True), demo_is_right(environment, in_c=False)])


def demo_is_right(environment: Environment, in_c: bool) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "traceml", "run", str(DEMO), "--run-name", "demo", "--args", *DEMO_ARGUMENTS]
        environment.run(command, Path(folder), TRACEML_PURE_PYTHON="0" if in_c else "1")
        summary = json.loads((Path(folder) / "logs" / "demo" / "final_summary.json").read_text())
    known, run, verdict = summary["environment"], summary["run"], summary["primary_diagnosis"]["kind"]
    said = [note for note in run["notes"] if "C phase switch" in note]
    good = (run["status"], verdict, len(said)) == ("completed", "INPUT_BOUND", 0 if in_c else 1)
    kind = "C" if in_c else "Python"
    print(
        f"{environment.folder.name}: Python {known['python']}, torch {known['torch']}, {kind} switch: "
        f"{run['status']}, {run['steps']['total']} steps, {verdict}, "
        f"{summary['overhead']['us_per_step']:.1f} µs per step{'' if good else ' NOT AS EXPECTED'}",
        *said,
        sep="\n  ",
        flush=True,
    )
    return good


if __name__ == "__main__":
    main()
