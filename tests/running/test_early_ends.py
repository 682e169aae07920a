"""Commands that end before their first step: why, what was seen of them, and no page of empty tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scenarios.scenario import traceml

FAILS = "def load():\n    raise FileNotFoundError('no config.yaml')\nload()\n"
READS = "from torch.utils.data import DataLoader\nfor batch in DataLoader(list(range(8))):\n    pass\n"


@pytest.mark.parametrize(
    ("script", "code", "reason", "seen"),
    [
        (
            FAILS,
            1,
            "FileNotFoundError: no config.yaml, at train.py:2",
            "failed before its first training step",
        ),
        ("print('hello')\n", 0, None, "torch was never imported"),
        (READS, 0, None, "a data loader was read, but no backward pass"),
    ],
    ids=["exception", "no torch", "loader only"],
)
def test_command_without_a_step_says_what_was_seen(
    tmp_path: Path, script: str, code: int, reason: str | None, seen: str
) -> None:
    """The exception is the reason, with its line, its own traceback and exit code; the text is short."""
    (tmp_path / "train.py").write_text(script)
    done = traceml("run", "train.py", "--run-name", "run", cwd=tmp_path)
    summary = json.loads((tmp_path / "logs" / "run" / "final_summary.json").read_text())
    assert done.returncode == code
    assert summary["run"]["reason"] == reason
    assert summary["primary_diagnosis"]["kind"] == "NO_DATA"
    assert seen in summary["primary_diagnosis"]["summary"]
    text = (tmp_path / "logs" / "run" / "final_summary.txt").read_text()
    assert len(text.splitlines()) < 15, text
    assert "System" not in text
    if reason is not None:
        assert done.stderr.startswith("Traceback (most recent call last):")
        assert f"failed: {reason} (exit code 1)" in text
