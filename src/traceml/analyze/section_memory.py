"""The step-memory section of the summary: device memory where there is some, else resident memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml.analyze import metrics as m
from traceml.analyze.rules_memory import MemoryView, diagnose_memory
from traceml.analyze.window import Window
from traceml.schema import catalog as c
from traceml.schema.recorded import RankRecording, RunRecording
from traceml.schema.summary import Member, MetricStat, Section


def memory_view(
    ranks: dict[int, RankRecording], window: Window, recording: RunRecording
) -> MemoryView | None:
    """Device memory where every rank has it, else the processes' resident memory."""
    lit = [ranks[r] for r in window.ranks]
    if not lit or not window.count:
        return None
    on_device = not np.isnan(window.memory["peak_allocated_bytes"]).any()
    key = "peak_allocated_bytes" if on_device else "rss_bytes"
    # A step whose memory was not read is left out: its 0 is no measurement.
    read = ~np.isnan(window.memory[key]).any(axis=0)
    if not read.any():
        return None
    values = window.memory if read.all() else {k: v[:, read] for k, v in window.memory.items()}
    capacities = device_capacities(lit) if on_device else ram_totals(lit, recording)
    known = np.array([c for c in capacities if c])
    is_known = len(known) == len(lit)
    return MemoryView(
        ranks=window.ranks,
        steps=window.steps[read],
        peak=values[key],
        reserved=values["peak_reserved_bytes"],
        memory="device" if on_device else "rss",
        capacity=float(known.min()) if is_known else None,
        capacities=known if is_known else None,
        total_steps=window.total_steps,
        values=values,
    )


def device_capacities(ranks: Sequence[RankRecording]) -> list[float | None]:
    """Memory of each rank's device; None where it is not known."""
    given = (r.header.get("device", {}).get("capacity_bytes") for r in ranks)
    return [float(v) if v else None for v in given]


def ram_totals(ranks: Sequence[RankRecording], recording: RunRecording) -> list[float | None]:
    """Memory of the machine that each rank runs on."""
    of_node = {node: ram_total(recording.gauges(node).system_rows) for node in {r.node for r in ranks}}
    return [of_node[r.node] for r in ranks]


def ram_total(rows: NDArray[np.void] | None) -> float | None:
    """Memory of the machine, from what is used and its share."""
    if rows is None or not len(rows) or not rows["ram_percent"][-1] > 0:
        return None
    return float(100 * rows["ram_bytes"][-1] / rows["ram_percent"][-1])


def memory_section(
    view: MemoryView | None, ranks: dict[int, RankRecording], most: int | None = None
) -> Section:
    """What the memory rules say about this view, and the numbers behind it; of `most` ranks."""
    findings = diagnose_memory(view)
    if view is None:
        return Section(findings[0], findings, metrics={k.key: MetricStat() for k in c.STEP_MEMORY_METRICS})
    metrics = {k: _peak_stat(view.ranks, v) for k, v in view.values.items()}
    table = m.Table(view.ranks, {k: (v, 1.0) for k, v in view.values.items()})
    own = table.of_members(m.listed(view.ranks, metrics, findings, most))
    head_tail = view.peak[:, -1] - view.peak[:, 0]
    worst = int(np.argmax(view.peak.max(axis=1)))
    return Section(
        findings[0],
        findings,
        window={
            "start_step": int(view.steps[0]),
            "end_step": int(view.steps[-1]),
            "num_steps": len(view.steps),
            "memory": view.memory,
            "capacity_bytes": view.capacity,
            "head_tail_delta_bytes": float(head_tail[worst]),
        },
        metrics=metrics,
        ranks={str(r): Member(dict(ranks[r].identity), means) for r, means in own.items()},
    )


def _peak_stat(ranks: tuple[int, ...], values: NDArray[np.float64]) -> MetricStat:
    """Memory is judged by its peaks: each rank's value is its maximum over the window."""
    if values.size == 0 or np.isnan(values).all():
        return MetricStat()
    found = m.stat(ranks, m.row_peaks(values)[:, None])
    p5, p95 = m.spread(values)
    return MetricStat(
        found.average,
        found.median,
        found.worst,
        m.number(p5),
        m.number(p95),
        found.skew,
    )


def memory_series(view: MemoryView | None, most: int = 300) -> dict[str, Any]:
    """Peak memory for charts, at evenly spread steps."""
    if view is None:
        return {"steps": []}
    at = np.unique(np.linspace(0, len(view.steps) - 1, min(most, len(view.steps))).astype(int))
    return {
        "steps": [int(view.steps[i]) for i in at],
        "worst_bytes": view.peak.max(axis=0)[at].tolist(),
        "median_bytes": view.typical_peak[at].tolist(),
        "memory": view.memory,
    }
