"""What the monitor samples from outside: how long other work kept the training from running."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from traceml.collect.gauges import Cores, Usage


def times(**seconds: float) -> SimpleNamespace:
    return SimpleNamespace(**{"user": 0.0, "nice": 0.0, "system": 0.0, "idle": 0.0, **seconds})


def test_waiting_for_other_processes() -> None:
    """Ready without a core for 3 of 10 s while others ran: 3 s; it waits for them no longer than they run."""
    cores = Cores.between(times(user=100.0), times(user=115.0))
    assert cores.delay_s(Usage(10.0, 7.0, 3.0)) == pytest.approx(3.0)
    quiet = Cores.between(times(user=100.0), times(user=107.5))
    assert quiet.delay_s(Usage(10.0, 7.0, 3.0)) == pytest.approx(0.5), "the rest are threads of its own"


def test_waiting_because_of_a_quota() -> None:
    """Nobody else ran, but the quota stopped the job for 4 s: that is not the training's doing either."""
    cores = Cores.between(times(user=100.0), times(user=104.0), throttled_s=4.0)
    assert cores.delay_s(Usage(10.0, 4.0, 5.0)) == pytest.approx(4.0)


def test_time_that_the_host_took_away() -> None:
    """Cores that worked 8 s and were taken away for 2 s delay a busy thread by a quarter of its work."""
    before, after = times(user=100.0, system=10.0, steal=5.0), times(user=106.0, system=12.0, steal=7.0)
    assert Cores.between(before, after).delay_s(Usage(10.0, 8.0, 0.0)) == pytest.approx(2.0)


def test_a_delay_is_part_of_the_time() -> None:
    """Never more than all of it, nothing where nothing is told."""
    busy = Cores.between(times(user=0.0, steal=0.0), times(user=20.0, steal=30.0))
    assert busy.delay_s(Usage(10.0, 10.0, 9.0)) == 10.0
    assert busy.delay_s(Usage(10.0, 10.0, None)) is None
    idle = Cores.between(times(user=1.0), times(user=1.0))
    assert idle.delay_s(Usage(10.0, 0.0, 0.0)) == 0.0
