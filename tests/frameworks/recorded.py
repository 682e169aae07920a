"""What a run of a framework recorded, held against the naps that its script noted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.scenarios.preloaded import ENVIRONMENT, ROOT
from traceml.recording.reader import RecordingReader
from traceml.schema import catalog as c

SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLES = ROOT / "examples" / "integrations"


def python(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python without `traceml run`. Returns when the monitor has ended, which has the same standard error."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def only_summary(folder: Path) -> dict[str, Any]:
    """The summary of the only run in this folder."""
    (path,) = folder.glob("logs/*/final_summary.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


class Recorded:
    """The rows and events of one rank of a run in `folder`, and the naps of all ranks."""

    def __init__(self, folder: Path, run: str, rank: int = 0) -> None:
        (path,) = (folder / "logs" / run / "recording").glob(f"rank-{rank}.*.steps")
        self.rows: Any = RecordingReader(path).rows()
        events = Path(str(path).removesuffix(".steps") + ".events.jsonl")
        self.events = [json.loads(line) for line in events.read_text().splitlines()]
        naps = folder / "naps.jsonl"
        self._naps = [json.loads(line) for line in naps.read_text().splitlines()] if naps.exists() else []
        self._rank = rank

    def column(self, name: str) -> list[int]:
        """One value per step."""
        return [int(value) for value in self.rows[name]]

    def ms(self, phase: str) -> float:
        """What all steps together, and the time around them, spent in a phase."""
        outside = sum(e["duration_ns"] for e in self.events if e["kind"] == phase and self._is_outside(e))
        return (float(np.sum(self.rows[phase])) + float(outside)) / 1e6

    def _is_outside(self, event: dict[str, Any]) -> bool:
        """Before the first step, or after the last one."""
        return not self.rows["begin_ns"][0] <= event["time_ns"] < self.rows["end_ns"][-1]

    def napped_ms(self, name: str) -> float:
        """How long the script's naps of this name really took."""
        return sum(float(n["took"]) for n in self._naps if n["name"] == name and n["rank"] == self._rank)

    def check_phases(self, *phases: str) -> None:
        """Each nap is in the phase of its name, and the phases of a step add up: nothing counts twice."""
        for phase in phases:
            assert 0.98 * self.napped_ms(phase) <= self.ms(phase), phase
        slots = [p.key for p in c.PHASES] + [w.key for w in c.WAIT_PLACES]
        slots += [f"user{i}" for i in range(c.USER_SLOTS)]
        total = sum(self.rows[name] for name in slots)
        assert (total == self.rows["end_ns"] - self.rows["begin_ns"]).all()

    def waited_ms(self) -> float:
        """Time of steps that no phase claims; the first one starts up."""
        return float(sum(np.sum(self.rows[place.key][1:]) for place in c.WAIT_PLACES)) / 1e6
