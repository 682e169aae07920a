"""The figures of a run that monitoring systems get: a name, a unit, and a value for each set of labels.

Names and units are OpenTelemetry's, in base units; the Prometheus names follow from them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from traceml.schema.catalog import METRICS
from traceml.schema.live import Live
from traceml.schema.summary import Section

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
    values: list[tuple[Labels, float]]
    is_total: bool = False  # it only grows


def figures_of(live: Live) -> list[Figure]:
    """Every figure that is known."""
    summary, run, primary = live.summary, live.summary.run, live.summary.primary_diagnosis
    about = {"status": run.status, "state": live.state, "world_size": str(run.world_size)}
    verdict = {"diagnosis": primary.status, "severity": primary.severity, "phase": primary.phase or ""}
    verdict["ranks"] = ",".join(map(str, primary.ranks))
    times = [
        ({"rank": rank, "phase": key.removesuffix("_ms")}, value * 1e-3)
        for rank, member in summary.step_time.ranks.items()
        for key, value in member.metrics.items()
        if value is not None and key.endswith("_ms")
    ]
    skews = [
        ({"phase": key.removesuffix("_ms")}, metric.skew)
        for key, metric in summary.step_time.metrics.items()
        if metric.skew is not None and key.endswith("_ms")
    ]
    duration = "Mean time per step of each rank in each phase; phase `step` is the whole step."
    skew = "How far the worst rank is above the median rank, as a share of the latter."
    speedup = "How many times as fast the run could be."
    found = [
        Figure("traceml.run", "", "Always 1; its labels say which run this is.", [(about, 1.0)]),
        Figure("traceml.steps", "", "Completed steps.", _one(float(run.steps.total or 0)), is_total=True),
        Figure("traceml.quiet", "s", "Time since the last completed step.", _one(live.quiet_s)),
        Figure("traceml.steps_per_second", "", "Steps per second, lately.", _one(live.steps_per_s)),
        Figure("traceml.verdict", "", "1 for the diagnosis that holds now.", [(verdict, 1.0)]),
        Figure("traceml.potential_speedup", "1", speedup, _one(primary.potential_speedup)),
        Figure("traceml.phase.duration", "s", duration, times),
        Figure("traceml.phase.skew", "1", skew, skews),
        *_by_member("traceml.memory", summary.step_memory, "rank"),
        *_by_member("traceml.process", summary.process, "rank"),
        *_by_member("traceml.system", summary.system, "node"),
    ]
    return [figure for figure in found if figure.values]


def _one(value: float | None) -> list[tuple[Labels, float]]:
    return [] if value is None else [({}, value)]


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
