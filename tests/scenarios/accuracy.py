"""`make accuracy`: for every scenario the injected time, the measured time and the verdict."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.scenarios.preloaded import PreloadedTraceml
from tests.scenarios.scenario import SCENARIOS, really, run
from tests.scenarios.test_scenarios import problems


def main() -> int:
    """Print the table; exit 1 if any scenario has a wrong result."""
    preloaded = PreloadedTraceml()
    print(f"{'scenario':<36}{'verdict':<16}{'metric':<16}{'injected':>10}{'measured':>10}{'error':>8}")
    wrong = 0
    for scenario in SCENARIOS:
        with tempfile.TemporaryDirectory() as folder:
            summary, _ = run(scenario, Path(folder), preloaded)
            wrong_here = problems(scenario, summary, Path(folder))
            slept = really(Path(folder), scenario.injected_ms, summary) if scenario.metric else 0.0
        said = summary["primary_diagnosis"]["status"]
        if scenario.section == "step_memory":
            said = summary["step_memory"]["diagnosis"]["status"]
        row = f"{scenario.name:<36}{said:<16}"
        if scenario.metric is not None:
            value = summary["step_time"]["metrics"][scenario.metric]["median"]["value"]
            row += f"{scenario.metric:<16}{slept:>7.1f} ms{value:>7.1f} ms{value / slept - 1:>+8.1%}"
        print(row, flush=True)
        for problem in wrong_here:
            wrong += 1
            print(f"    WRONG: {problem}", flush=True)
    preloaded.close()
    print(f"{len(SCENARIOS)} scenarios, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
