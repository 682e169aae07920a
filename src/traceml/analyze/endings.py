"""How a run ended: which rank ended first, and where; or what was seen of a run without a step to judge."""

import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from traceml.analyze.recordings import expected_ranks, listed
from traceml.schema import WATCH_ONLY
from traceml.schema import catalog as c
from traceml.schema.recorded import RankRecording, RecordedEvent, RunFacts, RunRecording
from traceml.schema.summary import EndedFirst, Section

TOGETHER_NS: Final = 500_000_000
SAME_MOMENT_NS: Final = 20_000_000
"""A process takes about this long to end. Of ranks that end within it, the first one is unknown."""
WAITING_FOR_OTHERS: Final = c.PHASES[c.SYNC].key
EXCHANGES: Final = (c.PHASES[c.BACKWARD].key, c.PHASES[c.SYNC].key)
OF_PEERS: Final = (
    *("gloo", "nccl", "tcpstore", "process group", "processgroup", "monitoredbarrier"),
    *("collective operation", "closed by peer", "reset by peer", "remote peer", "peer closed"),
)
"""Only torch.distributed says these: another rank is gone or late, wherever the error surfaced."""
OF_CONNECTIONS: Final = (
    *OF_PEERS,
    *("connect", "peer", "socket", "broken pipe", "timeout", "timed out", "aborted"),
)
BY_LAUNCHER: Final = "SIGTERM"
MOST_NAMED: Final = 4
CRASHES: Final = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")
MAY_BE_ECHOES: Final = (None, BY_LAUNCHER, "SIGABRT")  # NCCL aborts a rank whose peer is gone
LEARNING: Final = 3
"""In its first steps a rank does not know yet which of its gradients is the last."""
SOURCE_LINE: Final = re.compile(r"\[[\w./-]+:\d+\] ")
OF_LAUNCHERS: Final = ("ChildFailedError", "CalledProcessError", "SignalException")
"""Raised by a process that only started another one; the other one has the reason."""
LAUNCHER_LIST: Final = re.compile(r"\brank *: (\d+) \(local_rank: \d+\)\s+exitcode *: (-?\d+)")
TRACEBACK: Final = "Traceback (most recent call last)"
BY_SIGNAL: Final = 128
"""From this exit code on, a shell means a signal."""

UNKNOWN_FIRST: Final = "no rank is known to have ended first"

Events = Sequence[RecordedEvent]
Ranks = dict[int, RankRecording]


def ended_first(ranks: Ranks, noticed: Events, absent: Sequence[int] = ()) -> EndedFirst | None:
    """The rank that ended first, its last step, and where it was. `noticed` is what the monitors saw, and
    `absent` are ranks that left no recording.

    A rank on which an exchange failed is left out, because that only echoes another rank's end. A rank that
    ended well is left out if another did not. Of the others, those that end within half a second of the first
    are considered together. The choice among them, in this order: the one that was gone or raised before the
    others, if the kernel gave the time; one that raised an error of its own; one that a signal killed; one
    that the launcher did not end and that was not waiting for others; any that the launcher did not end. If
    none of them ended by itself, it may have been an absent rank.
    """
    ended, errors = _ends(ranks, noticed), _errors(ranks)
    echoes = {rank for rank, event in errors if is_echo(event)} if len(ranks) + len(absent) > 1 else set()
    failed = {e.rank for e in ended if not e.closed and e.failed_in in EXCHANGES} - {r for r, _ in errors}
    others = [e for e in ended if e.rank not in echoes | failed]
    others = others or [e for e in ended if e.rank not in echoes]
    own = {rank: event for rank, event in errors if rank not in echoes}
    if any(e.rank in own or e.exit_code or e.signal not in MAY_BE_ECHOES for e in others):
        others = [e for e in others if e.rank in own or e.exit_code or not e.closed]
    elif absent:
        return None
    if not others:
        return None
    together = [e for e in others if when(e) - when(others[0]) < TOGETHER_NS]
    killed = [e for e in together if e.signal not in MAY_BE_ECHOES]
    by_itself = [e for e in together if e.signal != BY_LAUNCHER] or together  # the launcher ends those left
    guilty = (
        _clearly_first(together, ranks, own)
        or [e for e in together if e.rank in own]
        or killed
        or [e for e in by_itself if not e.closed and e.phase != WAITING_FOR_OTHERS]
        or by_itself
    )
    first = guilty[0]
    # The phase in which it raised: by the time the process is gone, that phase is over.
    raised_in = own[first.rank].during if first.rank in own else None
    phase = raised_in or first.failed_in or first.phase
    if phase == WAITING_FOR_OTHERS and (first.step or 0) < LEARNING:
        phase = " or ".join(EXCHANGES)
    line = own[first.rank].raised_at if first.rank in own else None
    # Several that were found gone at the same moment without an error: which was first is unknown.
    gone = killed or by_itself
    at_once = not errors and len(gone) > 1 and when(gone[-1]) - when(gone[0]) < SAME_MOMENT_NS
    at_once = at_once and not any(e.closed for e in gone)
    return EndedFirst(first.rank, first.step, phase, at_once, first.signal, line)


