"""A process that only waits in our process group: a signal that reached it was not sent to us alone.

The kernel does not say whether a signal was sent to one process or to its whole group. Without knowing,
a signal to the group would reach the command twice: by itself, and once more because we pass it on.
The witness is a fork of ours that blocks every signal. Signals stay pending there until we ask, so the
answer does not depend on when it gets the CPU. It sees what the command sees: a terminal's Ctrl-C,
`kill -TERM -pgid`, `timeout`, and whoever signals every process of a job (Slurm, systemd, `pkill -f`).
"""

import os
import select
import signal
from typing import Final

SI_KERNEL: Final = 0x80
"""Sent by the kernel: here, a key on the terminal."""
ANSWER_WITHIN_S: Final = 2.0
MOST_ANSWERS: Final = 1000
"""Two bytes each: the answer fits into a pipe and is read whole."""


class Witness:
    """The process. Creating it raises OSError where there is none to be had (process limit)."""

    def __init__(self) -> None:
        questions, self._ask = os.pipe()
        self._answers, answers = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._pid = os.fork()
            if self._pid == 0:
                try:
                    os.close(self._ask)  # else it would never see that we are gone
                    os.close(self._answers)
                    _answer_until_the_end(questions, answers)
                finally:
                    os._exit(0)
        except OSError:
            os.close(self._ask)
            os.close(self._answers)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(questions)
            os.close(answers)

    def ask(self) -> dict[int, bool] | None:
        """The signals that reached it since the last question, and whether the kernel sent them.

        None if it cannot answer (somebody stopped or killed it): then it is of no more use.
        """
        try:
            os.write(self._ask, b"?")
            ready = select.poll()
            ready.register(self._answers, select.POLLIN)
            answer = os.read(self._answers, 4 * MOST_ANSWERS) if ready.poll(1000 * ANSWER_WITHIN_S) else b""
        except OSError:
            return None
        pairs = zip(answer[1::2], answer[2::2], strict=True)
        return {number: bool(by_kernel) for number, by_kernel in pairs} if answer else None

    def close(self) -> None:
        os.close(self._ask)
        os.close(self._answers)
        os.kill(self._pid, signal.SIGKILL)  # it may have been stopped
        os.waitpid(self._pid, 0)


def _answer_until_the_end(questions: int, answers: int) -> None:
    """One answer per question; the pipe ends when the monitor does, and so does the witness."""
    while os.read(questions, 1):
        seen = bytearray(b".")
        while (waiting := signal.sigpending()) and len(seen) < 2 * MOST_ANSWERS:
            info = signal.sigwaitinfo(waiting)
            seen += bytes((info.si_signo, info.si_code == SI_KERNEL))
        os.write(answers, seen)
