"""When processes ended, as reported by the kernel."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from traceml.monitor.watchdog import ExitTimes, wait_status

WAITS_S = 20.0


def keeps_status() -> bool:
    """Whether this kernel still knows how a process ended after its parent has collected it."""
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2]) >= (6, 15)


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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pidfd is Linux only")
def test_signal_or_exit_code_is_known_without_being_the_parent() -> None:
    """The wait status is read before the parent collects it; `waitpid` would have given the same."""
    exit_times = ExitTimes()
    killed, left = sleeper(), subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    exit_times.watch(killed.pid)
    exit_times.watch(left.pid)
    killed.kill()
    assert left.stdin is not None
    left.stdin.close()
    assert ended(exit_times, killed.pid, left.pid)
    statuses = [exit_times.ended[p.pid].status for p in (killed, left)]
    assert [os.waitstatus_to_exitcode(s) for s in statuses if s is not None] == [-signal.SIGKILL, 1]
    for process in (killed, left):
        process.wait()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="pidfd is Linux only")
def test_status_of_a_collected_process_is_known_or_not_made_up() -> None:
    """The launcher was faster: from Linux 6.15 on the kernel still tells; before, the answer is None."""
    process = sleeper()
    descriptor = os.pidfd_open(process.pid)
    process.kill()
    process.wait()
    assert wait_status(process.pid, descriptor) == (signal.SIGKILL if keeps_status() else None)
    os.close(descriptor)
    assert wait_status(process.pid, os.open(os.devnull, os.O_RDONLY)) is None
