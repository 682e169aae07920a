"""When a process of this machine ended, to the millisecond: the order tells who took the others along.

The monitor looks ten times a second; a launcher ends the other ranks faster than that once one is gone.
The kernel says when a process ends (pidfd); a thread waits for it. Where there is no pidfd, nothing is known.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time


class Departures:
    """Watches process ids; `ended` holds the moments (monotonic, wall clock, ns) of those that are gone."""

    def __init__(self) -> None:
        self.ended: dict[int, tuple[int, int]] = {}
        self._pids: dict[int, int] = {}  # by file descriptor
        self._known: set[int] = set()
        self._epoll = select.epoll() if hasattr(os, "pidfd_open") and hasattr(select, "epoll") else None

    def watch(self, pid: int) -> None:
        """Wait for this process too; one that is watched or gone already changes nothing."""
        if self._epoll is None or pid in self._known:
            return
        self._known.add(pid)
        with contextlib.suppress(OSError):  # gone already, or a kernel without pidfds
            descriptor = os.pidfd_open(pid)
            if not self._pids:
                threading.Thread(target=self._wait, name="traceml-departures", daemon=True).start()
            self._pids[descriptor] = pid
            self._epoll.register(descriptor, select.EPOLLIN)

    def _wait(self) -> None:
        assert self._epoll is not None
        while True:
            for descriptor, _ in self._epoll.poll():
                self.ended[self._pids[descriptor]] = (time.perf_counter_ns(), time.time_ns())
                self._epoll.unregister(descriptor)
                os.close(descriptor)
