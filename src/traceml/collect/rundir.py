"""The run folder: its name, its manifest, its files. Writes are atomic."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from traceml.errors import CommandError, say

MANIFEST: Final = "manifest.json"
RECORDING: Final = "recording"
SUMMARY_JSON: Final = "final_summary.json"
SUMMARY_TEXT: Final = "final_summary.txt"
MOST_STEM_BYTES: Final = 150
"""Of a script's name in the run's: file systems take 255, and the time and a number follow."""
LARGEST_PID: Final = 2**31 - 1


def default_run_name(command: list[str]) -> str:
    """Script or program name and the time, so that runs sort by date within a script."""
    stem = re.sub(r"[^\w.-]+", "_", Path(command[0]).stem).strip("._-") or "run"
    short = stem.encode()[:MOST_STEM_BYTES].decode(errors="ignore")
    return f"{short}-{time.strftime('%Y%m%d-%H%M%S')}"


def create(logs_dir: str, run_name: str | None, command: list[str], overwrite: bool) -> Path:
    """Make the run folder. An explicit name that exists is an error; a default one gets a number."""
    name = run_name or default_run_name(command)
    logs = Path(logs_dir).absolute()
    try:
        logs.mkdir(parents=True, exist_ok=True)
        return _claim(logs, name, explicit=run_name is not None, overwrite=overwrite)
    except OSError as problem:
        # Training comes first: an unwritable folder costs the place of the logs, not the run.
        fallback = Path(tempfile.mkdtemp(prefix="traceml-"))
        say(f"cannot write to {logs} ({problem.strerror}); recording in {fallback} (see --logs-dir)")
        return _claim(fallback, name, explicit=False, overwrite=False)


def _claim(logs: Path, name: str, explicit: bool, overwrite: bool) -> Path:
    folder, number = logs / name, 1
    while True:
        try:
            folder.mkdir()
            break
        except FileExistsError:
            if explicit and overwrite:
                _remove_run(folder)
            elif explicit:
                raise CommandError(
                    f"run {name!r} exists in {logs}; choose another --run-name or pass --overwrite"
                ) from None
            else:
                number += 1
                folder = logs / f"{name}-{number}"
    (folder / RECORDING).mkdir()
    return folder


def _remove_run(folder: Path) -> None:
    """Only what looks like a run of ours is ever removed."""
    if not (folder / MANIFEST).exists() and any(folder.iterdir()):
        raise CommandError(f"{folder} is not a TraceML run; remove it yourself or choose another name")
    manifest = read_manifest(folder)
    if manifest.get("status") == "running" and is_alive(manifest.get("monitor_pid")):
        raise CommandError(f"run {folder.name!r} is still running; choose another --run-name")
    shutil.rmtree(folder)


def is_alive(pid: Any) -> bool:
    """Whether a process with this id exists."""
    if not isinstance(pid, int) or not 0 < pid <= LARGEST_PID:
        return False  # 0 and below would ask for whole groups of processes
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def write_atomic(path: Path, data: bytes) -> None:
    """Temp file, fsync, rename: a reader sees the old file or the new one, never a part."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, empty when there is none or it cannot be read."""
    try:
        found = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest."""
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=2).encode() + b"\n")
