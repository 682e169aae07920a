"""A run that lost most of its time to one thing is never BALANCED: any phase, any pattern, noisy steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.made import Floats, window
from traceml.analyze.diagnose import diagnose_time

USUAL = {"forward": 4.0, "backward": 5.0, "optimizer": 3.0, "input": 1.0, "wait": 0.5, "checkpoint": 0.0}


def pattern(name: str, random: np.random.Generator, count: int) -> Floats:
    """How much of the loss is in each step."""
    steps, place = np.arange(count), random.uniform(0.2, 0.8) * count
    hit = {
        "all": steps >= 0,
        "every": steps % random.integers(2, 30) == 1,
        "random": random.random(count) < random.choice([0.1, 0.2, 0.3, 0.5]),
        "late": steps >= place,
        "burst": np.abs(steps - place) < 0.06 * count,
        "ramp": steps / count,
        "one": steps == int(place),
    }[name]
    found: Floats = hit / np.sum(hit)
    return found


@pytest.mark.parametrize("name", ["all", "every", "random", "late", "burst", "ramp", "one"])
@pytest.mark.parametrize("phase", USUAL)
def test_run_that_lost_most_of_its_time_to_one_thing_is_never_balanced(name: str, phase: str) -> None:
    """Whenever it happened, in whichever phase, on a busy machine too; and the model is blamed only for its
    own work."""
    for seed in range(8):
        random = np.random.default_rng(seed)
        count = int(random.choice([40, 120, 300]))
        phases: dict[str, Any] = {k: ms * (1 + random.exponential(0.3, count)) for k, ms in USUAL.items()}
        lost = random.uniform(0.55, 0.85)
        others = sum(float(ms.sum()) for ms in phases.values())
        phases[phase] += pattern(name, random, count) * others * lost / (1 - lost)
        found = diagnose_time(window(count, **phases, cpu_delay_share=random.choice([0.0, 0.3])))[0]
        assert found.kind != "BALANCED", seed
        assert found.kind != "COMPUTE_BOUND" or phase in ("forward", "backward", "optimizer"), seed
