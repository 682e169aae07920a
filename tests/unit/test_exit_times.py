"""When processes ended, as reported by the kernel."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from traceml.monitor.exit_times import ExitTimes

WAITS_S = 20.0


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def ended(exit_times: ExitTimes, *pids: int) -> bool:
    deadline = time.monotonic() + WAITS_S
    while time.monotonic() < deadline:
        if all(pid in exit_times.ended for pid in pids):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pidfd is Linux only")
def test_the_order_of_ends_is_known_without_polling() -> None:
    """Nothing polls in between, yet the times show the order, also for a process watched later."""
    exit_times = ExitTimes()
    first, second = sleeper(), sleeper()
    exit_times.watch(first.pid)
    exit_times.watch(second.pid)
    exit_times.watch(second.pid)
    for process in (second, first):
        process.send_signal(signal.SIGKILL)
        assert ended(exit_times, process.pid)
    assert exit_times.ended[second.pid] < exit_times.ended[first.pid]
    third = sleeper()
    exit_times.watch(third.pid)
    assert third.pid not in exit_times.ended
    third.kill()
    assert ended(exit_times, third.pid)
    for process in (first, second, third):
        process.wait()


def test_a_process_that_has_already_ended_has_no_time() -> None:
    """It ended before it was watched, so no time is made up."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    exit_times = ExitTimes()
    exit_times.watch(process.pid)
    assert exit_times.ended == {}
