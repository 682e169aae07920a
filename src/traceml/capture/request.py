"""Asks the monitor for the summary of everything so far, through two files in the run folder."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from traceml.capture.session import Session
from traceml.errors import say_once
from traceml.recording import layout
from traceml.schema import catalog as c


@contextmanager
def outside_steps(session: Session, is_training_thread: bool) -> Iterator[None]:
    """Waiting for the monitor or a tracker is not part of any training step."""
    outer = session.switch.enter_inside(c.VALIDATION) if is_training_thread else None
    try:
        yield
    finally:
        if outer is not None:
            session.switch.leave(outer)


def ask(run_dir: str, timeout_s: float) -> dict[str, Any] | None:
    """`summary` and `text`; None, with one line, if there is no answer in time."""
    folder, deadline = Path(run_dir), time.monotonic() + timeout_s
    answer = folder / layout.FOLDER / f"answer-{os.getpid()}-{time.monotonic_ns()}.json"
    request = answer.with_name(answer.name.replace("answer-", "request-"))
    why = "no answer in time"
    try:
        request.touch()
        while time.monotonic() < deadline:
            if answer.exists():
                found = json.loads(answer.read_text())
                return found if isinstance(found, dict) else None
            if not monitor_alive(folder):
                why = "the monitor is gone"
                break
            time.sleep(0.02)
    finally:
        request.unlink(missing_ok=True)
        answer.unlink(missing_ok=True)
    say_once(f"no summary of the run so far: {why}; `traceml view` on the run folder makes it later")
    return None


def monitor_alive(folder: Path) -> bool:
    """Whether the monitor of this run folder is there, as far as can be seen."""
    try:
        pid = int(json.loads((folder / "manifest.json").read_text())["monitor_pid"])
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError, KeyError):
        return True  # another user's process, or a manifest being replaced: assume the best
    return True


def flat(full: dict[str, Any]) -> dict[str, str | float]:
    """The verdict and the median rank's figures of a summary, under names that every tracker accepts."""
    primary = full["primary_diagnosis"]
    found: dict[str, Any] = {
        "diagnosis": primary["status"],
        "severity": primary["severity"],
        "why": primary["summary"],
        "next": primary["action"],
        "potential_speedup": primary["potential_speedup"],
        "steps": full["run"]["steps"]["total"],
    }
    for section in ("step_time", "step_memory", "system", "process"):
        for key, metric in full[section]["metrics"].items():
            found[f"{section}/{key}"] = metric["median"]["value"]
    return {f"traceml/{_plain(key)}": value for key, value in found.items() if value is not None}


def numbers(figures: dict[str, str | float]) -> dict[str, float]:
    """Those of the figures that are numbers."""
    return {key: value for key, value in figures.items() if not isinstance(value, str)}


def _plain(key: str) -> str:
    """A user phase may have any name; trackers allow letters, digits and a few more."""
    return "".join(ch if ch.isascii() and (ch.isalnum() or ch in "_./-") else "_" for ch in key)
