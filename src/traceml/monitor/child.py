"""The training command as a child: its signals, its output and its exit code pass through untouched.

The child keeps our process group, our terminal and our open files, as if it had been started without us.
A signal that was sent to us alone (`docker stop`, `kill`) is passed on; one that reached the command as well
is not. We never react by dying: the verdict comes after the command has ended.
"""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from traceml.errors import say
from traceml.monitor.launch import shell_command
from traceml.monitor.signals import Signals

KEYS_WITHIN_S: Final = 2.0
ESCALATION: Final = ((3, signal.SIGTERM), (4, getattr(signal, "SIGKILL", signal.SIGTERM)))
"""This many Ctrl-C within KEYS_WITHIN_S mean that the user wants out. Fewer or slower ones are left to the
script."""
START_TRIES: Final = 10
START_AGAIN_S: Final = 0.05


class Child:
    """The running command. Raises OSError if it cannot be started."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self.signals: list[int] = []
        self._keys: list[float] = []
        self._signals = None
        if os.name != "posix":
            for number in (signal.SIGINT, signal.SIGTERM):  # the console sends these to the command too
                signal.signal(number, lambda got, _frame: self.signals.append(got))
            self._process = subprocess.Popen(command, env=environment)
            return
        ignores_sigchld = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
        self._signals = Signals()
        try:
            self._process = _start(command, environment, ignores_sigchld)
        except OSError as problem:
            self._signals.release_process()  # at the process limit the command can have this one
            if problem.errno == errno.ENOEXEC:
                command = shell_command(command, environment)
            elif problem.errno != errno.EAGAIN:
                raise
            self._process = _start_patiently(command, environment, ignores_sigchld)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, seconds: float) -> int | None:
        """The exit code (negative: the signal that killed it), or None after at most `seconds`."""
        code = self._process.poll()
        if self._signals is None:
            try:
                return self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
        if code is None:
            self._signals.sleep(seconds)
            code = self._process.poll()
        if code is None:
            self._pass_on(self._signals)
            code = self._process.poll()
        if code is not None:
            self.signals += self._signals.take_unsorted()
            self._signals.release_process()
            # A background job may not write to some terminals; our summary must not stop us there for good.
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        return code

    def wait_to_the_end(self) -> int:
        while (code := self.wait(1.0)) is None:
            pass
        return code

    def _pass_on(self, signals: Signals) -> None:
        for arrived in signals.take():
            self.signals.append(arrived.number)
            if arrived.to_us_alone or self._has_left_our_group():
                self._send(arrived.number)
            if arrived.is_key and arrived.number == signal.SIGINT:
                self._escalate(arrived.when)

    def _has_left_our_group(self) -> bool:
        """Whether it made a group of its own. Without us it would lead ours, and stay in it."""
        try:
            return os.getpid() == os.getpgrp() != os.getpgid(self._process.pid)
        except ProcessLookupError:
            return False

    def _escalate(self, now: float) -> None:
        """A terminal alone would go on sending SIGINT; only a burst of keys asks for more."""
        self._keys = [*(when for when in self._keys if now - when < KEYS_WITHIN_S), now]
        for count, number in reversed(ESCALATION):
            if len(self._keys) >= count:
                say(
                    f"Ctrl-C {len(self._keys)} times within {KEYS_WITHIN_S:.0f} s: "
                    f"sending {signal.Signals(number).name} to the command"
                )
                self._send(number)
                return

    def _send(self, number: int) -> None:
        if self._process.poll() is None:
            try:
                os.kill(self._process.pid, number)
            except OSError as problem:  # gone, or it became another user's (sudo)
                if problem.errno == errno.EPERM:
                    say(
                        f"not allowed to pass signal {number} on to the command (process {self._process.pid})"
                    )


def _start(
    command: list[str], environment: Mapping[str, str], ignores_sigchld: bool
) -> subprocess.Popen[bytes]:
    # Files that we were started with are the command's too (`<(...)`, a job server); ours close on exec.
    options: dict[str, Any] = {"env": environment, "close_fds": False}
    if not ignores_sigchld:
        # Python resets our handlers in the new process before any signal can reach them there.
        return subprocess.Popen(command, **options)
    # We need SIGCHLD to learn the exit code; the command is to find it ignored, as it would without us.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    def restore() -> None:
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        return subprocess.Popen(command, **options, preexec_fn=restore)  # noqa: PLW1509 - no other thread runs yet
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_patiently(
    command: list[str], environment: Mapping[str, str], ignores_sigchld: bool
) -> subprocess.Popen[bytes]:
    """At the process limit: the kernel may count a process for a moment after it was waited for."""
    for _ in range(START_TRIES):
        try:
            return _start(command, environment, ignores_sigchld)
        except BlockingIOError:
            time.sleep(START_AGAIN_S)
    return _start(command, environment, ignores_sigchld)


def end_like(code: int) -> NoReturn:
    """End this process with the command's exit code; if a signal killed the command, by the same signal, so
    that callers see it.

    At once, because all is written: taking Python and NumPy apart takes longer than making the verdict.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    if code < 0:
        _die_of(-code)
        code = 128 - code  # it did not kill (process 1 of a container): the number that a shell gives
    os._exit(code)


def _die_of(number: int) -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass
    try:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    except (AttributeError, OSError, ValueError):
        pass  # SIGKILL, one of the C library's own, or no such thing here (Windows)
    os.kill(os.getpid(), number)
