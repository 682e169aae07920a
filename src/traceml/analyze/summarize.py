"""From a run's rows and facts to its Summary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from traceml.analyze import metrics as m
from traceml.analyze import primary
from traceml.analyze.align import align_ranks
from traceml.analyze.attempts import find_attempts
from traceml.analyze.run_facts import events_of, run_of
from traceml.analyze.samples import Samples, process_samples, training_times
from traceml.analyze.section_context import (
    gauge_series,
    process_section,
    system_section,
)
from traceml.analyze.section_memory import memory_section, memory_series, memory_view
from traceml.analyze.section_time import time_section
from traceml.analyze.window import Window
from traceml.schema import catalog as c
from traceml.schema.facts import RunFacts
from traceml.schema.recorded import RankRecording, RunRecording
from traceml.schema.summary import Summary

LIVE_MEMBERS = 128
"""While a run goes on its summary lists this many ranks one by one: those that anything names, and some."""


def summarize(
    recording: RunRecording, facts: RunFacts, final: bool = True, last: int | None = None
) -> Summary:
    """The one object that everything shown is made from; `last` looks at the newest steps only (live)."""
    attempts = find_attempts(recording.ranks)
    ranks = attempts.chosen
    when = training_times(ranks)
    samples = process_samples(recording, ranks, when)
    window = _with_cpu_delay(align_ranks(ranks, last), samples)
    memory = memory_view(ranks, window, recording)
    most = None if final else LIVE_MEMBERS
    step_time = time_section(window, ranks, most)
    step_memory = memory_section(memory, ranks, most)
    system = system_section(recording, facts, ranks, when)
    process = process_section(recording, facts, ranks, memory, samples, most)
    step_ms = step_time.metrics["step_ms"].median.value
    return Summary(
        run=run_of(recording, facts, attempts, window),
        primary_diagnosis=primary.choose(step_time.issues, step_memory.issues, system.issues, step_ms),
        step_time=step_time,
        step_memory=step_memory,
        system=system,
        process=process,
        final=final,
        series={
            "step_time": m.step_series(window),
            "step_memory": memory_series(memory),
            "system": gauge_series(recording.system_rows, facts.begin_ns, c.SYSTEM_METRICS),
        },
        blocks=m.blocks(window),
        events=events_of(recording, ranks, facts),
        environment={**facts.environment, **_rank_environment(ranks, window)},
        overhead=_overhead(window, facts),
        catalog=_catalog(window),
    )


def _with_cpu_delay(window: Window, samples: Samples) -> Window:
    """Tell the window how long its threads waited for a core: the worst rank's mean over the training."""
    means = m.row_means(samples.table("cpu_delay_percent"))
    return replace(window, cpu_delay_share=float(np.fmax.reduce(means, initial=0.0)) / 100)


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
        "model_parameters": _model_parameters(next(iter(ranks.values()))),
        "world_size": max((int(r.identity.get("world_size", 1)) for r in ranks.values()), default=1),
    }


def _model_parameters(recorded: RankRecording) -> int | None:
    """What the first optimizer that stepped trains."""
    sizes = [e.get("parameters") for e in recorded.events if e["kind"] == "model"]
    return sizes[0] if sizes and isinstance(sizes[0], int) else None


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
