"""Two real runs, then the documented verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, i):
        time.sleep(float(sys.argv[1]))
        return torch.randn(32), i % 4

model = torch.nn.Linear(32, 4)
optimizer, loss = torch.optim.SGD(model.parameters(), 0.1), torch.nn.CrossEntropyLoss()
for x, y in DataLoader(Data(), batch_size=1):
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
"""


@pytest.mark.timed
@pytest.mark.stack
@pytest.mark.scenario
def test_fixed_input_path_is_an_improvement_explained_by_input(tmp_path: Path) -> None:
    """Slow input, then fast input: IMPROVEMENT, no longer INPUT-BOUND, explained by input."""
    (tmp_path / "train.py").write_text(TRAINING)

    def traceml(*words: str) -> str:
        command = [sys.executable, "-m", "traceml", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout

    traceml("run", "train.py", "--run-name", "compare_slow", "--args", "0.06")
    traceml("run", "train.py", "--run-name", "compare_fast", "--args", "0")
    text = traceml("compare", "logs/compare_slow/final_summary.json", "logs/compare_fast/final_summary.json")
    found = json.loads((tmp_path / "compare" / "compare_slow_vs_compare_fast.json").read_text())
    assert found["verdict"] == "IMPROVEMENT"
    assert found["diagnosis"]["primary"]["a"] == "INPUT-BOUND"
    assert found["explained_by"][0]["phase"] == "input"
    assert "- A: compare_slow" in text
    listed = json.loads(traceml("runs", "--json"))
    assert {run["name"] for run in listed} == {"compare_slow", "compare_fast"}
