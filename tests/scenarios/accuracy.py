"""`make accuracy`: for every scenario the injected time, the measured time and the verdict."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.scenarios import scenario as single
from tests.scenarios import test_rank_ends, test_ranks
from tests.scenarios.preloaded import PreloadedTraceml
from tests.scenarios.test_scenarios import problems

HEADER = """\
# How accurate TraceML is

`make accuracy` runs trainings with an injected fault, compares what TraceML reports with what the script's
own clock says, and rewrites this page. Sleeps take longer than asked on a busy machine, so the injected time
is the time that passed. The tests hold each row to the tolerance that is given in
`tests/scenarios/scenario.py` (15 % where nothing else is said) and `tests/scenarios/test_ranks.py` (20 %).
The last rows are ranks that end badly; they show how the reason in the summary begins.

"""
COLUMNS = "| training | verdict | what | injected | measured | error |\n|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Row:
    """One training: what was said, what was injected, what was measured, and what is wrong about it."""

    name: str
    said: str
    what: str = ""
    injected_ms: float | None = None
    measured_ms: float | None = None
    wrong: tuple[str, ...] = ()

    def markdown(self) -> str:
        times = ["", "", ""]
        if self.injected_ms is not None and self.measured_ms is not None:
            error = self.measured_ms / self.injected_ms - 1
            times = [f"{self.injected_ms:.1f} ms", f"{self.measured_ms:.1f} ms", f"{error:+.1%}"]
        missed = f" **missed:** {'; '.join(self.wrong)}" if self.wrong else ""
        return f"| {' | '.join([self.name, self.said + missed, self.what, *times])} |"


def single_rows(preloaded: PreloadedTraceml) -> Iterator[Row]:
    """One process: the metric in which the fault must show."""
    for scenario in single.SCENARIOS:
        with tempfile.TemporaryDirectory() as folder:
            summary, _ = single.run(scenario, Path(folder), preloaded)
            wrong = tuple(problems(scenario, summary, Path(folder)))
            section = summary["primary_diagnosis"]
            if scenario.section == "step_memory":
                section = summary["step_memory"]["diagnosis"]
            if scenario.metric is None:
                yield Row(scenario.name, section["status"], wrong=wrong)
                continue
            slept = single.really(Path(folder), scenario.injected_ms, summary, scenario.naps)
            measured = summary["step_time"]["metrics"][scenario.metric]["median"]["value"]
            yield Row(scenario.name, section["status"], f"`{scenario.metric}`", slept, measured, wrong)


def rank_rows(preloaded: PreloadedTraceml) -> Iterator[Row]:
    """Several ranks: the excess of the rank that holds the others up."""
    for scenario in test_ranks.SCENARIOS:
        culprit = scenario.ranks // 2
        with tempfile.TemporaryDirectory() as folder:
            command = single.traceml if scenario.cold else preloaded
            words = (*scenario.words, "--rank", str(culprit))
            summary, _ = test_ranks.run(Path(folder), scenario.ranks, *words, command=command)
            primary = summary["primary_diagnosis"]
            wrong = tuple(scenario.problems(primary))
            name = f"{scenario.ranks} ranks: {scenario.name}"
            if scenario.injected_ms is None:
                yield Row(name, primary["status"], wrong=wrong)
                continue
            slept = single.really(Path(folder), scenario.injected_ms, summary, scenario.naps)
            excess = primary["evidence"].get(scenario.measure)
            whose = " and ".join(f"r{rank}" for rank in scenario.named) or "one rank after the other"
            yield Row(name, primary["status"], f"excess of {whose}", slept, excess, wrong)


def end_rows(preloaded: PreloadedTraceml) -> Iterator[Row]:
    """Ranks that end badly: which one ended first, after which step, where, and how."""
    for end in test_rank_ends.ENDS:
        with tempfile.TemporaryDirectory() as folder:
            summary, _ = test_ranks.run(Path(folder), end.ranks, *end.words, command=preloaded)
            said = summary["run"]["reason"] or ""
            wrong = () if said.startswith(end.says) else (f"expected: {end.says}",)
            yield Row(f"{end.ranks} ranks: {end.name}", said.partition(";")[0], wrong=wrong)


def conditions() -> str:
    """When and where this was measured."""
    load = os.getloadavg()[0]
    return (
        f"Measured {time.strftime('%Y-%m-%d')}: {os.cpu_count()} cores (load {load:.1f} at the end), "
        f"Python {platform.python_version()}, torch {version('torch')}.\n\n"
    )


def main() -> int:
    """Print the table, and write it to a page; exit 1 if any scenario has a wrong result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", type=Path)
    page = parser.parse_args().write
    preloaded, rows = PreloadedTraceml(), []
    print(COLUMNS)
    for kind in (single_rows, rank_rows, end_rows):
        for row in kind(preloaded):
            rows.append(row)
            print(row.markdown(), flush=True)
    preloaded.close()
    missed = sum(bool(row.wrong) for row in rows)
    closing = f"\n{len(rows)} trainings, {missed} missed.\n"
    print(closing)
    if page is not None:
        table = "\n".join([COLUMNS, *(row.markdown() for row in rows)])
        page.write_text(f"{HEADER}{conditions()}{table}\n{closing}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
