"""How a failed run ended: which rank ended first, where it was, and what was raised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from traceml.schema import catalog as c
from traceml.schema.recorded import RankRecording, RecordedEvent
from traceml.schema.summary import EndedFirst

TOGETHER_NS: Final = 500_000_000
SAME_MOMENT_NS: Final = 20_000_000
"""A process takes about this long to end: which of several ranks that end within it was first is unknown."""
WAITING_FOR_OTHERS: Final = c.PHASES[c.SYNC].key
EXCHANGES: Final = (c.PHASES[c.BACKWARD].key, c.PHASES[c.SYNC].key)
OF_CONNECTIONS: Final = (
    *("connect", "peer", "gloo", "nccl", "socket", "broken pipe", "timeout", "timed out"),
    *("distbackend", "distnetwork", "process group", "aborted"),
)
OF_PEERS: Final = (
    *("gloo", "nccl", "distbackend", "distnetwork", "tcpstore", "process group"),
    *("closed by peer", "reset by peer", "remote peer", "peer closed"),
)
"""Only torch.distributed says these: another rank is gone, wherever the error surfaced."""

Events = Sequence[RecordedEvent]
Ranks = dict[int, RankRecording]


def ended_first(ranks: Ranks, noticed: Events) -> EndedFirst | None:
    """The rank that ended first, its last step, and where it was; `noticed` is what the monitors saw.

    Ranks that end within half a second of the first are considered together. Among them, in this order: one
    that raised an error of its own; the one that was gone before the others, if the kernel gave the time;
    one that was killed while it was not waiting for others; the one that raised first. A rank on which an
    exchange failed is considered only if there is no other.
    """
    ended = _ends(ranks, noticed)
    if not ended:
        return None
    together = [e for e in ended if when(e) - when(ended[0]) < TOGETHER_NS]
    errors, error = _errors(ranks), first_error(ranks)
    raised = {rank for rank, event in errors if not _is_echo(event)}
    echoed = {rank for rank, event in errors if _is_echo(event)}
    echoed |= {e.rank for e in together if not e.closed and e.failed_in in EXCHANGES}
    others = [e for e in together if e.rank not in echoed]
    if error is None and others:
        together = others
    guilty = (
        [e for e in together if e.rank in raised]
        or _gone_before(others, ranks)
        or [e for e in together if not e.closed and e.phase != WAITING_FOR_OTHERS]
        or [e for e in together if error is not None and e.rank == error[0]]
        or together
    )
    first = guilty[0]
    # The phase in which it raised: by the time the process is gone, that phase is over.
    raised_in = (event.during for rank, event in errors if rank == first.rank)
    phase = next((during for during in raised_in if during), first.failed_in or first.phase)
    return EndedFirst(first.rank, first.step, phase, error is None and _at_one_moment(together))


def _errors(ranks: Ranks) -> list[tuple[int, RecordedEvent]]:
    return [(rank, event) for rank, r in ranks.items() for event in r.events if event.kind == "error"]


def _gone_before(ended: Events, ranks: Ranks) -> list[RecordedEvent]:
    """The one that was clearly gone before the others, if the kernel of one machine gave all times."""
    if not all(e.exact for e in ended) or len({ranks[e.rank].node for e in ended}) != 1:
        return []
    alone = len(ended) == 1 or when(ended[1]) - when(ended[0]) >= SAME_MOMENT_NS
    return list(ended[:1]) if alone else []


def _at_one_moment(ended: Events) -> bool:
    """Whether several ranks were found gone at the same moment without an error: the first is unknown."""
    span_ns = when(ended[-1]) - when(ended[0])
    return len(ended) > 1 and span_ns < SAME_MOMENT_NS and not any(e.closed for e in ended)


def ended_well(ranks: Ranks, noticed: Events) -> bool:
    """Whether every process ended without an exception, as far as is known."""
    return first_error(ranks) is None and all(e.closed for e in _ends(ranks, noticed))


def describe(ranks: Ranks, noticed: Events) -> str | None:
    """The end in words: which rank ended first and how, and the first exception."""
    error = first_error(ranks)
    first = ended_first(ranks, noticed)
    if first is None or (len(ranks) == 1 and error is not None):
        return error[1] if error is not None else None
    abrupt = _is_abrupt(first.rank, ranks, noticed)
    where = f"after step {first.step}, in {first.phase}"
    if first.together:
        text = f"several ranks were killed or crashed at the same time (r{first.rank} {where})"
    else:
        did = "was killed or crashed" if abrupt else "ended"
        text = f"r{first.rank} {did}{' first' if len(ranks) > 1 else ''} ({where})"
    if error is not None:
        text += f"; r{error[0]}: {error[1]}"
    kills = max(e.oom_kills or 0 for e in _ends(ranks, noticed))
    if abrupt and kills:
        text += f"; the kernel's OOM killer ended {kills} process(es) on this machine during this run"
    return text


def _is_abrupt(rank: int, ranks: Ranks, noticed: Events) -> bool:
    """It neither raised nor exited: a signal from outside, or a crash in native code."""
    raised = any(e.kind == "error" for e in ranks[rank].events)
    return not raised and any(e.closed is False for e in _ends({rank: ranks[rank]}, noticed))


def first_error(ranks: Ranks) -> tuple[int, str] | None:
    """The first exception; one from an exchange comes last, since it may only echo another rank's end."""
    errors = [(_is_echo(event), event.time_ns, rank, str(event.message)) for rank, event in _errors(ranks)]
    return min(errors)[2:] if errors else None


def _is_echo(event: RecordedEvent) -> bool:
    """Whether another rank's end caused it: the error is about a peer, or an exchange lost its connection."""
    message = str(event.message).lower()
    words = OF_CONNECTIONS if event.during in EXCHANGES else OF_PEERS
    return any(word in message for word in words)


def _ends(ranks: Ranks, noticed: Events) -> list[RecordedEvent]:
    """The ends of these processes by time, without those of other attempts with the same ranks."""

    def is_theirs(event: RecordedEvent) -> bool:
        mine = ranks.get(event.rank)
        return mine is not None and event.pid in (None, mine.pid)

    return sorted((e for e in noticed if e.kind == "rank_ended" and is_theirs(e)), key=when)


def when(event: RecordedEvent) -> int:
    """On the wall clock, because monitors of several machines may have seen it."""
    return event.wall_ns or event.time_ns
