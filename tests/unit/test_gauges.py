"""How long other work kept the training thread from running, as the monitor computes it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest

from traceml.monitor.gauges import Cores, Usage, _Process, descendants


def times(**seconds: float) -> SimpleNamespace:
    return SimpleNamespace(**{"user": 0.0, "nice": 0.0, "system": 0.0, "idle": 0.0, **seconds})


def test_waiting_for_other_processes() -> None:
    """Ready without a core for 3 of 10 s while others ran: 3 s, but never longer than others ran."""
    cores = Cores.between(times(user=100.0), times(user=115.0))
    assert cores.delay_s(Usage(10.0, 7.0, 3.0)) == pytest.approx(3.0)
    quiet = Cores.between(times(user=100.0), times(user=107.5))
    assert quiet.delay_s(Usage(10.0, 7.0, 3.0)) == pytest.approx(0.5), (
        "the rest was waiting for threads of its own process"
    )


def test_waiting_because_of_a_quota() -> None:
    """If nothing else ran but the quota stopped the job for 4 s, these count as delay too."""
    cores = Cores.between(times(user=100.0), times(user=104.0), throttled_s=4.0)
    assert cores.delay_s(Usage(10.0, 4.0, 5.0)) == pytest.approx(4.0)


def test_time_that_the_host_gave_to_others() -> None:
    """Cores that worked for 8 s and were stolen for 2 s delay a busy thread by a quarter of its work."""
    before, after = times(user=100.0, system=10.0, steal=5.0), times(user=106.0, system=12.0, steal=7.0)
    assert Cores.between(before, after).delay_s(Usage(10.0, 8.0, 0.0)) == pytest.approx(2.0)


def test_a_delay_is_at_most_the_elapsed_time() -> None:
    """Unknown if the kernel does not report it, and 0 on an idle machine."""
    busy = Cores.between(times(user=0.0, steal=0.0), times(user=20.0, steal=30.0))
    assert busy.delay_s(Usage(10.0, 10.0, 9.0)) == 10.0
    assert busy.delay_s(Usage(10.0, 10.0, None)) is None
    idle = Cores.between(times(user=1.0), times(user=1.0))
    assert idle.delay_s(Usage(10.0, 0.0, 0.0)) == 0.0


def test_waiting_for_own_threads_and_workers_is_a_core_wait() -> None:
    """Nobody else ran, so nothing was delayed by others; but thread or workers waited for a core."""
    quiet = Cores.between(times(user=100.0), times(user=120.0))
    crowded = Usage(10.0, 20.0, 3.0, workers_waited_s=6.0)
    assert quiet.delay_s(crowded) == 0.0
    assert quiet.core_wait_s(crowded) == 6.0
    assert quiet.core_wait_s(crowded._replace(workers_waited_s=0.0)) == 3.0
    assert quiet.core_wait_s(crowded._replace(waited_s=None)) is None


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(flush=True)
input()
child.communicate(b"\\n")
"""


def test_children_of_every_thread_and_their_children_are_found() -> None:
    """The same processes that psutil finds on the whole machine, also those that a thread started."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        command = [sys.executable, "-c", PARENT]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert started[-1].stdout is not None
        started[-1].stdout.readline()
        asked.wait()

    asked = threading.Event()
    thread = threading.Thread(target=start)
    thread.start()
    try:
        while len(psutil.Process().children(recursive=True)) < 2:
            assert thread.is_alive()
        assert sorted(descendants(psutil.Process().pid)) == sorted(
            child.pid for child in psutil.Process().children(recursive=True)
        )
    finally:
        asked.set()
        thread.join()
        started[0].communicate(b"\n")


HOLDER = """
import sys
held = [bytearray(int(sys.argv[1]))]
print(flush=True)
input()
"""


def test_memory_of_children_is_that_which_they_fill() -> None:
    """100 MB more in a child are 100 MB more; without children nothing was measured."""

    def held(own_bytes: int) -> tuple[float, float]:
        """By children of this process (another test's server may be one), and by those of the child."""
        command = [sys.executable, "-c", HOLDER, str(own_bytes)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            found = []
            for process in (_Process(os.getpid(), threading.get_native_id()), _Process(child.pid, child.pid)):
                process.usage()
                found.append(process.workers_bytes())
            child.communicate(b"\n")
        return found[0], found[1]

    (filled, nothing), (empty, _) = held(100_000_000), held(0)
    assert filled - empty == pytest.approx(100e6, rel=0.05)
    assert math.isnan(nothing)
