"""What the monitor samples from outside."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from traceml.collect.gauges import stolen_share


def times(**seconds: float) -> SimpleNamespace:
    return SimpleNamespace(**{"user": 0.0, "nice": 0.0, "system": 0.0, "idle": 0.0, **seconds})


def test_time_that_the_host_took_away() -> None:
    """A core that worked 8 s and was taken away for 2 s delays a busy thread by a quarter of its work."""
    before = times(user=100.0, system=10.0, steal=5.0, idle=50.0)
    after = times(user=106.0, system=12.0, steal=7.0, idle=90.0)
    assert stolen_share(before, after) == pytest.approx(0.25)


def test_nothing_is_stolen_where_nothing_is_told() -> None:
    """Other systems have no such counter, and an idle machine loses nothing."""
    assert stolen_share(times(user=1.0), times(user=5.0)) == 0.0
    assert stolen_share(times(steal=1.0), times(steal=1.0)) == 0.0
