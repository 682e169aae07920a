"""Reads a summary of the released TraceML package (`schema_version` 1.x) as a Summary of ours.

Such a file has four sections with `diagnosis`, `issues`, `global.{average, median, worst, window}` and
`groups.rows`. It has no block means, so a comparison has averages only. Older files have other names for
phases, and their step time leaves out the wait for input; the sum of the phases shows whether it does.
"""

import statistics
from dataclasses import fields
from typing import Any, Final, TypeVar

import msgspec

from traceml.schema import summary as ours
from traceml.schema.catalog import METRICS

T = TypeVar("T")

NEWEST_KNOWN: Final = 1.9
SECTIONS: Final = ("step_time", "step_memory", "system", "process")
CLOSES: Final = 0.02
"""Phases add up to a step if their sum differs from it by at most this share."""

THEIR_NAMES: Final = {
    "step_ms": ("step_time_ms", "total_step_ms", "step_ms"),
    "input_ms": ("input_wait_ms", "dataloader_ms", "dataloader_fetch_ms", "input_ms"),
    "wait_ms": ("residual_ms", "wait_ms", "wait_proxy_ms"),
    "peak_allocated_bytes": ("peak_allocated_bytes", "peak_allocated"),
    "peak_reserved_bytes": ("peak_reserved_bytes", "peak_reserved"),
    "rss_bytes": ("ram_bytes", "rss_bytes"),
}
"""Names that a metric has had; the first that is there counts. The others have our name."""


class _Facts(msgspec.Struct):
    """The fields of all small objects (meta, window, identity, ...) in one type; each object has a few."""

    run_name: str = ""
    mode: str = ""
    status: str = "unknown"
    world_size: int | None = None
    expected_world_size: int | None = None
    nodes_observed: int = 1
    training_total_steps: int | None = None
    start_step: int | None = None
    end_step: int | None = None
    steps_analyzed: int | None = None
    samples: int | None = None
    diagnosis_clock: str = ""
    node_rank: int | None = None
    local_rank: int | None = None
    hostname: str | None = None


class _Value(msgspec.Struct):
    value: float | None = None
    idx: str = ""


class _Global(msgspec.Struct):
    window: _Facts = msgspec.field(default_factory=_Facts)
    average: dict[str, float] = {}
    median: dict[str, _Value] = {}
    worst: dict[str, _Value] = {}


class _Row(msgspec.Struct):
    identity: _Facts = msgspec.field(default_factory=_Facts)
    metrics: dict[str, float] = {}


class _Groups(msgspec.Struct):
    by: str = ""
    rows: dict[str, _Row] = {}


class _Section(msgspec.Struct):
    metadata: _Facts = msgspec.field(default_factory=_Facts)
    diagnosis: ours.Finding = msgspec.field(default_factory=ours.Finding)
    issues: list[ours.Finding] = []
    overall: _Global = msgspec.field(default_factory=_Global, name="global")
    groups: _Groups = msgspec.field(default_factory=_Groups)


class File(msgspec.Struct):
    """All of it that we read."""

    generated_at: str | None = None
    duration_s: float | None = None
    meta: _Facts = msgspec.field(default_factory=_Facts)
    run_context: dict[str, _Facts] = {}
    primary_diagnosis: ours.Primary = msgspec.field(default_factory=ours.Primary)
    step_time: _Section = msgspec.field(default_factory=_Section)
    step_memory: _Section = msgspec.field(default_factory=_Section)
    system: _Section = msgspec.field(default_factory=_Section)
    process: _Section = msgspec.field(default_factory=_Section)


def is_released(data: dict[str, Any]) -> bool:
    """Whether this looks like a summary of the released package, however old."""
    return any(isinstance(data.get(name), dict) for name in SECTIONS) and "schema" not in data


def version(data: dict[str, Any]) -> float:
    """`schema_version`; a file without one is old."""
    found = data.get("schema_version")
    try:
        return float(found) if isinstance(found, (str, int, float)) else 0.0
    except (ValueError, OverflowError):
        return 0.0


