"""Runs without a step to judge: what was seen of them, what ended them, and what to do."""

from dataclasses import replace
from typing import Final

import numpy as np

from traceml.analyze import endings
from traceml.schema import WATCH_ONLY
from traceml.schema import catalog as c
from traceml.schema.recorded import RankRecording, RecordedEvent, RunFacts, RunRecording
from traceml.schema.summary import Section

OF_LAUNCHERS: Final = ("ChildFailedError", "CalledProcessError", "SignalException")
"""Raised by a process that only started another one: that one knows why."""
TRACEBACK: Final = "Traceback (most recent call last)"

Ranks = dict[int, RankRecording]


def early_failure(recording: RunRecording) -> RecordedEvent | None:
    """The exception that ended the command before its process had a recording.

    Among ranks the first one, because the others may fail only since it is gone. Else the last one: a helper
    that fails before does not end the command.
    """
    recorded = {r.pid for r in recording.ranks}
    errors = [e for e in recording.early_events if e.kind == "error" and e.pid not in recorded]
    errors.sort(key=lambda e: e.wall_ns)
    own = [e for e in errors if not is_of_launcher(e)]
    of_ranks = [e for e in own if e.rank >= 0]
    return next(iter(of_ranks or own[::-1] or errors[::-1]), None)


def is_of_launcher(error: RecordedEvent) -> bool:
    """Whether a process failed only because one that it started did."""
    return any(name in _line(error).partition(":")[0] for name in OF_LAUNCHERS)


def described(error: RecordedEvent) -> str:
    """`r1: ValueError: ...`."""
    return (f"r{error.rank}: " if error.rank >= 0 else "") + _line(error)


def _line(error: RecordedEvent) -> str:
    """Its message in one line; of a message that holds another process's traceback, the last one."""
    lines = str(error.message).strip().splitlines() or [""]
    return (lines[-1] if any(TRACEBACK in line for line in lines) else " ".join(lines)).strip()[:500]


def explain(section: Section, recording: RunRecording, ranks: Ranks, facts: RunFacts) -> Section:
    """The step-time section; if it has no data, with what was seen and what to do."""
    if facts.mode == WATCH_ONLY:
        finding = replace(section.diagnosis, summary=_WATCHED[0], action=_WATCHED[1])
        return replace(section, diagnosis=finding, issues=[finding])
    if section.diagnosis.kind != "NO_DATA" or facts.status == "running":
        return section
    seen, action = _what_was_seen(recording.seen, ranks)
    failed = next((e for e in recording.early_events if e.kind == "capture_failed"), None)
    if failed is not None and not ranks:
        seen, action = f"Nothing was recorded, because {failed.message}.", _REPORT_IT
    elif recording.problems and not ranks:
        seen, action = f"What was recorded cannot be read. {recording.problems[0]}", _READ_IT
    elif facts.status == "failed" and (ranks or recording.seen):
        which = "second" if any(len(r.rows) > _inferred(r) for r in ranks.values()) else "first"
        seen = f"The command failed before its {which} training step was completed. {seen}".strip()
        errors = [early_failure(recording), *(e for r in ranks.values() for e in r.events)]
        is_known = any(e is not None and e.kind == "error" and not endings.is_echo(e) for e in errors)
        action = _FIX_IT if is_known else _FIND_IT
    if not seen:
        return section
    finding = replace(section.diagnosis, summary=seen, action=action)
    return replace(section, diagnosis=finding, issues=[finding])


def _what_was_seen(seen: frozenset[str], ranks: Ranks) -> tuple[str, str]:
    """What is said and what to do; empty if there is nothing to add."""
    if not ranks:
        return next((said for sign, said in _SEEN if sign in seen), _NO_PYTHON)
    passes = max(map(_inferred, ranks.values()))
    if passes:
        many = f"{passes} backward passes" if passes > 1 else "One backward pass"
        return (
            f"{many} began, but no optimizer of torch.optim stepped; at least two steps are needed.",
            _GO_ON,
        )
    if any(len(r.rows) for r in ranks.values()):
        return "", ""
    return "A backward pass began, but no training step was completed.", _GO_ON


def _inferred(recorded: RankRecording) -> int:
    """Steps without an optimizer: a backward pass began, and may have failed."""
    return int(np.sum(recorded.rows["flags"] & c.FLAG_STEP_INFERRED > 0))


_WATCHED: Final = (
    "`traceml watch` samples the machine and the command; it records no steps.",
    "Use `traceml run` to find out where the time of each step goes.",
)
_REPORT_IT: Final = "Report this to the authors of TraceML, with the versions of Python and torch."
_READ_IT: Final = "Find out what changed the files of the run while it was recorded."
_FIX_IT: Final = "Fix the error; its traceback is above this summary."
_FIND_IT: Final = (
    "Look at the command's own output above: a process was killed (lack of memory, a signal), crashed in "
    "native code, or exited with an error code."
)
_GO_ON: Final = "Let the run complete a few steps."
_SEEN: Final = (
    (
        "loader",
        (
            "torch was imported and a data loader was read, but no backward pass or optimizer step ran, so "
            "nothing was recorded.",
            "Check that the training loop runs: only evaluation, an early exit, or gradients that are off.",
        ),
    ),
    (
        "torch",
        (
            "torch was imported, but no backward pass or optimizer step ran, so nothing was recorded.",
            "Check that the command trains: its training may run in a process that Python did not start. If "
            "it needs no backward pass, mark its steps with traceml.trace_step(model).",
        ),
    ),
    (
        "old-python",
        (
            "The command's Python is older than 3.10, so nothing was recorded.",
            "Run it with Python 3.10 or newer.",
        ),
    ),
    (
        "python",
        (
            "Python ran, but torch was never imported, so nothing was recorded.",
            "Check the command: TraceML records PyTorch trainings in the processes that it starts.",
        ),
    ),
)
"""How far the command came, the furthest first: what is said, and what to do."""
_NO_PYTHON: Final = (
    "No Python process started under TraceML: the command does not run Python, or its Python ignores the "
    "environment (-I, -E, -S). Nothing was recorded.",
    "Run the training's Python without these flags, or call traceml.init() in the script.",
)
