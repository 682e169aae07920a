"""How ranks that did not end well ended: which of them went first, where it was, and what was raised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from traceml.schema import catalog as c
from traceml.schema.recorded import RankRecording

TOGETHER_NS: Final = 500_000_000
SAME_MOMENT_NS: Final = 20_000_000
"""Of ranks that are gone so soon after one another the first is unknown: a process takes as long to end."""
WAITING_FOR_OTHERS: Final = c.PHASES[c.SYNC].key
EXCHANGES: Final = (c.PHASES[c.BACKWARD].key, c.PHASES[c.SYNC].key)
OF_CONNECTIONS: Final = (
    *("connect", "peer", "gloo", "nccl", "socket", "broken pipe", "timeout", "timed out"),
    *("distbackend", "distnetwork", "process group", "aborted"),
)

Event = dict[str, Any]
Ranks = dict[int, RankRecording]


def ended_first(ranks: Ranks, noticed: Sequence[Event]) -> Event | None:
    """The rank that went first, its last step, and where it was; `noticed` is what the monitors saw.

    Ranks that end within half a second of the first are taken together. Among them: one that raised
    something of its own; else the one that was gone before the others, if the kernel told when; else one that
    was killed while it was not waiting for others; else whoever raised first. One that an exchange had
    failed on is only considered when there is no other.
    """
    ended = _ends(ranks, noticed)
    if not ended:
        return None
    together = [e for e in ended if when(e) - when(ended[0]) < TOGETHER_NS]
    raised = {r for r, x in ranks.items() for e in x.events if e["kind"] == "error" and not _is_echo(e)}
    echoed = {r for r, x in ranks.items() for e in x.events if e["kind"] == "error" and _is_echo(e)}
    echoed |= {e["rank"] for e in together if not e.get("closed") and e.get("failed_in") in EXCHANGES}
    error = first_error(ranks)
    others = [e for e in together if e["rank"] not in echoed]
    if error is None and others:
        together = others
    guilty = (
        [e for e in together if e["rank"] in raised]
        or _gone_before(others, ranks)
        or [e for e in together if not e.get("closed") and e.get("phase") != WAITING_FOR_OTHERS]
        or [e for e in together if error is not None and e["rank"] == error[0]]
        or together
    )
    first = guilty[0]
    # What was going on when it raised; by the time that the process is gone the phase is over.
    raised_in = [e.get("during") for e in ranks[first["rank"]].events if e["kind"] == "error"]
    phase = next((during for during in raised_in if during), first.get("failed_in") or first.get("phase"))
    return {
        "rank": first["rank"],
        "step": first.get("step"),
        "phase": phase,
        "together": error is None and _at_one_moment(together),
    }


def _gone_before(ended: Sequence[Event], ranks: Ranks) -> list[Event]:
    """The one that was gone clearly before the others, by the kernel's word on one machine; else nothing."""
    if not all(e.get("exact") for e in ended) or len({ranks[e["rank"]].node for e in ended}) != 1:
        return []
    alone = len(ended) == 1 or when(ended[1]) - when(ended[0]) >= SAME_MOMENT_NS
    return list(ended[:1]) if alone else []


def _at_one_moment(ended: Sequence[Event]) -> bool:
    """Whether several ranks were found gone without a word at the same moment: no telling who was first."""
    span_ns = when(ended[-1]) - when(ended[0])
    return len(ended) > 1 and span_ns < SAME_MOMENT_NS and not any(e.get("closed") for e in ended)


def ended_well(ranks: Ranks, noticed: Sequence[Event]) -> bool:
    """Whether every process got to its end without an exception, as far as is known."""
    return first_error(ranks) is None and all(e.get("closed") for e in _ends(ranks, noticed))


def describe(ranks: Ranks, noticed: Sequence[Event]) -> str | None:
    """The end in words: who went first and how, and the exception that came first."""
    error = first_error(ranks)
    first = ended_first(ranks, noticed)
    if first is None or (len(ranks) == 1 and error is not None):
        return error[1] if error is not None else None
    abrupt = _is_abrupt(first["rank"], ranks, noticed)
    where = f"after step {first['step']}, in {first['phase']}"
    if first["together"]:
        text = f"several ranks were killed or crashed at the same time, r{first['rank']} {where}"
    else:
        did = "was killed or crashed" if abrupt else "ended"
        text = f"r{first['rank']} {did}{' first' if len(ranks) > 1 else ''}: {where}"
    if error is not None:
        text += f"; r{error[0]}: {error[1]}"
    kills = max(e.get("oom_kills") or 0 for e in _ends(ranks, noticed))
    if abrupt and kills:
        text += f"; the kernel killed {kills} process(es) of this machine for lack of memory during this run"
    return text


def _is_abrupt(rank: int, ranks: Ranks, noticed: Sequence[Event]) -> bool:
    """Neither an exception nor the interpreter's end: a signal from outside, or a crash in native code."""
    raised = any(e["kind"] == "error" for e in ranks[rank].events)
    ends = _ends({rank: ranks[rank]}, noticed)
    return not raised and any(not e.get("closed", True) for e in ends)


def first_error(ranks: Ranks) -> tuple[int, str] | None:
    """The exception that came first; one out of an exchange may only echo another rank's end."""
    errors = [(_is_echo(e), e.get("time_ns", 0), r, e) for r, x in ranks.items() for e in x.events]
    errors = [found for found in errors if found[3]["kind"] == "error"]
    if not errors:
        return None
    _, _, rank, event = min(errors, key=lambda found: found[:3])
    return rank, str(event.get("message"))


def _is_echo(event: Event) -> bool:
    """What the end of another rank brings about: an exchange fails, and the error is about the connection."""
    message = str(event.get("message")).lower()
    return event.get("during") in EXCHANGES and any(word in message for word in OF_CONNECTIONS)


def _ends(ranks: Ranks, noticed: Sequence[Event]) -> list[Event]:
    """The ends of these processes, not of another attempt's with the same rank, in the order of time."""

    def is_theirs(event: Event) -> bool:
        mine = ranks.get(event.get("rank", -1))
        return mine is not None and event.get("pid", mine.pid) == mine.pid

    ended = [e for e in noticed if e["kind"] == "rank_ended" and is_theirs(e)]
    return sorted(ended, key=when)


def when(event: Event) -> int:
    """On the wall clock, because several machines' monitors may have noticed."""
    return int(event.get("wall_ns") or event.get("time_ns", 0))
