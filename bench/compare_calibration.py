"""How often `traceml compare` raises a false alarm, and how often it finds a real slowdown.

    python bench/compare_calibration.py                     synthetic step times only
    python bench/compare_calibration.py --real 10           also 10 real runs of each kind
    python bench/compare_calibration.py --write             write the tables into docs/compare.md

Every pair is judged by compare/verdict.py, on block means made the way the summary makes them. A false alarm
is an IMPROVEMENT or REGRESSION between two series (or runs) of the same thing.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traceml.compare.verdict import judge_step_time
from traceml.runs import summary_file
from traceml.schema.comparison import BETTER, SAME, UNCLEAR, WORSE
from traceml.schema.summary import Blocks, Finding, MetricStat, Primary, Run, Section, SectionWindow, Summary

Floats = NDArray[np.float64]
DOCS = Path(__file__).resolve().parents[1] / "docs" / "compare.md"
BLOCKS = 40
ANSWERS = (WORSE, BETTER, SAME, UNCLEAR)


@dataclass(frozen=True)
class Noise:
    """What makes identical steps differ, as shares of a step. Lengths are in steps, or a share of the run."""

    name: str
    white: float = 0.03
    slow_sd: float = 0.0
    slow_steps: float = 0.0
    slow_of_run: float = 0.0
    bursts: float = 0.0
    drift: float = 0.0
    run_sd: float = 0.005


NOISES = (
    Noise("quiet: 2 % per step", white=0.02),
    Noise("jittery: 10 % per step", white=0.10),
    Noise("autocorrelated over 5 steps, 5 %", slow_sd=0.05, slow_steps=5),
    Noise("autocorrelated over 30 steps, 5 %", slow_sd=0.05, slow_steps=30),
    Noise("wandering over a tenth of the run, 3 %", slow_sd=0.03, slow_of_run=0.1),
    Noise("wandering over a third of the run, 3 %", slow_sd=0.03, slow_of_run=0.33),
    Noise("bursts: 1.3 to 3 times slower, 3 per run", bursts=3),
    Noise("drift of up to 6 % within a run", drift=0.06),
    Noise("steady, but identical runs differ by 0.8 %", run_sd=0.008),
    Noise("all of it at once", 0.05, 0.03, 20, 0.0, 3, 0.03, 0.007),
)


BEYOND = (Noise("steady, but identical runs differ by 2 %", run_sd=0.02),)
"""More than the allowance for a single run. This is why compare takes several runs per side."""


def series(noise: Noise, pairs: int, steps: int, random: np.random.Generator) -> Floats:
    """Step times of `pairs` independent runs, around 10 ms."""
    log = random.normal(0, noise.white, (pairs, steps)) + random.normal(0, noise.run_sd, (pairs, 1))
    length = noise.slow_steps or noise.slow_of_run * steps
    if length:
        keep = np.exp(-1 / length)
        state = random.normal(0, noise.slow_sd, pairs)
        push = random.normal(0, noise.slow_sd * np.sqrt(1 - keep**2), (steps, pairs))
        for i in range(steps):
            log[:, i] += state
            state = keep * state + push[i]
    log += noise.drift * random.uniform(-1, 1, (pairs, 1)) * np.linspace(-0.5, 0.5, steps)
    times = 10 * np.exp(log)
    for run in times:
        for _ in range(random.poisson(noise.bursts)):
            at, width = int(random.integers(steps)), int(random.integers(3, max(steps // 20, 4)))
            run[at : at + width] *= random.uniform(1.3, 3.0)
    return np.asarray(times)


def as_summary(times: Floats) -> Summary:
    """A summary with these step times and nothing else."""
    pieces = np.array_split(times, min(BLOCKS, max(1, len(times) // 5)))
    means = [float(piece.mean()) for piece in pieces]
    nothing = Finding("NO_DATA", "NO DATA", "info", "", "")
    empty = Section(nothing, [nothing])
    steps = Section(
        nothing,
        [nothing],
        window=SectionWindow(num_steps=len(times), clock="host"),
        metrics={"step_ms": MetricStat(average=float(times.mean()))},
    )
    blocks = Blocks(metrics={"step_ms": means})
    return Summary(Run(), Primary(), steps, empty, empty, empty, blocks=blocks)


@dataclass
class Tally:
    """How often each answer was given."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ANSWERS, 0))

    def share(self, *answers: str) -> str:
        """The share of these answers, as text."""
        total = max(sum(self.counts.values()), 1)
        return f"{100 * sum(self.counts[a] for a in answers) / total:.1f} %"


def judged(noise: Noise, pairs: int, steps: int, slowdown: float, per_side: int, seed: int) -> Tally:
    """Compare `pairs` pairs in which B is slower by `slowdown`."""
    random = np.random.default_rng(seed)
    tally = Tally()
    a = series(noise, pairs * per_side, steps, random).reshape(pairs, per_side, steps)
    b = series(noise, pairs * per_side, steps, random).reshape(pairs, per_side, steps) * (1 + slowdown)
    for one, other in zip(a, b, strict=True):
        found = judge_step_time([as_summary(r) for r in one], [as_summary(r) for r in other])
        tally.counts[found.change] += 1
    return tally


