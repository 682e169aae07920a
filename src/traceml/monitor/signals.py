"""The signals that are sent to the monitor: received, and sorted by whether the command had them as well.

Python-level handlers and a wakeup pipe. `sigtimedwait` would be shorter, but CPython's returns a siginfo
that was never filled in when a stop (Ctrl-Z) outlasts its timeout.
"""

import contextlib
import os
import select
import signal
import socket
import time
from types import FrameType
from typing import Final, NamedTuple

SI_KERNEL: Final = 0x80
"""Sent by the kernel: here, a key on the terminal."""
ANSWER_WITHIN_S: Final = 5.0
MOST_ANSWERS: Final = 1000
"""Two bytes each: the answer is sent and read as a whole."""
SENDERS_PAUSE_S: Final = 0.05
"""A sender that goes from process to process (pkill, Slurm, systemd) needs a moment to reach all of them."""


def _numbers(*names: str) -> frozenset[int]:
    return frozenset(int(getattr(signal, name)) for name in names if hasattr(signal, name))


LEFT_ALONE: Final = _numbers(
    *("SIGKILL", "SIGSTOP"),  # cannot be caught
    *("SIGTSTP", "SIGTTIN", "SIGTTOU"),  # the kernel stops the whole job at once
    *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"),  # faults of our own
    *("SIGPIPE", "SIGXFSZ", "SIGWINCH", "SIGURG", "SIGCHLD"),  # ignored by Python or by default
)
OURS_ONLY: Final = _numbers("SIGXCPU")
"""Caught, and never passed on: our CPU time ran out, not the command's."""
KEYS: Final = _numbers("SIGINT", "SIGQUIT")


class Arrived(NamedTuple):
    """A signal that reached the monitor at `when` (monotonic seconds)."""

    number: int
    when: float
    to_us_alone: bool
    is_key: bool


class Signals:
    """Catches every signal that would end the monitor. Ignored ones stay ignored, as for the command."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, float]] = []
        caught = [n for n in signal.valid_signals() - LEFT_ALONE if signal.getsignal(n) != signal.SIG_IGN]
        self._wakeup, wakes = os.pipe()
        for descriptor in (self._wakeup, wakes):
            os.set_blocking(descriptor, False)
        self._poll = select.poll()
        self._poll.register(self._wakeup, select.POLLIN)
        self._witness: Witness | None = None
        if hasattr(signal, "sigwaitinfo"):  # not on macOS
            # At the process limit, the command needs the last process more than we do.
            with contextlib.suppress(OSError):
                self._witness = Witness()
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        for number in caught:
            signal.signal(number, self._note)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # wakes us; also if it was ignored

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._waiting.append((number, time.monotonic()))

    def sleep(self, seconds: float) -> None:
        """Wait for a signal (also that a process of ours has ended), at most this many seconds."""
        if self._poll.poll(1000 * seconds):
            os.read(self._wakeup, 4096)

    def take(self) -> list[Arrived]:
        """The signals since the last call. Waits a moment if there are any, for senders to finish."""
        if not self._waiting:
            return []
        time.sleep(SENDERS_PAUSE_S)
        seen = self._witness.ask() if self._witness is not None else None
        if seen is None:
            self.release_process()
        came, self._waiting = self._waiting, []
        return [self._sort(number, when, seen) for number, when in came]

    def take_unsorted(self) -> list[int]:
        """The numbers only, at once: for when the command has ended."""
        came, self._waiting = self._waiting, []
        return [number for number, _ in came]

    def _sort(self, number: int, when: float, seen: dict[int, bool] | None) -> Arrived:
        if seen is None:  # without a witness: what the terminal's keys send reaches the whole job
            is_key = number in KEYS and in_foreground()
            return Arrived(number, when, not is_key and number not in OURS_ONLY, is_key)
        alone = number not in seen and number not in OURS_ONLY
        return Arrived(number, when, alone, number in KEYS and seen.get(number, False))

    def release_process(self) -> None:
        """Do without the witness from now on."""
        if self._witness is not None:
            self._witness.close()
            self._witness = None


def in_foreground() -> bool:
    """Whether our process group is the one that the terminal's keys go to."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


class Witness:
    """A process that only waits in our process group: a signal that reached it was not sent to us alone.

    The kernel does not say whether a signal was sent to one process or to its whole group. Without knowing,
    a signal to the group would reach the command twice: directly, and once more because we pass it on.
    The witness is a fork of ours that blocks every signal. Signals stay pending there until we ask, so the
    answer does not depend on when it gets the CPU. It sees what the command sees: a terminal's Ctrl-C,
    `kill -TERM -pgid`, `timeout`, and whoever signals every process of a job (Slurm, systemd, `pkill -f`).
    Creating it raises OSError where there is none to be had (process limit).
    """

    def __init__(self) -> None:
        self._socket, its = socket.socketpair()
        self._socket.settimeout(ANSWER_WITHIN_S)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._pid = os.fork()
            if self._pid == 0:
                try:
                    self._socket.close()  # else it would never see that we are gone
                    _answer_until_the_end(its)
                finally:
                    os._exit(0)
        except OSError:
            self._socket.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            its.close()

    def ask(self) -> dict[int, bool] | None:
        """The signals that reached it since the last question, and whether the kernel sent them.

        None if it cannot answer (somebody stopped or killed it): then it is of no more use.
        """
        try:
            self._socket.send(b"?")
            answer = self._socket.recv(4 * MOST_ANSWERS)
        except OSError:
            return None
        pairs = zip(answer[1::2], answer[2::2], strict=True)
        return {number: bool(by_kernel) for number, by_kernel in pairs} if answer else None

    def close(self) -> None:
        self._socket.close()
        os.kill(self._pid, signal.SIGKILL)  # it may have been stopped
        os.waitpid(self._pid, 0)


def _answer_until_the_end(monitor: socket.socket) -> None:
    """One answer per question; the connection ends when the monitor does, and so does the witness."""
    while monitor.recv(1):
        seen = bytearray(b".")
        while (waiting := signal.sigpending()) and len(seen) < 2 * MOST_ANSWERS:
            info = signal.sigwaitinfo(waiting)
            seen += bytes((info.si_signo, info.si_code == SI_KERNEL))
        monitor.send(seen)
