"""From a run's rows and facts to its Summary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml.analyze import metrics as m
from traceml.analyze import primary
from traceml.analyze.align import align, newest_of_each_rank
from traceml.analyze.diagnose_time import diagnose_time
from traceml.analyze.rules_context import (
    PROCESS_RULES,
    SYSTEM_RULES,
    ContextView,
    diagnose_context,
)
from traceml.analyze.rules_memory import MemoryView, diagnose_memory
from traceml.analyze.window import Window
from traceml.schema import catalog as c
from traceml.schema import fmt
from traceml.schema.facts import RunFacts
from traceml.schema.recorded import RankRecording, RunRecording
from traceml.schema.summary import Finding, Member, MetricStat, Run, Section, Summary

MOST_EVENTS = 200
NOTABLE_CPU_DELAY = 0.05


def summarize(recording: RunRecording, facts: RunFacts, final: bool = True) -> Summary:
    """The one object that everything shown is made from."""
    ranks = newest_of_each_rank(recording.ranks)
    window = _with_cpu_delay(align(recording.ranks), recording, ranks)
    memory = memory_view(ranks, window, recording)
    step_time = _time_section(window, ranks)
    step_memory = _memory_section(memory, ranks)
    system = _system_section(recording, facts, ranks)
    process = _process_section(recording, facts, ranks, memory)
    step_ms = step_time.metrics["step_ms"].median.value
    return Summary(
        run=_run(recording, facts, ranks, window),
        primary_diagnosis=primary.choose(step_time.issues, step_memory.issues, system.issues, step_ms),
        step_time=step_time,
        step_memory=step_memory,
        system=system,
        process=process,
        final=final,
        series={
            "step_time": m.step_series(window),
            "step_memory": _memory_series(memory),
            "system": _gauge_series(recording.system_rows, facts.begin_ns, c.SYSTEM_METRICS),
        },
        blocks=m.blocks(window),
        events=_events(ranks, facts),
        environment={**facts.environment, **_rank_environment(ranks, window)},
        overhead=_overhead(window, facts),
        catalog=_catalog(window),
    )


def _with_cpu_delay(window: Window, recording: RunRecording, ranks: dict[int, RankRecording]) -> Window:
    """Tell the window how long its threads waited for a core: the worst rank's mean over the training."""
    rows = _in_training(recording.process_rows, ranks)
    if rows is None or not len(rows):
        return window
    per_rank = [rows["cpu_delay_percent"][rows["pid"] == r.pid] for r in ranks.values()]
    means = [float(np.nanmean(p)) for p in per_rank if len(p) and not np.isnan(p).all()]
    return replace(window, cpu_delay_share=max(means, default=0.0) / 100)


def _section(findings: list[Finding], **parts: Any) -> Section:
    return Section(diagnosis=findings[0], issues=findings, **parts)


def _member(ranks: dict[int, RankRecording], rank: int, values: dict[str, float | None]) -> Member:
    return Member(identity=dict(ranks[rank].identity), metrics=values)


# ---- step time -----------------------------------------------------------------------------------


def _time_section(window: Window, ranks: dict[int, RankRecording]) -> Section:
    values = m.step_time_values(window)
    own = m.rank_means(window.ranks, values)
    return _section(
        diagnose_time(window),
        window={
            "start_step": int(window.steps[0]) if window.count else None,
            "end_step": int(window.steps[-1]) if window.count else None,
            "num_steps": window.count,
            "clock": window.clock,
            "ranks": list(window.ranks),
            "warmup_steps": len(window.warmup),
            "first_step_ms": window.warmup[0] if window.warmup else None,
            "input_inferred": window.input_inferred,
            "loader_workers": window.workers,
        },
        metrics=m.step_time_metrics(window),
        ranks={str(r): _member(ranks, r, own[r]) for r in window.ranks},
    )


# ---- step memory ---------------------------------------------------------------------------------


