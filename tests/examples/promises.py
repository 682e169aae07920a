"""What the first lines of the examples promise, and whether a run keeps it."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples"
HEAD = re.compile(
    r"# What is wrong: .+\n"
    r"# Run it:        (?P<before>.*?)traceml run examples/(?P<script>\S+)(?P<words>.*)\n"
    r"# TraceML says:  (?P<says>.+)\n"
    r"# The fix:       .+\n"
)
SECTIONS = ("step_time", "step_memory", "system", "process")


@dataclass(frozen=True)
class Example:
    """A script with one problem. `name` is its path in the folder of examples."""

    name: str
    words: tuple[str, ...]
    label: str
    rank: int | None
    phase: str | None
    needs_container: bool

    @property
    def path(self) -> Path:
        return FOLDER / self.name


def read(path: Path) -> Example | None:
    """None for a script that shows no diagnosis."""
    head = HEAD.match(path.read_text())
    if head is None:
        return None
    assert FOLDER / head["script"] == path, f"{path} names another script"
    label, *more = [word.strip() for word in head["says"].split(",")]
    ranks = [word for word in more if re.fullmatch(r"r\d+", word)]
    phases = [word for word in more if word not in ranks]
    return Example(
        head["script"],
        tuple(head["words"].split()),
        label,
        int(ranks[0][1:]) if ranks else None,
        phases[0] if phases else None,
        "docker" in head["before"],
    )


def in_folder(name: str) -> list[Example]:
    """Its examples of diagnoses."""
    return [example for path in sorted((FOLDER / name).glob("*.py")) if (example := read(path)) is not None]


def check(example: Example, folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    """The run `r` in this folder has the promised label, and the rank and phase if the example names them."""
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "logs" / "r" / "final_summary.json").read_text())
    issues: list[dict[str, Any]] = [issue for part in SECTIONS for issue in summary[part]["issues"]]
    found = [issue for issue in issues if issue["status"] == example.label]
    assert found, done.stderr
    if example.rank is not None:
        assert found[0]["ranks"] == [example.rank], done.stderr
    if example.phase is not None:
        assert found[0]["phase"] == example.phase, done.stderr
