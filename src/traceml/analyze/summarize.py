"""From a run's rows and facts to its Summary."""

from dataclasses import replace

import numpy as np

from traceml.analyze import metrics as m
from traceml.analyze import sections
from traceml.analyze.align import align_ranks
from traceml.analyze.cores import core_use
from traceml.analyze.diagnose import choose_primary
from traceml.analyze.endings import explain
from traceml.analyze.layers import layers_section
from traceml.analyze.recordings import believed, find_attempts
from traceml.analyze.run import around_steps, events_of, run_of
from traceml.analyze.window import NO_TIME, Window
from traceml.analyze.window_arrays import Before
from traceml.schema import catalog as c
from traceml.schema.recorded import RankRecording, RunFacts, RunRecording
from traceml.schema.summary import Environment, Layers, Overhead, Series, Summary

LIVE_MEMBERS = 128
"""The summary of a running job lists about this many ranks: those that anything names, and some others."""


def summarize(
    recording: RunRecording, facts: RunFacts, final: bool = True, before: Before | None = None
) -> Summary:
    """The object that every view is made from. A live view gives the same `before` again and again."""
    kept, notes = believed(recording.ranks, before)
    facts = replace(facts, notes=[*notes, *facts.notes])
    attempts = find_attempts(kept)
    ranks = attempts.chosen
    when = sections.training_times(ranks)
    samples = sections.process_samples(recording, ranks, when)
    delays = m.row_means(samples.table("cpu_delay_percent"))  # of each rank's threads, waiting for a core
    start, end = around_steps(attempts, facts) if final else (NO_TIME, NO_TIME)
    window = replace(
        align_ranks(ranks, before),
        cpu_delay_share=float(np.fmax.reduce(delays, initial=0.0)) / 100,
        core_use=core_use(recording, facts, [*ranks.values(), *attempts.doubles], when.get(0)),
        start=start,
        end=end,
    )
    memory = sections.memory_view(ranks, window, recording, samples)
    most = None if final else LIVE_MEMBERS
    step_time = explain(sections.time_section(window, ranks, most), recording, ranks, facts)
    step_memory = sections.memory_section(memory, ranks, most)
    system = sections.system_section(recording, facts, ranks, when, window.core_use)
    process = sections.process_section(recording, facts, ranks, memory, samples, most)
    step_ms, own = step_time.metrics["step_ms"].median.value, recording.gauges(0)
    layers = layers_section(ranks, step_ms)
    return Summary(
        run=run_of(recording, facts, attempts, window),
        primary_diagnosis=choose_primary(step_time.issues, step_memory.issues, system.issues, step_ms),
        step_time=step_time,
        step_memory=step_memory,
        system=system,
        process=process,
        layers=layers,
        final=final,
        series=Series(
            step_time=m.step_series(window),
            step_memory=m.memory_series(memory),
            system=m.gauge_series(own.system_rows, facts.begin_ns, c.SYSTEM_METRICS),
            process=m.gauge_series(own.process_rows, facts.begin_ns, c.PROCESS_METRICS[:-1]),
            heatmap=m.heatmap(window, final),
        ),
        blocks=m.blocks(window),
        events=events_of(recording, ranks, facts),
        environment=_environment(facts.environment, ranks),
        overhead=_overhead(window, facts, layers),
        catalog=[
            *c.METRICS,
            *(c.Metric(f"{k}_ms", k[5:], "ms", "step_time", "user phase") for k in window.user_keys),
        ],
    )


def _environment(known: Environment, ranks: dict[int, RankRecording]) -> Environment:
    """What the monitor knows about the machine, and the first rank about the training."""
    if not ranks:
        return known
    first = next(iter(ranks.values()))
    process, device, rows = first.header.get("process", {}), first.header.get("device", {}), first.rows
    sizes = rows["samples"][rows["samples"] > 0]
    micro = rows["micro_batches"]
    return replace(
        known,
        python=process.get("python"),
        torch=process.get("torch"),
        torch_threads=process.get("threads"),
        packages=process.get("packages") or {},
        device=device.get("type"),
        device_name=device.get("name"),
        device_memory_bytes=device.get("capacity_bytes"),
        batch_size=int(np.median(sizes)) if len(sizes) else None,
        micro_batches=int(np.median(micro)) if len(micro) else None,
        model_parameters=next((e.parameters for e in first.events if e.kind == "model"), None),
        world_size=max((r.identity.world_size or 1) for r in ranks.values()),
    )


def _overhead(window: Window, facts: RunFacts, layers: Layers | None) -> Overhead:
    if not window.count:
        return facts.monitor
    step_ns = float(window.step_ns.mean())
    own_ns = float(window.overhead_ns.mean())
    own_ns += (layers.cost_share or 0.0) * step_ns if layers is not None else 0.0
    return replace(
        facts.monitor,
        us_per_step=own_ns / 1e3,
        share=own_ns / max(step_ns, 1.0),
        how="timed in every 16th step, with what cannot be timed there in proportion",
    )
