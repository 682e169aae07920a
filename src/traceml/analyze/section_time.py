"""The step-time section of the summary: findings, window, metrics and each rank's own numbers."""

from __future__ import annotations

from traceml.analyze import metrics as m
from traceml.analyze.diagnose_time import diagnose_time
from traceml.analyze.window import Window
from traceml.schema.recorded import RankRecording
from traceml.schema.summary import Member, Section


def time_section(window: Window, ranks: dict[int, RankRecording], most: int | None = None) -> Section:
    """What the step-time rules say about this window, and the numbers behind it; of `most` ranks."""
    findings = diagnose_time(window)
    table = m.step_time_table(window)
    metrics = m.step_time_metrics(table)
    own = table.of_members(m.listed(window.ranks, metrics, findings, most))
    return Section(
        findings[0],
        findings,
        window={
            "start_step": int(window.steps[0]) if window.count else None,
            "end_step": int(window.steps[-1]) if window.count else None,
            "num_steps": window.count,
            "earlier_steps": window.earlier_steps,
            "clock": window.clock,
            "ranks": list(window.ranks),
            "warmup_steps": len(window.warmup),
            "first_step_ms": window.warmup[0] if window.warmup else None,
            "input_inferred": window.input_inferred,
            "loader_workers": window.workers,
        },
        metrics=metrics,
        ranks={str(r): Member(dict(ranks[r].identity), means) for r, means in own.items()},
    )