def _errors(ranks: Ranks) -> list[tuple[int, RecordedEvent]]:
    return [(rank, event) for rank, r in ranks.items() for event in r.events if event.kind == "error"]


def _clearly_first(ended: Events, ranks: Ranks, own: dict[int, RecordedEvent]) -> list[RecordedEvent]:
    """The rank that was clearly gone, or had raised, before the others, if all times are from one machine.
    The order in which a launcher ends the remaining ranks says nothing."""
    if not all(e.exact or e.rank in own for e in ended) or len({ranks[e.rank].node for e in ended}) != 1:
        return []
    at = sorted((own[e.rank].time_ns if e.rank in own else e.time_ns, n) for n, e in enumerate(ended))
    first = ended[at[0][1]]
    alone = len(ended) == 1 or at[1][0] - at[0][0] >= SAME_MOMENT_NS
    return [first] if alone and not _was_waited_for(first, ranks) else []


def _was_waited_for(end: RecordedEvent, ranks: Ranks) -> bool:
    """Whether the others gave up waiting for this rank before it ended: it hung, or it was too late."""
    here = {rank: r for rank, r in ranks.items() if r.node == ranks[end.rank].node}  # clocks differ elsewhere
    gave_up = [e.time_ns for rank, e in _errors(here) if rank != end.rank and is_echo(e)]
    # A launcher ends the late rank at once, but one that was ended may be gone only after they lost it.
    patience_ns = SAME_MOMENT_NS if end.signal == BY_LAUNCHER else TOGETHER_NS
    return bool(gave_up) and end.exact and end.time_ns - min(gave_up) > patience_ns


def ended_well(ranks: Ranks, noticed: Events) -> bool:
    """Whether every process ended without an exception, as far as is known."""
    return first_error(ranks) is None and all(e.closed for e in _ends(ranks, noticed))


def describe(ranks: Ranks, noticed: Events, absent: Sequence[int] = ()) -> str | None:
    """The end in words: which rank ended first and how, and the first exception."""
    error, ends = first_error(ranks), _ends(ranks, noticed)
    first = ended_first(ranks, noticed, absent)
    if first is None and absent and (error is not None or ends):
        text = f"{_names(absent)} left no recording and may have ended first, before any backward pass"
    elif error is not None and (first is None or len(ranks) == 1):
        if len(ranks) > 1:
            return f"{UNKNOWN_FIRST}; r{error[0]}: {error[1]}"
        raised = error[2]
        where = "" if raised.step is None else _place(raised.step - 1, raised.during, raised.raised_at)
        return ", ".join(filter(None, (error[1], where)))
    elif first is None:
        return None
    else:
        text = _how(first, ranks, ends)
    if error is not None:
        text += f"; r{error[0]}: {error[1]}"
    kills = max((e.oom_kills or 0 for e in ends), default=0)
    if kills and any(_is_abrupt(e, ranks) for e in ends if first is None or e.rank == first.rank):
        text += f"; the kernel's OOM killer ended {kills} process(es) on this machine during this run"
    return text


def _names(ranks: Sequence[int]) -> str:
    return listed([f"r{rank}" for rank in ranks], MOST_NAMED)


def _place(step: int | None, phase: str | None, line: str | None) -> str:
    since = f"after step {step}" if step else "in its first step"
    return ", ".join(filter(None, (since, phase and f"in {phase}", line and f"at {line}")))


def _how(first: EndedFirst, ranks: Ranks, ends: Events) -> str:
    end = next(e for e in ends if e.rank == first.rank)
    where, several = _place(first.step, first.phase, first.raised_at), len(ranks) > 1
    if _was_waited_for(end, ranks):
        silent = [e for e in ends if _is_abrupt(e, ranks) and e.failed_in not in EXCHANGES]
        late = {e.rank for e in silent if _was_waited_for(e, ranks) and e.phase != WAITING_FOR_OTHERS}
        which = f"r{first.rank} was " if late - {first.rank} else ""
        return f"other ranks gave up waiting for {_names(sorted({first.rank, *late}))} ({which}{where})"
    if first.together and first.signal == BY_LAUNCHER:
        return f"the launcher, or another process, ended the ranks with {BY_LAUNCHER} (r{first.rank} {where})"
    if first.together:
        return f"several ranks were killed or crashed at the same time (r{first.rank} {where})"
    who = f"r{first.rank} ended first: it" if several else f"r{first.rank}"
    if end.signal is not None and not (end.signal == BY_LAUNCHER and _raised(end, ranks)):
        did = "crashed with" if end.signal in CRASHES else "was killed by"
        return f"{who} {did} {end.signal} {where}"
    if end.exit_code is not None and not _raised(end, ranks):
        if expected_ranks(ranks) > 1:
            return f"{who} exited with code {end.exit_code} {where}"
        # One that closed its recording had left the loop: where it was then says nothing.
        return f"the script exited {_place(first.step, None if end.closed else first.phase, None)}"
    did = "was killed or crashed" if _is_abrupt(end, ranks) else "ended"
    return f"r{first.rank} {did}{' first' if several else ''}, {where}"