def memory_view(
    ranks: dict[int, RankRecording], window: Window, recording: RunRecording
) -> MemoryView | None:
    """Device memory where every rank has it, else the processes' resident memory."""
    lit = [ranks[r] for r in window.ranks]
    if not lit or not window.count:
        return None
    rows = [r.rows[np.isin(r.rows["step"], window.steps)] for r in lit]
    on_device = all(bool((r["flags"] & c.FLAG_DEVICE_MEMORY).all()) for r in rows)
    if not on_device and not all(bool((r["flags"] & c.FLAG_RSS).any()) for r in rows):
        return None
    key = "peak_allocated_bytes" if on_device else "rss_bytes"
    peak = np.stack([r[key].astype(float) for r in rows])
    capacities = [r.header.get("device", {}).get("capacity_bytes") for r in lit]
    known = [float(v) for v in capacities if v]
    capacity = min(known) if on_device and len(known) == len(lit) else None
    return MemoryView(
        ranks=window.ranks,
        steps=window.steps,
        peak=peak,
        reserved=np.stack([r["peak_reserved_bytes"].astype(float) for r in rows]),
        memory="device" if on_device else "rss",
        capacity=capacity if on_device else ram_total(recording.system_rows),
        total_steps=window.total_steps,
    )


def _memory_section(view: MemoryView | None, ranks: dict[int, RankRecording]) -> Section:
    findings = diagnose_memory(view)
    if view is None:
        return _section(findings, metrics={k.key: MetricStat() for k in c.STEP_MEMORY_METRICS})
    values = _memory_values(view, ranks)
    own = m.rank_means(view.ranks, values)
    head_tail = view.peak[:, -1] - view.peak[:, 0]
    worst = int(np.argmax(view.peak.max(axis=1)))
    return _section(
        findings,
        window={
            "start_step": int(view.steps[0]),
            "end_step": int(view.steps[-1]),
            "num_steps": len(view.steps),
            "memory": view.memory,
            "capacity_bytes": view.capacity,
            "head_tail_delta_bytes": float(head_tail[worst]),
        },
        metrics={k: _peak_stat(view.ranks, v) for k, v in values.items()},
        ranks={str(r): _member(ranks, r, own[r]) for r in view.ranks},
    )


def _memory_values(view: MemoryView, ranks: dict[int, RankRecording]) -> dict[str, NDArray[np.float64]]:
    rows = [ranks[r].rows[np.isin(ranks[r].rows["step"], view.steps)] for r in view.ranks]
    device = np.stack([(r["flags"] & c.FLAG_DEVICE_MEMORY) != 0 for r in rows])
    return {
        metric.key: np.where(
            device if metric.key != "rss_bytes" else True,
            np.stack([r[metric.key].astype(float) for r in rows]),
            np.nan,
        )
        for metric in c.STEP_MEMORY_METRICS
    }


def _peak_stat(ranks: tuple[int, ...], values: NDArray[np.float64]) -> MetricStat:
    """Memory is judged by its peaks: each rank's value is its maximum over the window."""
    if values.size == 0 or np.isnan(values).all():
        return MetricStat()
    found = m.stat(ranks, np.nanmax(values, axis=1, keepdims=True))
    p5, p95 = np.nanpercentile(values, [5, 95])
    return MetricStat(
        found.average,
        found.median,
        found.worst,
        m.number(float(p5)),
        m.number(float(p95)),
        found.skew,
    )


def _memory_series(view: MemoryView | None, most: int = 300) -> dict[str, Any]:
    if view is None:
        return {"steps": []}
    at = np.unique(np.linspace(0, len(view.steps) - 1, min(most, len(view.steps))).astype(int))
    return {
        "steps": [int(view.steps[i]) for i in at],
        "worst_bytes": [float(v) for v in view.peak.max(axis=0)[at]],
        "median_bytes": [float(v) for v in np.median(view.peak, axis=0)[at]],
        "memory": view.memory,
    }


# ---- system and process --------------------------------------------------------------------------


def ram_total(rows: NDArray[np.void] | None) -> float | None:
    """Memory of the machine, from what is used and its share."""
    if rows is None or not len(rows) or not rows["ram_percent"][-1] > 0:
        return None
    return float(100 * rows["ram_bytes"][-1] / rows["ram_percent"][-1])


