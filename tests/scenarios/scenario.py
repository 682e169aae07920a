"""The table of scenarios: a training with an injected fault, and what TraceML must say about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.scenarios.preloaded import ENVIRONMENT, PYTHONPATH, SRC

__all__ = ["PYTHONPATH", "SRC"]
SCRIPTS = Path(__file__).parent / "scripts"


class TracemlCommand(Protocol):
    """`traceml <words>` in a folder: the real command, or the preloaded one."""

    def __call__(
        self, *words: str, cwd: Path, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]: ...


@dataclass(frozen=True)
class Scenario:
    """Expected verdict, and the injected milliseconds per step that must be measured.

    `naps` names those sleeps of the script that are the fault, if it has others. A `cold` scenario runs by
    the real command line; the others run in a fork of a process with torch loaded (see `preload_server`).
    """

    name: str
    words: tuple[str, ...]
    status: str
    script: str = "loop.py"
    section: str = "step_time"
    phase: str | None = None
    metric: str | None = None
    injected_ms: float = 0.0
    tolerance: float = 0.15
    steps: int = 80
    naps: str = ""
    says: str = ""
    micro_batches: int = 1
    cold: bool = False
    learned: int = 0  # steps that may pass before the fault is told apart from other work
    evidence: dict[str, Any] = field(default_factory=dict)


def traceml(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `traceml` of this checkout as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "traceml", *words],
        cwd=cwd,
        env={**os.environ, **ENVIRONMENT, **(env or {})},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def really(folder: Path, asked_ms: float, summary: dict[str, Any], naps: str = "") -> float:
    """How long `asked_ms` of sleep per step took in the summary's window, by the script's own clock."""
    lines = map(json.loads, (folder / "naps.jsonl").read_text().splitlines())
    slept = [line for line in lines if naps in ("", line["name"])]
    warmup = (summary["step_time"]["window"]["start_step"] - 1) / summary["run"]["steps"]["total"]
    slept = slept[round(len(slept) * warmup) :]
    took, asked = (float(sum(line[key] for line in slept)) for key in ("took", "asked"))
    return asked_ms * took / asked


def run(
    scenario: Scenario, folder: Path, preloaded: TracemlCommand
) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """Run it; returns the summary and the finished command."""
    script = str(SCRIPTS / scenario.script)
    command = traceml if scenario.cold else preloaded
    done = command("run", script, "--run-name", "run", "--args", *scenario.words, cwd=folder)
    return json.loads((folder / "logs" / "run" / "final_summary.json").read_text()), done


SCENARIOS = (
    Scenario(
        "slow dataset, no workers",
        ("--batch-sleep", "20"),
        "INPUT-BOUND",
        metric="input_ms",
        injected_ms=20,
        phase="input",
    ),
    Scenario(
        "slow dataset, 2 workers",
        ("--batch-sleep", "40", "--workers", "2"),
        "INPUT-BOUND",
        metric="step_ms",
        injected_ms=20,
        phase="input",
        tolerance=0.25,
        cold=True,
    ),
    Scenario(
        "slow iterable dataset",
        ("--batch-sleep", "20", "--iterable"),
        "INPUT-BOUND",
        metric="input_ms",
        injected_ms=20,
        phase="input",
    ),
    Scenario(
        "generator input",
        ("--batch-sleep", "20", "--generator"),
        "INPUT-BOUND",
        metric="input_ms",
        injected_ms=20,
        phase="input",
        says="inferred",
    ),
    Scenario(
        "heavy forward",
        ("--forward-sleep", "30"),
        "COMPUTE-BOUND",
        metric="forward_ms",
        injected_ms=30,
        phase="forward",
    ),
    Scenario(
        "heavy backward",
        ("--backward-sleep", "30"),
        "COMPUTE-BOUND",
        metric="backward_ms",
        injected_ms=30,
        phase="backward",
    ),
    Scenario(
        "heavy optimizer",
        ("--optimizer-sleep", "30"),
        "COMPUTE-BOUND",
        metric="optimizer_ms",
        injected_ms=30,
        phase="optimizer",
    ),
    Scenario(
        "sleep after the step",
        ("--step-sleep", "20"),
        "WAIT-HEAVY",
        metric="wait_ms",
        injected_ms=20,
        says="after the optimizer step",
    ),
    Scenario(
        "sleep after the forward",
        ("--loss-sleep", "20"),
        "WAIT-HEAVY",
        metric="wait_ms",
        injected_ms=20,
        says="after the forward pass",
    ),
    Scenario("logging in the step", ("--log-lines", "40"), "WAIT-HEAVY", says="after the optimizer step"),
    Scenario(
        "checkpoint each step",
        ("--checkpoint", "--width", "1024"),
        "WAIT-HEAVY",
        phase="checkpoint",
        says="checkpoint writing",
    ),
    Scenario(
        "validation between steps",
        ("--validate-every", "10", "--validate-ms", "200", "--steps", "81"),
        "WAIT-HEAVY",
        metric="validation_ms",
        injected_ms=20,
        phase="validation",
        steps=81,
        says="validation",
    ),
    Scenario(
        "jitter",
        ("--forward-sleep", "10", "--jitter-every", "10", "--jitter-ms", "60", "--steps", "120"),
        "JITTER",
        phase="wait",
        steps=120,
        says="every 10 steps",
        naps="jitter",
        evidence={"extra_ms": (60, 0.15), "period": (10, 0.0)},
    ),
    Scenario(
        "slowdown",
        ("--forward-sleep", "25", "--slow-from", "60", "--slow-ms", "50", "--steps", "120"),
        "SLOWDOWN",
        phase="forward",
        steps=120,
        evidence={"since_step": (61, 0.03)},
    ),
    Scenario(
        "steady growth",
        ("--forward-sleep", "15", "--grow-ms", "0.5", "--steps", "100"),
        "SLOWDOWN",
        phase="forward",
        steps=100,
        says="Steps grew steadily",
    ),
    Scenario(
        "GC storm",
        ("--gc-objects", "300000", "--steps", "40"),
        "WAIT-HEAVY",
        steps=40,
        says="garbage collection",
    ),
    Scenario(
        "memory creep",
        ("--leak-kb", "2000", "--steps", "150", "--forward-sleep", "5"),
        "MEMORY CREEP",
        section="step_memory",
        steps=150,
        evidence={"bytes_per_step": (2.048e6, 0.15)},
    ),
    Scenario(
        "flat memory",
        ("--steps", "150", "--forward-sleep", "5"),
        "BALANCED",
        section="step_memory",
        steps=150,
    ),
    Scenario(
        "gradient accumulation",
        ("--accumulate", "4", "--forward-sleep", "10", "--width", "64"),
        "COMPUTE-BOUND",
        metric="forward_ms",
        injected_ms=40,
        phase="forward",
        micro_batches=4,
        tolerance=0.2,
    ),
    Scenario(
        "autocast",
        ("--autocast", "--forward-sleep", "40"),
        "COMPUTE-BOUND",
        metric="forward_ms",
        injected_ms=40,
        phase="forward",
        tolerance=0.25,
    ),
    Scenario(
        "gradient scaler that skips a step",
        ("--scaler", "--forward-sleep", "40"),
        "COMPUTE-BOUND",
        metric="forward_ms",
        injected_ms=40,
        phase="forward",
    ),
    Scenario(
        "torch.compile",
        ("--compile", "--batch-sleep", "20"),
        "INPUT-BOUND",
        cold=True,
        metric="input_ms",
        injected_ms=20,
        phase="input",
    ),
    Scenario("LBFGS closures", ("--lbfgs", "--forward-sleep", "10"), "COMPUTE-BOUND", phase="forward"),
    Scenario(
        "GAN with two optimizers",
        ("80", "60"),
        "COMPUTE-BOUND",
        script="gan.py",
        metric="forward_ms",
        injected_ms=60,
        phase="forward",
    ),
    Scenario(
        "teacher behind a slow loader",
        ("teacher",),
        "INPUT-BOUND",
        script="roles.py",
        metric="input_ms",
        injected_ms=20,
        naps="input",
        phase="input",
        steps=60,
    ),
    Scenario(
        "generation in every step",
        ("generate",),
        "COMPUTE-BOUND",
        script="roles.py",
        metric="no_grad_ms",
        injected_ms=40,
        phase="no_grad",
        steps=60,
        says="forward without gradients",
    ),
    Scenario(
        "rollouts with a slow environment",
        ("rollout",),
        "WAIT-HEAVY",
        script="roles.py",
        metric="wait_ms",
        injected_ms=20,
        steps=60,
        says="after a forward pass without gradients",
    ),
    Scenario(
        "batch made between forward and backward",
        ("early",),
        "INPUT-BOUND",
        script="roles.py",
        metric="input_ms",
        injected_ms=20,
        phase="input",
        steps=60,
        says="inferred",
        learned=12,
    ),
    Scenario(
        "metrics between forward and backward",
        ("metrics",),
        "WAIT-HEAVY",
        script="roles.py",
        metric="wait_ms",
        injected_ms=20,
        steps=60,
        says="after the forward pass",
    ),
    Scenario(
        "functional model",
        ("functional",),
        "COMPUTE-BOUND",
        script="roles.py",
        steps=60,
    ),
    Scenario(
        "one stall",
        ("--forward-sleep", "20", "--jitter-every", "60", "--jitter-ms", "3000"),
        "STALL",
        phase="wait",
        says="Step 61 took",
        naps="jitter",
        evidence={"extra_ms": (3000, 0.05), "step": (61, 0.0)},
    ),
    Scenario(
        "one stall next to slow input",
        ("--batch-sleep", "10", "--forward-sleep", "20", "--jitter-every", "60", "--jitter-ms", "4000"),
        "STALL",
        phase="wait",
        says="Step 61 took",
        naps="jitter",
        evidence={"extra_ms": (4000, 0.05), "step": (61, 0.0)},
    ),
    Scenario(
        "batches that the loop skips",
        ("--forward-sleep", "20", "--skip-every", "10", "--skip-ms", "200", "--steps", "80"),
        "DROPPED STEPS",
        steps=72,
        evidence={"times": (8, 0.13)},
    ),
    Scenario(
        "first epoch without a cache",
        ("--forward-sleep", "40", "--cold-batches", "15", "--cold-ms", "200"),
        "JITTER",
        phase="input",
        says="mostly steps 2 to 15",
    ),
    Scenario("healthy", ("--width", "2048", "--batch", "128", "--clip"), "COMPUTE-BOUND"),
)
