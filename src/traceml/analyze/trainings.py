"""Every process that trained, if several claimed the same rank: together (hogwild) or one after the other."""

from dataclasses import replace
from operator import attrgetter

from traceml.analyze import window as w
from traceml.analyze.align import align_ranks
from traceml.analyze.attempts import Attempts
from traceml.analyze.cores import CoreUse
from traceml.analyze.diagnose import diagnose_time
from traceml.analyze.totals import steps_of
from traceml.schema.recorded import RankRecording
from traceml.schema.summary import Training


def trainings_of(attempts: Attempts, use: CoreUse) -> list[Training]:
    """`run.trainings`: one line for each, those of the tables first; empty if each rank has only one. Ranks
    that a launcher restarted are attempts, not other trainings."""
    alone = all((r.identity.world_size or 1) == 1 for r in attempts.chosen.values())
    before = [r for attempt in attempts.before for r in attempt.values()] if alone else []
    others = sorted((*attempts.doubles, *before), key=attrgetter("pid"))
    if not others:
        return []
    shown = [r for r in attempts.chosen.values() if r.rank in {other.rank for other in others}]
    return [*(_training(r, use, True) for r in shown), *(_training(r, use, False) for r in others)]


def _training(recorded: RankRecording, use: CoreUse, is_shown: bool) -> Training:
    window = replace(align_ranks({recorded.rank: recorded}), core_use=use)
    first = diagnose_time(window)[0]
    known = window.count > 0
    return Training(
        pid=recorded.pid,
        rank=recorded.rank,
        steps=steps_of(recorded),
        step_ms=window.mean_ms(window.step_ns) if known else None,
        input_share=window.median_share(window.of(w.INPUT)) if known else None,
        compute_share=window.median_share(window.of(*w.COMPUTE)) if known else None,
        status=first.status,
        severity=first.severity,
        summary=first.summary,
        in_tables=is_shown,
    )