def _mean_and_peak(
    rows: NDArray[np.void] | None, keys: list[str]
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    mean: dict[str, float | None] = {}
    peak: dict[str, float | None] = {}
    for key in keys:
        known = rows[key][~np.isnan(rows[key])] if rows is not None else np.zeros(0)
        mean[key] = float(known.mean()) if len(known) else None
        peak[key] = float(known.max()) if len(known) else None
    return mean, peak


def _in_training(rows: NDArray[np.void] | None, ranks: dict[int, RankRecording]) -> NDArray[np.void] | None:
    """Samples from the first step's begin to the last step's end, if there are any; else all of them."""
    lit = [r.rows for r in ranks.values() if len(r.rows)]
    if rows is None or not lit:
        return rows
    begin = min(int(r["begin_ns"][0]) for r in lit)
    end = max(int(r["end_ns"][-1]) for r in lit)
    inside = rows[(rows["time_ns"] >= begin) & (rows["time_ns"] <= end)]
    return inside if len(inside) else rows


def _on_cpu(ranks: dict[int, RankRecording]) -> bool:
    return all(r.header.get("device", {}).get("type", "cpu") == "cpu" for r in ranks.values())


def _system_section(recording: RunRecording, facts: RunFacts, ranks: dict[int, RankRecording]) -> Section:
    rows = _in_training(recording.system_rows, ranks)
    keys = [k.key for k in c.SYSTEM_METRICS]
    mean, peak = _mean_and_peak(rows, keys)
    samples = 0 if rows is None else len(rows)
    view = ContextView(mean, peak, cores=facts.cores, on_cpu=_on_cpu(ranks), samples=samples)
    calm = "CPU, memory and GPU of the machine show no pressure."
    if peak.get("gpu_util_percent") is None:
        calm = "CPU and memory of the machine show no pressure (no GPU seen)."
    return _section(
        diagnose_context(view, SYSTEM_RULES, calm),
        window={"samples": samples},
        metrics={k: _gauge_stat(rows, k) for k in keys},
        nodes={"0": Member(identity={"host": facts.environment.get("host")}, metrics=mean)},
    )


def _gauge_stat(rows: NDArray[np.void] | None, key: str) -> MetricStat:
    if rows is None or not len(rows):
        return MetricStat()
    return m.stat((0,), rows[key].astype(float)[None, :])


def _process_section(
    recording: RunRecording,
    facts: RunFacts,
    ranks: dict[int, RankRecording],
    memory: MemoryView | None,
) -> Section:
    rows = _in_training(recording.process_rows, ranks)
    keys = [k.key for k in c.PROCESS_METRICS]
    sampled = keys[:-1]
    own: dict[int, dict[str, float | None]] = {}
    for rank, recorded in ranks.items():
        mine = rows[rows["pid"] == recorded.pid] if rows is not None else None
        own[rank] = _mean_and_peak(mine, sampled)[0]
        own[rank][keys[-1]] = _reserved(recorded)
    mean, peak = _mean_and_peak(rows, sampled)
    device = memory is not None and memory.memory == "device"
    peak[keys[-1]] = float(memory.reserved.max()) if device and memory is not None else None
    peak["gpu_mem_allocated_bytes"] = float(memory.peak.max()) if device and memory is not None else None
    samples = 0 if rows is None else len(rows)
    view = ContextView(
        mean,
        peak,
        members={k: {r: v for r, v in ((r, own[r][k]) for r in own) if v is not None} for k in keys},
        cores=facts.cores,
        ram_total=ram_total(recording.system_rows),
        gpu_capacity=memory.capacity if device and memory is not None else None,
        on_cpu=_on_cpu(ranks),
        samples=samples,
    )
    stats = {k: _sampled_stat(rows, ranks, k) for k in sampled}
    held = np.array([[v if (v := own[r][keys[-1]]) is not None else np.nan] for r in own], dtype=float)
    stats[keys[-1]] = m.stat(tuple(own), held) if own else MetricStat()
    return _section(
        diagnose_context(view, PROCESS_RULES, "The training processes show no pressure."),
        window={"samples": samples},
        metrics=stats,
        ranks={str(r): _member(ranks, r, own[r]) for r in own},
    )


def _sampled_stat(rows: NDArray[np.void] | None, ranks: dict[int, RankRecording], key: str) -> MetricStat:
    """A process gauge over (rank, sample); ranks with fewer samples are padded with NaN."""
    if rows is None or not len(rows) or not ranks:
        return MetricStat()
    own = [rows[key][rows["pid"] == r.pid] for r in ranks.values()]
    table = np.full((len(own), max(len(v) for v in own) or 1), np.nan)
    for line, values in zip(table, own, strict=True):
        line[: len(values)] = values
    return m.stat(tuple(ranks), table)


def _reserved(recorded: RankRecording) -> float | None:
    rows = recorded.rows
    if not len(rows) or not (rows["flags"][-1] & c.FLAG_DEVICE_MEMORY):
        return None
    return float(rows["peak_reserved_bytes"].max())


def _gauge_series(
    rows: NDArray[np.void] | None,
    begin_ns: int | None,
    metrics: tuple[c.Metric, ...],
    most: int = 300,
) -> dict[str, Any]:
    if rows is None or not len(rows):
        return {"seconds": []}
    at = np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int))
    origin = begin_ns if begin_ns is not None else int(rows["time_ns"][0])
    series: dict[str, Any] = {"seconds": [round((int(t) - origin) / 1e9, 2) for t in rows["time_ns"][at]]}
    for metric in metrics:
        if not np.isnan(rows[metric.key]).all():
            series[metric.key] = [m.number(float(v)) for v in rows[metric.key][at]]
    return series


