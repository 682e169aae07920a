"""When and how a process of this machine ended: the order shows which rank ended first.

The monitor looks ten times per second. A launcher ends the other ranks faster than that once one has ended.
The kernel reports the end of a process (pidfd), and a thread waits for it. Without pidfds nothing is known.
"""

import contextlib
import os
import select
import struct
import threading
import time
from typing import Final, NamedTuple

from traceml.runs.liveness import stat_fields

with contextlib.suppress(ImportError):  # not on Windows, which has no pidfds either
    import fcntl

LATE_S: Final = 0.2
EXIT_FIELD: Final = 49
"""Of /proc/<pid>/stat, counted from the state."""
INFO: Final = struct.Struct("Q52xi")
"""The kernel's `pidfd_info`: what is asked for and was given, ids of process and users, the exit status."""
INFO_EXIT: Final = 1 << 3
GET_INFO: Final = (3 << 30) | (INFO.size << 16) | (0xFF << 8) | 11


class Exit(NamedTuple):
    """One end: when, on both clocks in ns, and the wait status if the launcher had not collected it yet."""

    time_ns: int
    wall_ns: int
    status: int | None


class ExitTimes:
    """Watches process ids; `ended` has those that have ended."""

    def __init__(self) -> None:
        self.ended: dict[int, Exit] = {}
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

    def take(self, pid: int) -> Exit | None:
        """The end of a process that is gone, which is then forgotten: a new process may get the same id. The
        thread that notes it may come a moment later than we do."""
        deadline = time.monotonic() + LATE_S
        while pid in self._pids.values() and pid not in self.ended and time.monotonic() < deadline:
            time.sleep(0.002)
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
                pid, now, wall = self._pids[descriptor], time.perf_counter_ns(), time.time_ns()
                self.ended[pid] = Exit(now, wall, wait_status(pid, descriptor))
                self._epoll.unregister(descriptor)
                os.close(descriptor)


def wait_status(pid: int, descriptor: int) -> int | None:
    """How a process ended, as `waitpid` would tell its parent: before that has asked, /proc shows it; then
    the kernel still tells whoever holds a pidfd, from Linux 6.15 on."""
    fields = stat_fields(pid)
    if len(fields) > EXIT_FIELD and fields[0] == "Z":
        return int(fields[EXIT_FIELD])
    info = bytearray(INFO.size)
    INFO.pack_into(info, 0, INFO_EXIT, 0)
    try:
        fcntl.ioctl(descriptor, GET_INFO, info)
    except OSError:
        return None
    mask, status = INFO.unpack(info)
    return int(status) if mask & INFO_EXIT else None