def _is_abrupt(end: RecordedEvent, ranks: Ranks) -> bool:
    """It neither raised nor exited: a signal from outside, or a crash in native code."""
    return not end.closed and not _raised(end, ranks)


def _raised(end: RecordedEvent, ranks: Ranks) -> bool:
    return any(e.kind == "error" for e in ranks[end.rank].events)


def first_error(ranks: Ranks) -> tuple[int, str, RecordedEvent] | None:
    """The rank, message and event of the first exception. One from an exchange comes last, because it may
    only echo another rank's end. Its message is cut to what happened, without torch's advice."""
    errors = _errors(ranks)
    if not errors:
        return None
    rank, event = min(errors, key=lambda found: (is_echo(found[1]), found[1].time_ns, found[0]))
    message = _of_peer(str(event.message)) if is_echo(event) else str(event.message)
    return rank, message.strip(), event


def _of_peer(message: str) -> str:
    """What happened, without torch's advice."""
    return SOURCE_LINE.sub("", message).partition(". ")[0]


def is_echo(event: RecordedEvent) -> bool:
    """Whether another rank's end or delay caused it: torch.distributed raised it (DistBackendError,
    DistStoreError, ...), or a RuntimeError is about a peer. Python's own ConnectionResetError is not an echo:
    it is about a server, not about a rank."""
    kind, _, message = str(event.message).lower().partition(":")
    kind = kind.rpartition(".")[2]  # before the first step it comes with its module
    words = OF_CONNECTIONS if event.during in EXCHANGES else OF_PEERS
    of_torch = kind.startswith("dist") and kind.endswith("error")
    return of_torch or (kind == "runtimeerror" and any(word in message for word in words))


def _ends(ranks: Ranks, noticed: Events) -> list[RecordedEvent]:
    """The ends of these processes by time, without those of other attempts with the same ranks."""

    def is_theirs(event: RecordedEvent) -> bool:
        mine = ranks.get(event.rank)
        return mine is not None and event.pid in (None, mine.pid)

    return sorted((e for e in noticed if e.kind == "rank_ended" and is_theirs(e)), key=when)


def with_exit_code(recording: RunRecording, ranks: Ranks, facts: RunFacts) -> list[RecordedEvent]:
    """What the monitors noticed. The only process that trained exited with the command's code, if the kernel
    could not tell any more with which one."""
    noticed, code = recording.monitor_events, facts.exit_code or 0
    if len(recording.ranks) != 1 or expected_ranks(ranks) != 1 or not 0 < code < BY_SIGNAL:
        return noticed
    unknown = (e.kind == "rank_ended" and e.exit_code is None and e.signal is None for e in noticed)
    return [replace(e, exit_code=code) if is_so else e for e, is_so in zip(noticed, unknown, strict=True)]


def when(event: RecordedEvent) -> int:
    """On the wall clock, because monitors of several machines may have seen it."""
    return event.wall_ns or event.time_ns


# ---- runs without a step to judge ----------------------------------------------------------------


def early_failure(recording: RunRecording) -> RecordedEvent | None:
    """The exception that ended the command before its process had a recording.

    Of several ranks the first one that is no echo, because the others may fail only because it is gone.
    Otherwise the last one, because a helper that fails earlier does not end the command.
    """
    recorded = {r.pid for r in recording.ranks}
    errors = [e for e in recording.early_events if e.kind == "error" and e.pid not in recorded]
    errors.sort(key=lambda e: e.wall_ns)
    own = [e for e in errors if not is_of_launcher(e)]
    of_ranks = sorted((e for e in own if e.rank >= 0), key=is_echo)
    return next(iter(of_ranks or own[::-1] or errors[::-1]), None)


def is_of_launcher(error: RecordedEvent) -> bool:
    """Whether a process failed only because a process that it had started did."""
    return any(name in _line(error).partition(":")[0] for name in OF_LAUNCHERS)


