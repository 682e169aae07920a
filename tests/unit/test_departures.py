"""When processes ended, as the kernel says it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from traceml.collect.departures import Departures

WAITS_S = 20.0


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def ended(departures: Departures, *pids: int) -> bool:
    deadline = time.monotonic() + WAITS_S
    while time.monotonic() < deadline:
        if all(pid in departures.ended for pid in pids):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pidfd is Linux only")
def test_the_order_of_ends_is_known_without_looking() -> None:
    """Nobody looks in between: the moments still tell the order, also for processes watched later on."""
    departures = Departures()
    first, second = sleeper(), sleeper()
    departures.watch(first.pid)
    departures.watch(second.pid)
    departures.watch(second.pid)
    for process in (second, first):
        process.send_signal(signal.SIGKILL)
        assert ended(departures, process.pid)
    assert departures.ended[second.pid] < departures.ended[first.pid]
    third = sleeper()
    departures.watch(third.pid)
    assert third.pid not in departures.ended
    third.kill()
    assert ended(departures, third.pid)
    for process in (first, second, third):
        process.wait()


def test_a_process_that_is_gone_is_nothing_to_wait_for() -> None:
    """It ended before anybody watched: no moment is made up."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    departures = Departures()
    departures.watch(process.pid)
    assert departures.ended == {}
