"""The one broad exception handler, and messages to the user."""

from __future__ import annotations

import signal
import sys

import pytest

from traceml import errors
from traceml.errors import CommandError, TraceMLError, failsafe, say


@pytest.fixture(autouse=True)
def no_messages_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test starts without earlier messages."""
    monkeypatch.setattr(errors, "_said", set())


def test_failure_is_reported_once_and_returns_the_fallback(capsys: pytest.CaptureFixture[str]) -> None:
    """Any failure in TraceML gives one line and the fallback, and training continues."""
    failing = failsafe("reading a file", 7)(lambda: 1 / 0)
    assert [failing(), failing()] == [7, 7]
    shown = capsys.readouterr()
    what = "reading a file failed (ZeroDivisionError: division by zero)"
    assert shown.err == f"traceml: {what}; training goes on\n"
    assert shown.out == ""


def test_arguments_and_result_pass_through() -> None:
    """A function that does not fail behaves as without the handler."""
    assert failsafe("adding", None)(lambda a, b=1: a + b)(2, b=3) == 5


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupt_and_exit_are_not_swallowed(kind: type[BaseException]) -> None:
    """Ctrl-C and sys.exit inside our code reach the user's code."""

    def ends() -> None:
        raise kind

    with pytest.raises(kind):
        failsafe("anything", None)(ends)()


def test_on_failure_is_called() -> None:
    """A failure can switch recording off through `on_failure`."""
    calls: list[int] = []
    failsafe("x", None, lambda: calls.append(1))(lambda: 1 / 0)()
    assert calls == [1]


@pytest.mark.parametrize("broken", [None, "closed"])
def test_missing_standard_error_is_no_error(monkeypatch: pytest.MonkeyPatch, broken: str | None) -> None:
    """Messages do not harm a process without standard error (a service, pythonw)."""
    import io

    stream = None
    if broken:
        stream = io.StringIO()
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    say("hello")
    assert sys.stderr is stream


def test_command_error_carries_its_exit_code() -> None:
    """The exit code is 2 by default: training never started."""
    assert CommandError("x").exit_code == 2
    assert CommandError("x", 3).exit_code == 3
    assert isinstance(CommandError("x"), TraceMLError)


def test_exception_of_a_signal_handler_passes() -> None:
    """A handler that raises while our code runs interrupts the user's program, as it would without us."""

    def ring(*_: object) -> None:
        raise TimeoutError("the user's alarm")

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(TimeoutError, match="the user's alarm"):
            failsafe("something of ours", None)(signal.raise_signal)(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_exception_of_the_users_own_class_passes() -> None:
    """Neither Python nor a library of ours defines it, so it is not our error."""

    class Stop(Exception):
        pass

    def stopped() -> None:
        raise Stop

    with pytest.raises(Stop):
        failsafe("something of ours", None)(stopped)()
