"""Real commands: `traceml deep` with one process, with DDP, after a kill, without C; and plain runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.running.processes import environment
from tests.scenarios.preloaded import PreloadedTraceml

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "deep_mode.py"
SMALL = ("--steps", "40", "--words", "500", "--width", "16")

DDP = """
import time, torch
import torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
dist.init_process_group("gloo")
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.04)
        return gradient
class Last(nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        return Slow.apply(out) if dist.get_rank() == 1 else out
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), Last(8, 1))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
del model  # gloo can hang at the end if the model outlives the group
dist.destroy_process_group()
"""

PLAIN = """
import sys, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print(sorted(name for name in sys.modules if "traceml" in name and "deep" in name))
"""

ENDLESS = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def traceml(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`traceml <words>` in this folder."""
    command = [sys.executable, "-m", "traceml", *words]
    return subprocess.run(
        command, cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=240, check=False
    )


def summary_of(folder: Path, name: str = "run") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "logs" / name / "final_summary.json").read_text())
    return found


@pytest.mark.parametrize("pure", ["0", "1"])
def test_example_shows_its_layers(tmp_path: Path, pure: str) -> None:
    """`traceml deep script`: layers in text and JSON, with the C module and without it."""
    words = ("deep", str(EXAMPLE), "--run-name", "run", "--args", *SMALL)
    done = traceml(tmp_path, *words, TRACEML_PURE_PYTHON=pure)
    assert done.returncode == 0, done.stderr
    assert "\nLayers " in done.stderr
    found = summary_of(tmp_path)["layers"]
    layers = {layer["path"]: layer for layer in found["layers"]}
    assert set(layers) >= {"embed", "blocks.0.attention", "blocks.1.mlp.2", "head", "(Model)"}
    assert found["samples"] >= 1
    assert layers["head"]["parameter_bytes"] == layers["head"]["gradient_bytes"] == 4 * (16 * 500 + 500)
    assert layers["head"]["forward_ms"] > 0
    assert layers["head"]["backward_ms"] > 0
    assert found["outside_bytes"] >= 4 * 8 * 32 * 500  # the loss keeps a probability for each word


@pytest.mark.timed
def test_ddp_names_layer_and_rank(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """Two ranks: the slow layer is found on its rank, and waiting for that rank is no layer's time."""
    (tmp_path / "train.py").write_text(DDP)
    words = ("run", "--deep", "train.py", "--nproc-per-node", "2", "--run-name", "run")
    done = preloaded(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = summary_of(tmp_path)["layers"]
    layers = {layer["path"]: layer for layer in found["layers"]}
    assert set(layers) == {"(Sequential)", "0", "1", "2"}
    assert found["ranks"] == [0, 1]
    assert layers["2"]["worst"]["rank"] == 1
    assert layers["2"]["worst"]["value"] >= 40
    assert any(note.startswith("2 takes ") and " on r1" in note for note in found["notes"])
    assert layers["0"]["worst"]["value"] < layers["2"]["worst"]["value"]


def test_without_deep_mode_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    """Not one import, whatever TRACEML_DEEP=0 or its absence; no section in the result."""
    (tmp_path / "train.py").write_text(PLAIN)
    done = traceml(tmp_path, "run", "train.py", "--run-name", "run", TRACEML_DEEP="0")
    assert done.stdout == "[]\n"
    assert summary_of(tmp_path)["layers"] is None
    assert not list((tmp_path / "logs" / "run" / "recording").glob("*.layers.jsonl"))


def test_samples_survive_a_kill(tmp_path: Path) -> None:
    """SIGKILL of the training: what was sampled before is in the summary."""
    (tmp_path / "train.py").write_text(ENDLESS)
    command = [sys.executable, "-m", "traceml", "deep", "train.py", "--run-name", "run"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    ) as running:
        deadline = time.monotonic() + 120
        found: list[Path] = []
        while not found and time.monotonic() < deadline:
            time.sleep(0.05)
            found = list((tmp_path / "logs" / "run" / "recording").glob("rank-0.*.layers.jsonl"))
        assert found, "no step was sampled in two minutes"
        os.kill(int(found[0].name.split(".")[1]), signal.SIGKILL)
        running.communicate(timeout=120)
    layers = summary_of(tmp_path)["layers"]
    assert {layer["path"] for layer in layers["layers"]} == {"(Sequential)", "0", "1"}


def test_deep_explains_itself(tmp_path: Path) -> None:
    """`--help`, and one line for a missing script."""
    assert "traceml deep [options] train.py" in traceml(tmp_path, "deep", "--help").stdout
    done = traceml(tmp_path, "deep")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "traceml deep train.py" in done.stderr
