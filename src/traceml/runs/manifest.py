"""manifest.json: what a run is, when it began and how it ended. Written by the monitor only."""

import contextlib
import datetime
import json
import os
import signal
import time
from pathlib import Path
from socket import gethostname
from typing import Any, Final

from traceml.errors import failsafe, say
from traceml.files import read_whole, sound, write_atomic
from traceml.recording import layout
from traceml.runs.liveness import hold, sign_of_life, this_process

MANIFEST: Final = "manifest.json"
SUMMARY_JSON: Final = "final_summary.json"
SUMMARY_TEXT: Final = "final_summary.txt"
SUMMARY_PAGE: Final = "final_summary.html"
OUTPUT_LOG: Final = "output.log"
"""What the training printed while a view had the terminal."""

MOST_BYTES: Final = 4 * 1024 * 1024

Manifest = dict[str, Any]


def read_manifest(folder: Path) -> Manifest:
    """The manifest, empty when there is none or it cannot be read."""
    try:
        found = json.loads(read_whole(folder / MANIFEST, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return sound(found) if isinstance(found, dict) else {}


def recorded_at(folder: Path, manifest: Manifest) -> Path:
    """Where the run is recorded: in its folder, or in a local one if that is on a network."""
    local = manifest.get("recorded_in")
    return Path(local) if isinstance(local, str) and os.path.isdir(local) else folder


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest."""
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=2).encode() + b"\n")


def mark_as_run(folder: Path) -> None:
    """The first manifest of a new folder: whatever happens from now on, this is a run, and whose it is."""
    hold(folder)
    with contextlib.suppress(OSError):  # the disk is full: the next one may work
        # Not atomic and not synced: no reader knows it yet, and the start of the command waits for it.
        (folder / MANIFEST).write_text(json.dumps({**_owner(folder), "environment": {"host": gethostname()}}))


def _owner(folder: Path) -> Manifest:
    return {
        "schema": "traceml.manifest/1",
        "name": folder.name,
        "status": "running",
        "monitor_pid": os.getpid(),
        "monitor_process": this_process(),
    }


def begin_manifest(
    folder: Path, command: list[str], mode: str, environment: dict[str, Any], machine: dict[str, Any]
) -> Manifest:
    """The manifest of a run that starts now, written; a folder that cannot be written costs only that."""
    manifest = {
        **_owner(folder),
        "exit_code": None,
        "reason": None,
        "started_at": _now(),
        "ended_at": None,
        "begin_ns": time.perf_counter_ns(),
        "end_ns": None,
        "command": command,
        "mode": mode,
        **machine,
        "environment": environment,
        "files": {"recording": f"{layout.FOLDER}/", "summary": SUMMARY_JSON, "text": SUMMARY_TEXT},
    }
    save(folder, manifest)
    return manifest


def end_manifest(
    manifest: Manifest, code: int | None, signals: list[int], oom_kills: int | None, cost: dict[str, float]
) -> Manifest:
    """The same manifest once the command has ended with this code."""
    status, reason = how_it_ended(code, signals, oom_kills)
    return {
        **manifest,
        "status": status,
        "exit_code": code,
        "reason": reason,
        "ended_at": _now(),
        "end_ns": time.perf_counter_ns(),
        "monitor": cost,
    }


def save(folder: Path, manifest: Manifest) -> None:
    """`write_manifest`, for callers that go on when the disk is full."""
    failsafe("writing the manifest", None)(write_manifest)(folder, manifest)


def how_it_ended(
    code: int | None, signals: list[int], oom_kills: int | None = None
) -> tuple[str, str | None]:
    """(status, reason) of a run from its exit code, the signals that we saw and the kernel's OOM kills."""
    asked = [s for s in signals if s in (signal.SIGINT, signal.SIGTERM)]
    if asked:
        name = signal_name(asked[0])
        return "interrupted", "Ctrl-C (SIGINT)" if name == "SIGINT" else f"stopped by {name}"
    if code is not None and code < 0:
        name, why = signal_name(-code), ""
        if name == "SIGKILL":
            ended = "a" if oom_kills else "no"
            why = f"; the kernel's OOM killer ended {ended} process during this run"
            why = "; the kernel does this when memory runs out" if oom_kills is None else why
        return "killed", f"killed by {name}{why}"
    return "failed" if code else "completed", None


def signal_name(number: int) -> str:
    """SIGTERM, SIGRTMIN+3."""
    try:
        return signal.Signals(number).name
    except ValueError:
        first = int(getattr(signal, "SIGRTMIN", 0))
        return f"SIGRTMIN+{number - first}" if 0 < first < number else f"signal {number}"


def recovered_manifest(folder: Path) -> Manifest:
    """The manifest of a run whose monitor died: ended as far as the recording tells."""
    manifest = read_manifest(folder)
    if not manifest:
        say(f"{folder}: no readable manifest; using the recording alone")
    if manifest.get("status", "running") != "running":
        return {"name": folder.name, **manifest}
    sign = sign_of_life(folder, manifest)
    if sign is None:
        manifest["status"] = "killed"
        manifest["reason"] = "the monitor ended before the run did; rebuilt from the recording"
    elif sign:
        manifest["notes"] = [sign]
    return {"name": folder.name, "status": "running", **manifest}


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
