"""When a process of this machine ended, to the millisecond: the order shows which rank ended first.

The monitor looks ten times per second. A launcher ends the other ranks faster than that once one has ended.
The kernel reports the end of a process (pidfd), and a thread waits for it. Without pidfds nothing is known.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time


class ExitTimes:
    """Watches process ids; `ended` has the times (monotonic, wall clock, ns) of those that have ended."""

    def __init__(self) -> None:
        self.ended: dict[int, tuple[int, int]] = {}
        self._pids: dict[int, int] = {}  # by file descriptor
        self._known: set[int] = set()
        self._epoll = select.epoll() if hasattr(os, "pidfd_open") and hasattr(select, "epoll") else None

    def watch(self, pid: int) -> None:
        """Wait for this process too. One that is watched already, or has ended, changes nothing."""
        if self._epoll is None or pid in self._known:
            return
        self._known.add(pid)
        with contextlib.suppress(OSError):  # it has ended, or the kernel has no pidfds
            descriptor = os.pidfd_open(pid)
            if not self._pids and not self._start_thread():
                os.close(descriptor)
                return
            self._pids[descriptor] = pid
            self._epoll.register(descriptor, select.EPOLLIN)

    def take(self, pid: int) -> tuple[int, int] | None:
        """When it ended, if that is known. It is then forgotten: a new process may get the same id."""
        self._known.discard(pid)
        return self.ended.pop(pid, None)

    def _start_thread(self) -> bool:
        try:
            threading.Thread(target=self._wait, name="traceml-exits", daemon=True).start()
        except RuntimeError:  # the process limit: do without
            self._epoll = None
            return False
        return True

    def _wait(self) -> None:
        assert self._epoll is not None
        while True:
            for descriptor, _ in self._epoll.poll():
                self.ended[self._pids[descriptor]] = (time.perf_counter_ns(), time.time_ns())
                self._epoll.unregister(descriptor)
                os.close(descriptor)