def convert(file: File, number: float) -> ours.Summary:
    """The whole file, as far as it goes."""
    step_time = _section(file.step_time, "step_time")
    context = {key: file.run_context.get(key, _Facts()) for key in ("run", "execution")}
    world = file.meta.world_size or context["execution"].expected_world_size
    steps = step_time.window.num_steps
    primary = file.primary_diagnosis
    if primary == ours.Primary():  # that of the step time is nearest to it
        nearest = {f.name: getattr(step_time.diagnosis, f.name) for f in fields(ours.Finding)}
        primary = ours.Primary(**nearest)
    return ours.Summary(
        run=ours.Run(
            name=file.meta.run_name,
            status=context["run"].status,
            reason="how the run ended is not in this file",
            ended_at=file.generated_at,
            duration_s=file.duration_s,
            nodes=file.meta.nodes_observed,
            world_size=world or max(len(step_time.ranks), 1),
            steps=ours.StepCounts(
                total=file.step_time.metadata.training_total_steps or steps, analyzed=steps
            ),
            mode=file.meta.mode,
            notes=[f"Written by the released TraceML package (schema {number:g})."],
        ),
        primary_diagnosis=primary,
        step_time=step_time,
        step_memory=_section(file.step_memory, "step_memory"),
        system=_section(file.system, "system"),
        process=_section(file.process, "process"),
        schema=f"released/{number:g}",
        environment=ours.Environment(world_size=world),
    )


def _section(given: _Section, name: str) -> ours.Section:
    overall, keys = given.overall, [metric.key for metric in METRICS if metric.section == name]
    average = _renamed(overall.average, keys)
    median, worst = _renamed(overall.median, keys), _renamed(overall.worst, keys)
    rows = {key: row for key, row in given.groups.rows.items() if _is_index(key)}
    numbers = {key: _renamed(row.metrics, keys) for key, row in rows.items()}
    _add_input(average, [*numbers.values()], [median, worst])
    metrics, members = {}, {}
    for key in keys:
        middle, most = (
            ours.RankValue(value.value, int(value.idx) if _is_index(value.idx) else None)
            for value in (median.get(key, _Value()), worst.get(key, _Value()))
        )
        skew = most.value / middle.value - 1 if most.value is not None and middle.value else None
        share = _share(key, average, [*numbers.values()]) if key.endswith("_ms") else None
        metrics[key] = ours.MetricStat(average.get(key), middle, most, skew=skew, share=share)
    for index, row in rows.items():
        who = row.identity
        identity = ours.Identity(node_rank=who.node_rank, local_rank=who.local_rank, host=who.hostname)
        members[index] = ours.Member(identity, {key: numbers[index].get(key) for key in keys})
    by_node = given.groups.by == "node_rank"
    return ours.Section(
        diagnosis=given.diagnosis,
        issues=given.issues,
        window=_window(overall.window, name, has_memory="peak_allocated_bytes" in average),
        metrics=metrics,
        ranks={} if by_node else members,
        nodes=members if by_node else {},
    )


def _renamed(values: dict[str, T], keys: list[str]) -> dict[str, T]:
    """The values that are there, under our keys."""
    found = {key: next((n for n in THEIR_NAMES.get(key, (key,)) if n in values), None) for key in keys}
    return {key: values[name] for key, name in found.items() if name is not None}


def _window(window: _Facts, name: str, has_memory: bool) -> ours.SectionWindow:
    if name in ("system", "process"):
        return ours.SectionWindow(samples=window.samples)
    clock = {"cpu": "host", "gpu": "device"}.get(window.diagnosis_clock, window.diagnosis_clock or "unknown")
    return ours.SectionWindow(
        start_step=window.start_step,
        end_step=window.end_step,
        num_steps=window.steps_analyzed,
        clock=clock if name == "step_time" else None,
        memory="device" if has_memory else None,
    )


def _is_index(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) < 10


def _add_input(
    average: dict[str, float], ranks: list[dict[str, float]], values: list[dict[str, _Value]]
) -> None:
    """Count the wait for input in the step time, if the other phases add up to that without it only."""
    step_ms, input_ms = average.get("step_ms"), average.get("input_ms")
    if not step_ms or not input_ms or "compute_ms" not in average:
        return
    rest = sum(average.get(key, 0.0) for key in ("compute_ms", "h2d_ms", "wait_ms"))
    if not abs(rest - step_ms) <= CLOSES * step_ms < abs(rest + input_ms - step_ms):
        return
    for numbers in (average, *ranks):
        numbers["step_ms"] = numbers.get("step_ms", 0.0) + numbers.get("input_ms", 0.0)
    for stat in values:
        step, fetch = stat.get("step_ms", _Value()), stat.get("input_ms", _Value())
        if step.value is not None:
            step.value += fetch.value or 0.0


def _share(key: str, average: dict[str, float], ranks: list[dict[str, float]]) -> float | None:
    """Median of the ranks' shares of step time; if no rank has one, the share of the averages."""
    for group in (ranks, [average]):
        shares = [one[key] / one["step_ms"] for one in group if key in one and one.get("step_ms")]
        if shares:
            return statistics.median(shares)
    return None
