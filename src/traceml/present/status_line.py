"""One line about a running training, for logs without a terminal."""

from traceml.schema import WATCH_ONLY, fmt
from traceml.schema import live as state
from traceml.schema.live import Live
from traceml.schema.summary import MetricStat


def status_line(live: Live) -> str:
    """Progress, step time, verdict."""
    summary = live.summary
    if summary.run.mode == WATCH_ONLY:
        return f"{fmt.age(summary.run.duration_s or 0.0)}: {_gauges(live)}"
    found, step = summary.primary_diagnosis, summary.step_time.metrics.get("step_ms", MetricStat())
    severity = {"warn": " (warning)", "crit": " (critical)"}.get(found.severity, "")
    news = f", {state.STATES[live.state]} for {fmt.age(live.quiet_s)}" if live.state == state.STALE else ""
    if not summary.run.steps.total:
        return f"{fmt.age(summary.run.duration_s or 0.0)}: {state.STATES[live.state]}"
    rate = f" ({fmt.rate(live.steps_per_s, 'steps')})" if live.steps_per_s is not None else ""
    progress = (
        f"{fmt.age(summary.run.duration_s or 0.0)}: step {fmt.count(summary.run.steps.total)}{rate}{news}"
    )
    return f"{progress}; step time {fmt.ms(step.median.value)}; {found.status}{severity}: {found.summary}"


def _gauges(live: Live) -> str:
    """For a command without recorded steps."""
    parts = []
    for section, name in ((live.summary.system, "machine"), (live.summary.process, "command")):
        cpu, memory = (
            section.metrics.get(key, MetricStat())
            for key in ("cpu_percent", "ram_bytes" if name == "machine" else "rss_bytes")
        )
        parts.append(f"{name} CPU {fmt.percent(cpu.average)}, memory {fmt.size(memory.average)}")
    return "; ".join(parts)