def synthetic(
    pairs: int, lengths: Sequence[int], per_side: int, noises: Sequence[Noise] = NOISES
) -> list[str]:
    """The table for synthetic pairs."""
    rows = [
        "| noise | steps | A/A: false alarm | A/A: NO CHANGE | +5 %: REGRESSION | "
        "+5 %: NO CHANGE | +10 %: REGRESSION |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    alarms = total = 0
    for noise in noises:
        for steps in lengths:
            same = judged(noise, pairs, steps, 0.0, per_side, seed=1)
            five = judged(noise, pairs, steps, 0.05, per_side, seed=2)
            ten = judged(noise, pairs // 2, steps, 0.10, per_side, seed=3)
            alarms += same.counts[WORSE] + same.counts[BETTER]
            total += pairs
            rows.append(
                f"| {noise.name} | {steps:,} | {same.share(WORSE, BETTER)} | {same.share(SAME)} | "
                f"{five.share(WORSE)} | {five.share(SAME)} | {ten.share(WORSE)} |"
            )
            print(rows[-1], flush=True)
    rate = f"{100 * alarms / total:.2f} %"
    rows += ["", f"All A/A pairs together: {alarms} false alarms in {total:,} ({rate})."]
    print(rows[-1], flush=True)
    return rows


# ---- real runs -----------------------------------------------------------------------------------

TRAINING = """
import sys, time, torch
steps, width, samples = (int(word) for word in sys.argv[1:4])
wait_ms = float(sys.argv[4])
torch.set_num_threads(1)
torch.manual_seed(0)
inner, outer = torch.nn.Linear(256, width), torch.nn.Linear(width, 10)
model = torch.nn.Sequential(inner, torch.nn.ReLU(), outer)
optimizer, loss = torch.optim.SGD(model.parameters(), 0.01), torch.nn.CrossEntropyLoss()
x, y = torch.randn(samples, 256), torch.arange(samples) % 10
for _ in range(steps):
    time.sleep(wait_ms / 1000)
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class Training:
    """A tiny training: number of steps, layer width, samples per batch, sleep per step."""

    name: str
    steps: int
    width: int
    samples: int
    wait_ms: float


STEADY = Training("steady: sleeps 20 ms per step", 250, 64, 32, 20.0)
STEADY_SLOWER = Training("steady, B sleeps 5.5 % longer", 250, 64, 32, 21.1)
ON_CPU = Training("CPU only, about 3 ms per step", 900, 1024, 128, 0.0)
ON_CPU_TWICE = Training("CPU only, B with three times the batch", 450, 1024, 384, 0.0)


def real(runs: int, keep: Path | None) -> list[str]:
    """The table for real runs, which are made one after the other."""
    rows = [
        "| real runs | pairs | REGRESSION | IMPROVEMENT | NO CHANGE | INCONCLUSIVE |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        (folder / "train.py").write_text(TRAINING)
        for plain, changed in ((STEADY, STEADY_SLOWER), (ON_CPU, ON_CPU_TWICE)):
            same = [_run(folder, plain, f"a{i}") for i in range(runs)]
            other = [_run(folder, changed, f"b{i}") for i in range(max(runs // 3, 3))]
            pairs = [([x], [y]) for x, y in itertools.pairwise(same)]
            rows.append(_real_row(f"{plain.name}; A/A, consecutive runs", pairs))
            pairs = [([x], [y]) for x, y in itertools.combinations(same, 2)]
            rows.append(_real_row(f"{plain.name}; A/A, all pairs", pairs))
            sixes = [same[at : at + 6] for at in range(runs - 5)]
            threes = [(six[::2], six[1::2]) for six in sixes]
            rows.append(_real_row(f"{plain.name}; A/A, three alternating runs per side", threes))
            pairs = [([x], [y]) for x, y in itertools.product(same, other)]
            rows.append(_real_row(changed.name, pairs))
    return rows


def _real_row(name: str, pairs: list[tuple[list[Summary], list[Summary]]]) -> str:
    counts = Tally().counts
    for one, other in pairs:
        counts[judge_step_time(one, other).change] += 1
    row = (
        f"| {name} | {sum(counts.values())} | {counts[WORSE]} | {counts[BETTER]} | "
        f"{counts[SAME]} | {counts[UNCLEAR]} |"
    )
    print(row, flush=True)
    return row


def _run(folder: Path, training: Training, name: str) -> Summary:
    name = f"{training.width}_{name}"
    words = [sys.executable, "-m", "traceml", "run", "train.py", "--run-name", name, "--quiet"]
    size = (training.steps, training.width, training.samples, training.wait_ms)
    path = folder / "logs" / name / "final_summary.json"
    if not path.exists():
        command = [*words, "--args", *map(str, size)]
        subprocess.run(command, cwd=folder, env=dict(os.environ), check=True)
    summary = summary_file.read(path).summary
    for key in ("samples_per_s", "tokens_per_s"):  # so that the time per step is judged, not per sample
        summary.step_time.metrics.pop(key, None)
    return summary


def write(name: str, rows: list[str]) -> None:
    """Replace the table between its markers in docs/compare.md."""
    text = DOCS.read_text()
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    DOCS.write_text(pattern.sub(lambda _: "\n".join([begin, *rows, end]), text))


def main() -> None:
    """Measure and print, and with --write update the docs."""
    style = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--pairs", type=int, default=400, help="synthetic pairs per row")
    parser.add_argument("--steps", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--real", type=int, default=0, metavar="RUNS", help="real runs of each kind")
    parser.add_argument(
        "--keep", type=Path, help="folder for the real runs; runs that are in it already are reused"
    )
    parser.add_argument("--only-real", action="store_true")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    tables = {}
    if not given.only_real:
        tables["one run per side"] = synthetic(given.pairs, given.steps, 1)
        some = max(given.pairs // 2, 1)
        tables["three runs per side"] = synthetic(some, given.steps[:1], 3)
        tables["beyond the allowance"] = [
            *synthetic(some, given.steps[:1], 1, BEYOND)[:3],
            synthetic(some, given.steps[:1], 3, BEYOND)[2].replace("2 % |", "2 %; three runs per side |"),
        ]
    if given.real:
        tables["real runs"] = real(given.real, given.keep)
    if given.write:
        for name, rows in tables.items():
            write(name, rows)


if __name__ == "__main__":
    main()