# ---- the run -------------------------------------------------------------------------------------


def _run(recording: RunRecording, facts: RunFacts, ranks: dict[int, RankRecording], window: Window) -> Run:
    expected = max((int(r.identity.get("world_size", 1)) for r in ranks.values()), default=1)
    seconds = None
    if facts.begin_ns is not None and facts.end_ns is not None:
        seconds = (facts.end_ns - facts.begin_ns) / 1e9
    return Run(
        name=facts.name,
        status=facts.status,
        exit_code=facts.exit_code,
        reason=facts.reason or _error_of(ranks, facts),
        started_at=facts.started_at,
        ended_at=facts.ended_at,
        duration_s=seconds,
        command=facts.command,
        nodes=max(len({r.identity.get("node_rank", 0) for r in ranks.values()}), 1),
        world_size=expected,
        ranks={
            "seen": sorted(ranks),
            "used": list(window.ranks),
            "lost": [r for r in range(expected) if r not in window.ranks],
        },
        steps={
            "total": window.total_steps,
            "analyzed": window.count,
            "warmup": len(window.warmup),
            "first_step_ms": window.warmup[0] if window.warmup else None,
        },
        mode=facts.mode,
        accounting=_accounting(ranks, facts),
        notes=_notes(recording, facts, ranks, window),
    )


def _error_of(ranks: dict[int, RankRecording], facts: RunFacts) -> str | None:
    if facts.exit_code in (0, None) and facts.status in ("completed", "running"):
        return None
    errors = [e for r in ranks.values() for e in r.events if e["kind"] == "error"]
    return str(errors[-1].get("message")) if errors else None


def _accounting(ranks: dict[int, RankRecording], facts: RunFacts) -> dict[str, float | None]:
    """How the run's seconds add up on the first rank: start-up, steps, dropped steps, the end."""
    lit = [r for r in ranks.values() if len(r.rows)]
    if not lit or facts.begin_ns is None or facts.end_ns is None:
        return {}
    rows = lit[0].rows
    steps = float((rows["end_ns"] - rows["begin_ns"]).sum()) / 1e9
    first, last = int(rows["begin_ns"][0]), int(rows["end_ns"][-1])
    return {
        "startup_s": (first - facts.begin_ns) / 1e9,
        "steps_s": steps,
        "dropped_steps_s": (last - first) / 1e9 - steps,
        "after_last_step_s": (facts.end_ns - last) / 1e9,
    }


