"""The one broad handler, and what is said to the user."""

from __future__ import annotations

import sys

import pytest

from traceml import errors
from traceml.errors import CommandError, TraceMLError, failsafe, say


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test starts with nothing said."""
    monkeypatch.setattr(errors, "_said", set())


def test_a_failure_is_said_once_and_answered(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever breaks in us: one line, the fallback, training goes on."""
    failing = failsafe("reading the moon", 7)(lambda: 1 / 0)
    assert [failing(), failing()] == [7, 7]
    said = capsys.readouterr()
    assert (
        said.err
        == "traceml: reading the moon failed (ZeroDivisionError: division by zero); training goes on\n"
    )
    assert said.out == ""


def test_what_works_is_untouched() -> None:
    """Arguments and results pass through."""
    assert failsafe("adding", None)(lambda a, b=1: a + b)(2, b=3) == 5


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_the_users_own_ending_is_never_swallowed(kind: type[BaseException]) -> None:
    """Ctrl-C and sys.exit inside our code reach the user's."""

    def ends() -> None:
        raise kind

    with pytest.raises(kind):
        failsafe("anything", None)(ends)()


def test_a_failure_can_switch_recording_off() -> None:
    """`on_failure` is called each time."""
    calls: list[int] = []
    failsafe("x", None, lambda: calls.append(1))(lambda: 1 / 0)()
    assert calls == [1]


@pytest.mark.parametrize("broken", [None, "closed"])
def test_no_standard_error_is_no_error(monkeypatch: pytest.MonkeyPatch, broken: str | None) -> None:
    """A process without standard error (a service, pythonw) is not harmed by our having something to say."""
    import io

    stream = None
    if broken:
        stream = io.StringIO()
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    say("hello")
    assert sys.stderr is stream


def test_a_command_error_carries_its_exit_code() -> None:
    """2 unless said otherwise: training never started."""
    assert CommandError("x").exit_code == 2
    assert CommandError("x", 3).exit_code == 3
    assert isinstance(CommandError("x"), TraceMLError)
