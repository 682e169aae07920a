"""The training command as a child: its signals, its output and its exit code pass through untouched.

The child keeps our process group and terminal. A signal that the terminal sends reaches it by itself;
one that somebody sends to us alone (Slurm, `docker stop`, `kill`) is passed on. We never react by dying:
the verdict comes after the command has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import Final

PASSED_ON: Final = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
SI_KERNEL: Final = 0x80
GROUP_GRACE_S: Final = 0.05


class Child:
    """The running command."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self.signals: list[int] = []
        self._waits = hasattr(signal, "sigtimedwait")
        if self._waits:
            watched = {*PASSED_ON, signal.SIGCHLD}
            before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
            self._watched = watched

            def unblock() -> None:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

            try:
                self._process = subprocess.Popen(command, env=environment, preexec_fn=unblock)
            except OSError:
                unblock()
                raise
        else:
            for number in PASSED_ON:
                signal.signal(number, lambda got, _frame: self._got(got, from_terminal=True))
            self._process = subprocess.Popen(command, env=environment)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, seconds: float) -> int | None:
        """The exit code (negative: the signal that killed it), or None after at most `seconds`."""
        code = self._process.poll()
        if code is not None:
            return code
        if not self._waits:
            try:
                return self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
        info = signal.sigtimedwait(self._watched, seconds)
        if info is not None and info.si_signo != signal.SIGCHLD:
            self._got(info.si_signo, from_terminal=info.si_code == SI_KERNEL)
        return self._process.poll()

    def _got(self, number: int, from_terminal: bool) -> None:
        self.signals.append(number)
        interrupts = self.signals.count(signal.SIGINT)
        if not from_terminal:
            # A signal to the whole group has reached the command already: let it act first.
            time.sleep(GROUP_GRACE_S)
            self._send(number)
        if interrupts == 2:
            self._send(signal.SIGTERM)
        elif interrupts > 2:
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self._process.poll() is None:
            try:
                os.kill(self._process.pid, number)
            except ProcessLookupError:
                pass


def end_like(code: int) -> int:
    """Our own exit code; if a signal killed the command, die of the same one so that callers see it."""
    if code >= 0:
        return code
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-code, signal.SIG_DFL)
    except (ImportError, OSError, ValueError):
        pass
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(os.getpid(), -code)
    return 128 - code  # the signal does not kill (it was ignored): as a shell would say it