def _notes(
    recording: RunRecording, facts: RunFacts, ranks: dict[int, RankRecording], window: Window
) -> list[str]:
    notes = list(recording.problems)
    if not ranks and facts.status != "running":
        notes.append(_why_nothing(recording.seen))
    if window.warmup and window.count:
        mean = float(np.median(window.step_ns)) / 1e6
        if window.warmup[0] > 2 * mean:
            notes.append(
                f"Warm-up left out: {len(window.warmup)} step(s); the first took "
                f"{fmt.ms(window.warmup[0])}, a typical one {fmt.ms(mean)}."
            )
    if window.cpu_delay_share >= NOTABLE_CPU_DELAY:
        notes.append(
            f"Other processes were busy on this machine: the training's threads waited for a core "
            f"{fmt.share(window.cpu_delay_share)} of the time."
        )
    if window.input_inferred:
        notes.append("Input time is inferred: no loader was seen feeding the loop.")
    if any(r.lost_rows for r in ranks.values()):
        notes.append("The disk was full: steps after that point are missing.")
    if window.dark_ranks:
        dark = ", ".join(f"r{r}" for r in window.dark_ranks)
        notes.append(f"No completed step from {dark}.")
    restarts = len(recording.ranks) - len(ranks)
    if restarts > 0:
        notes.append(f"{restarts} earlier recording(s) of the same rank are not in this summary.")
    return notes


def _why_nothing(seen: frozenset[str]) -> str:
    if "torch" in seen:
        return "torch was imported, but no backward pass or optimizer step ran: nothing to record."
    if "old-python" in seen:
        return "The command's Python is older than 3.10: nothing was recorded."
    if "python" in seen:
        return "Python ran, but torch was never imported: nothing to record."
    return (
        "No Python process started under TraceML: the command does not run Python, or its Python "
        "ignores the environment (-I, -E, -S). Nothing was recorded."
    )


def _events(ranks: dict[int, RankRecording], facts: RunFacts) -> list[dict[str, Any]]:
    origin = facts.begin_ns
    found = []
    for rank, recorded in ranks.items():
        for event in recorded.events:
            at = event.get("time_ns")
            seconds = (at - origin) / 1e9 if isinstance(at, int) and origin is not None else None
            more = {k: v for k, v in event.items() if k not in ("kind", "step", "time_ns", "duration_ns")}
            found.append(
                {
                    "kind": event["kind"],
                    "rank": rank,
                    "step": event.get("step"),
                    "time_s": seconds,
                    "duration_ms": (event.get("duration_ns") or 0) / 1e6,
                    **more,
                }
            )
    found.sort(key=lambda e: e["duration_ms"], reverse=True)
    return sorted(found[:MOST_EVENTS], key=lambda e: (e["time_s"] is None, e["time_s"]))


def _rank_environment(ranks: dict[int, RankRecording], window: Window) -> dict[str, Any]:
    if not ranks:
        return {}
    header = next(iter(ranks.values())).header
    process, device = header.get("process", {}), header.get("device", {})
    rows = next(iter(ranks.values())).rows
    known = rows["samples"][rows["samples"] > 0]
    micro = rows["micro_batches"]
    return {
        "python": process.get("python"),
        "torch": process.get("torch"),
        "torch_threads": process.get("threads"),
        "packages": process.get("packages"),
        "device": device.get("type"),
        "device_name": device.get("name"),
        "device_memory_bytes": device.get("capacity_bytes"),
        "batch_size": int(np.median(known)) if len(known) else None,
        "micro_batches": int(np.median(micro)) if len(micro) else None,
        "world_size": max((int(r.identity.get("world_size", 1)) for r in ranks.values()), default=1),
    }


def _overhead(window: Window, facts: RunFacts) -> dict[str, Any]:
    if not window.count:
        return {"us_per_step": None, "share": None, **facts.monitor}
    own = float(window.own_ns.mean())
    return {
        "us_per_step": own / 1e3,
        "share": own / max(float(window.step_ns.mean()), 1.0),
        "how": "phase switches and rows of each step, times their cost measured when recording began",
        **facts.monitor,
    }


def _catalog(window: Window) -> list[dict[str, str]]:
    rows = [
        {"key": x.key, "label": x.label, "unit": x.unit, "section": x.section, "help": x.help}
        for x in c.METRICS
    ]
    rows += [
        {
            "key": f"{k}_ms",
            "label": k.removeprefix("user."),
            "unit": "ms",
            "section": "step_time",
            "help": "user phase",
        }
        for k in window.user_keys
    ]
    return rows
