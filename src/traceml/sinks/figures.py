"""The figures of a run that monitoring systems get: a name, a unit, and a value for each set of labels.

Names and units are OpenTelemetry's, in base units; the Prometheus names follow from them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from traceml.schema.catalog import METRICS
from traceml.schema.live import Live
from traceml.schema.summary import Section, Summary

Labels = dict[str, str]
UNITS: Final = {
    "ms": ("s", 1e-3),
    "bytes": ("By", 1.0),
    "percent": ("1", 1e-2),
    "w": ("W", 1.0),
    "c": ("Cel", 1.0),
}
"""Of a metric in the catalogue: the base unit, and the factor to it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric with all its values at this moment."""

    name: str
    unit: str  # UCUM: s, By, 1, W, Cel, or empty
    help: str
    values: list[tuple[Labels, float]] = field(default_factory=list)
    is_total: bool = False  # it only grows


def figures_of(live: Live) -> list[Figure]:
    """Every figure that is known."""
    summary = live.summary
    found = [
        Figure("traceml.run", "", "Always 1; its labels say which run this is.", [(_about(live), 1.0)]),
        *_progress(live),
        *_verdict(summary),
        _times(summary),
        _skew(summary),
        *_by_member("traceml.memory", summary.step_memory, "rank"),
        *_by_member("traceml.process", summary.process, "rank"),
        *_by_member("traceml.system", summary.system, "node"),
    ]
    return [figure for figure in found if figure.values]


def _about(live: Live) -> Labels:
    run = live.summary.run
    return {"status": run.status, "state": live.state, "world_size": str(run.world_size)}


def _progress(live: Live) -> Iterator[Figure]:
    steps = live.summary.run.steps.total
    yield Figure("traceml.steps", "", "Completed steps.", [({}, float(steps or 0))], is_total=True)
    yield Figure("traceml.quiet", "s", "Time since the last completed step.", [({}, live.quiet_s)])
    if live.steps_per_s is not None:
        yield Figure("traceml.steps_per_second", "", "Steps per second, lately.", [({}, live.steps_per_s)])


def _verdict(summary: Summary) -> Iterator[Figure]:
    primary = summary.primary_diagnosis
    labels = {"diagnosis": primary.status, "severity": primary.severity, "phase": primary.phase or ""}
    labels["ranks"] = ",".join(map(str, primary.ranks))
    yield Figure("traceml.verdict", "", "1 for the diagnosis that holds now.", [(labels, 1.0)])
    if primary.potential_speedup is not None:
        about = "How many times as fast the run could be."
        yield Figure("traceml.potential_speedup", "1", about, [({}, primary.potential_speedup)])


def _times(summary: Summary) -> Figure:
    about = "Mean time per step of each rank in each phase; phase `step` is the whole step."
    values = [
        ({"rank": rank, "phase": key.removesuffix("_ms")}, value * 1e-3)
        for rank, member in summary.step_time.ranks.items()
        for key, value in member.metrics.items()
        if value is not None and key.endswith("_ms")
    ]
    return Figure("traceml.phase.duration", "s", about, values)


def _skew(summary: Summary) -> Figure:
    about = "How far the worst rank is above the median rank, as a share of the latter."
    values = [
        ({"phase": key.removesuffix("_ms")}, metric.skew)
        for key, metric in summary.step_time.metrics.items()
        if metric.skew is not None and key.endswith("_ms")
    ]
    return Figure("traceml.phase.skew", "1", about, values)


def _by_member(prefix: str, section: Section, label: str) -> Iterator[Figure]:
    """One figure per metric, with a value for each rank or node."""
    members = section.ranks if label == "rank" else section.nodes
    for metric in METRICS:
        is_here = prefix.endswith(f".{metric.section.removeprefix('step_')}")
        if not is_here or metric.unit not in UNITS:
            continue
        unit, factor = UNITS[metric.unit]
        name = f"{prefix}.{metric.key.removesuffix('_bytes').removesuffix('_percent')}"
        name = name.removesuffix("_c").removesuffix("_w") + (".ratio" if metric.unit == "percent" else "")
        values = [
            ({label: key}, value * factor)
            for key, member in members.items()
            if (value := member.metrics.get(metric.key)) is not None
        ]
        yield Figure(name, unit, f"{metric.label}: {metric.help}.", values)