def described(error: RecordedEvent) -> str:
    """`r1: ValueError: ...`, or what a launcher says about the rank that failed first."""
    first = _first_failure(str(error.message)) if is_of_launcher(error) else ""
    if first:
        return first
    where = f", at {error.raised_at}" if error.raised_at else ""
    if error.rank < 0:
        return _line(error) + where
    if is_echo(error):
        return f"{UNKNOWN_FIRST}; r{error.rank}: {_of_peer(_line(error))}{where}"
    return f"r{error.rank}: {_line(error)}{where}"


def _first_failure(message: str) -> str:
    """torchrun lists the rank that it saw fail first, then those that it ended because of that."""
    failures = [(int(rank), int(code)) for rank, code in LAUNCHER_LIST.findall(message)]
    own = [failure for failure in failures if failure[1] != -signal.SIGTERM] or failures
    if not own:
        return ""
    rank, code = own[0]
    names = {number.value: number.name for number in signal.Signals}
    killed = f"it was killed by {names.get(-code, f'signal {-code}')}"
    return f"r{rank} ended first: {killed if code < 0 else f'it exited with code {code}'}"


def _line(error: RecordedEvent) -> str:
    """Its message in one line; the last line if the message contains another process's traceback."""
    lines = str(error.message).strip().splitlines() or [""]
    return (lines[-1] if any(TRACEBACK in line for line in lines) else " ".join(lines)).strip()[:500]


def explain(section: Section, recording: RunRecording, ranks: Ranks, facts: RunFacts) -> Section:
    """The step-time section; if it has no data, with what was seen and what to do."""
    seen, action = _WATCHED
    if facts.mode != WATCH_ONLY:
        if section.diagnosis.kind != "NO_DATA" or facts.status == "running":
            return section
        seen, action = _what_was_seen(recording, ranks, facts)
    if not seen:
        return section
    finding = replace(section.diagnosis, summary=seen, action=action)
    return replace(section, diagnosis=finding, issues=[finding])


def _what_was_seen(recording: RunRecording, ranks: Ranks, facts: RunFacts) -> tuple[str, str]:
    """The sentence and the advice; empty if there is nothing to add."""
    failed = next((e for e in recording.early_events if e.kind == "capture_failed"), None)
    if failed is not None and not ranks:
        return f"Nothing was recorded, because {failed.message}.", _REPORT_IT
    if recording.problems and not ranks:
        return f"What was recorded cannot be read. {recording.problems[0]}", _READ_IT
    inferred = {rank: _inferred(r) for rank, r in ranks.items()}
    passes = max(inferred.values(), default=0)
    seen, action = "A backward pass began, but no training step was completed.", _GO_ON
    if not ranks:
        seen, action = next((said for sign, said in _SEEN.items() if sign in recording.seen), _NO_PYTHON)
    elif passes:
        many = f"{passes} backward passes" if passes > 1 else "One backward pass"
        seen = f"{many} began, but no optimizer of torch.optim stepped; at least two steps are needed."
    elif any(len(r.rows) for r in ranks.values()):
        seen, action = "", ""
    if facts.status != "failed" or not (ranks or recording.seen):
        return seen, action
    which = "second" if any(len(r.rows) > inferred[rank] for rank, r in ranks.items()) else "first"
    errors = [early_failure(recording), *(e for r in ranks.values() for e in r.events)]
    is_known = any(e is not None and e.kind == "error" and not is_echo(e) for e in errors)
    seen = f"The command failed before its {which} training step was completed. {seen}".strip()
    return seen, _FIX_IT if is_known else _FIND_IT


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
_SEEN: Final = {
    "loader": (
        "torch was imported and a data loader was read, but no backward pass or optimizer step ran, so "
        "nothing was recorded.",
        "Check that the training loop runs: only evaluation, an early exit, or gradients that are off.",
    ),
    "torch": (
        "torch was imported, but no backward pass or optimizer step ran, so nothing was recorded.",
        "Check that the command trains: its training may run in a process that Python did not start. If "
        "it needs no backward pass, mark its steps with traceml.trace_step(model).",
    ),
    "old-python": (
        "The command's Python is older than 3.10, so nothing was recorded.",
        "Run it with Python 3.10 or newer.",
    ),
    "python": (
        "Python ran, but torch was never imported, so nothing was recorded.",
        "Check the command: TraceML records PyTorch trainings in the processes that it starts.",
    ),
}
"""How far the command came, the furthest first: the sentence, and the advice."""
_NO_PYTHON: Final = (
    "No Python process started under TraceML: the command does not run Python, or its Python ignores the "
    "environment (-I, -E, -S). Nothing was recorded.",
    "Run the training's Python without these flags, or call traceml.init() in the script.",
)
