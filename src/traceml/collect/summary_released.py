"""A summary written by the released TraceML package (`schema_version` 1.x) as a Summary of ours.

Its facts, as the samples show them: four sections with `diagnosis`, `issues`, `global.{average,
median, worst, window}` and `groups.rows`. It has no block means, so a comparison has averages
only. Older files name phases differently, and their step time leaves out the wait for input;
which of the two a file means is told by what its phases add up to.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, replace
from typing import Any, Final

from traceml.collect.fields import Fields
from traceml.collect.summary_ours import is_index, our_catalog, primary, section
from traceml.schema.summary import Member, MetricStat, Primary, RankValue, Run, Section, Summary

NEWEST_KNOWN: Final = 1.9
SECTIONS: Final = ("step_time", "step_memory", "system", "process")
CLOSES: Final = 0.02
"""Phases add up to a step when no more than this share of it is missing or too much."""

RENAMED: Final[dict[str, tuple[tuple[str, tuple[str, ...]], ...]]] = {
    "step_time": (
        ("step_ms", ("step_time_ms", "total_step_ms", "step_ms")),
        ("input_ms", ("input_wait_ms", "dataloader_ms", "dataloader_fetch_ms", "input_ms")),
        ("h2d_ms", ("h2d_ms",)),
        ("forward_ms", ("forward_ms",)),
        ("backward_ms", ("backward_ms",)),
        ("optimizer_ms", ("optimizer_ms",)),
        ("wait_ms", ("residual_ms", "wait_ms", "wait_proxy_ms")),
        ("compute_ms", ("compute_ms",)),
    ),
    "step_memory": (
        ("peak_allocated_bytes", ("peak_allocated_bytes", "peak_allocated")),
        ("peak_reserved_bytes", ("peak_reserved_bytes", "peak_reserved")),
    ),
    "system": tuple(
        (key, (key,))
        for key in (
            "cpu_percent",
            "ram_bytes",
            "ram_percent",
            "gpu_util_percent",
            "gpu_mem_bytes",
            "gpu_mem_percent",
            "gpu_temp_c",
            "gpu_power_w",
        )
    ),
    "process": (
        ("cpu_percent", ("cpu_percent",)),
        ("rss_bytes", ("ram_bytes", "rss_bytes")),
        ("gpu_mem_used_bytes", ("gpu_mem_used_bytes",)),
        ("gpu_mem_reserved_bytes", ("gpu_mem_reserved_bytes",)),
    ),
}
"""Our key, and the names that it has had; the first that is there counts."""


def is_released(data: dict[str, Any]) -> bool:
    """Whether this looks like a summary of the released package, however old."""
    return any(isinstance(data.get(name), dict) for name in SECTIONS) and "schema" not in data


def version(data: dict[str, Any]) -> float:
    """`schema_version`; a file without one is old."""
    found = data.get("schema_version")
    if isinstance(found, str):
        try:
            return float(found)
        except ValueError:
            return 0.0
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else 0.0


def convert(fields: Fields, number: float) -> Summary:
    """The whole file, as far as it goes."""
    sections = {name: _section(fields.inner(name), name) for name in SECTIONS}
    meta, context = fields.inner("meta"), fields.inner("run_context")
    world = meta.whole("world_size") or context.inner("execution").whole("expected_world_size")
    steps = sections["step_time"].window.get("num_steps")
    metadata = fields.inner("step_time").inner("metadata")
    return Summary(
        run=Run(
            name=meta.text("run_name") or "",
            status=context.inner("run").text("status") or "unknown",
            reason="how the run ended is not in this file",
            ended_at=fields.text("generated_at"),
            duration_s=fields.amount("duration_s"),
            nodes=meta.whole("nodes_observed") or 1,
            world_size=world or max(len(sections["step_time"].ranks), 1),
            steps={"total": metadata.whole("training_total_steps") or steps, "analyzed": steps},
            mode=meta.text("mode") or "",
            notes=[f"Written by the released TraceML package (schema {number:g})."],
        ),
        primary_diagnosis=_primary(fields, sections["step_time"]),
        step_time=sections["step_time"],
        step_memory=sections["step_memory"],
        system=sections["system"],
        process=sections["process"],
        schema=f"released/{number:g}",
        environment={"world_size": world} if world else {},
        catalog=our_catalog(),
    )


def _primary(fields: Fields, step_time: Section) -> Primary:
    """Files without a primary diagnosis have the step time's as the nearest thing."""
    given = fields.inner("primary_diagnosis")
    return primary(given) if given.data else Primary(**asdict(step_time.diagnosis))


def _section(fields: Fields, name: str) -> Section:
    overall, rows = fields.inner("global"), fields.inner("groups").inner("rows")
    members = {key: _member(f, name) for key, f in rows.each() if is_index(key)}
    metrics = {key: _stat(overall, names) for key, names in RENAMED[name]}
    if name == "step_time":
        metrics = _whole_step(metrics, members)
    by_node = fields.inner("groups").text("by") == "node_rank"
    return replace(
        section(fields),
        window=_window(overall.inner("window"), name, metrics),
        metrics=metrics,
        ranks={} if by_node else members,
        nodes=members if by_node else {},
    )


def _window(window: Fields, name: str, metrics: dict[str, MetricStat]) -> dict[str, Any]:
    if name in ("system", "process"):
        return {"samples": window.whole("samples")}
    known: dict[str, Any] = {
        "start_step": window.whole("start_step"),
        "end_step": window.whole("end_step"),
        "num_steps": window.whole("steps_analyzed"),
    }
    if name == "step_time":
        clock = window.text("diagnosis_clock")
        known["clock"] = {"cpu": "host", "gpu": "device"}.get(clock or "", clock or "unknown")
    elif metrics["peak_allocated_bytes"].average is not None:
        known["memory"] = "device"
    return known


def _present(fields: Fields, names: tuple[str, ...]) -> str:
    return next((n for n in names if n in fields), names[0])


def _stat(overall: Fields, names: tuple[str, ...]) -> MetricStat:
    average, median, worst = (overall.inner(key) for key in ("average", "median", "worst"))
    typical = _rank_value(median.inner(_present(median, names)))
    slowest = _rank_value(worst.inner(_present(worst, names)))
    skew = slowest.value / typical.value - 1 if slowest.value is not None and typical.value else None
    return MetricStat(
        average=average.amount(_present(average, names)), median=typical, worst=slowest, skew=skew
    )


def _rank_value(fields: Fields) -> RankValue:
    index = fields.data.get("idx")
    rank = int(index) if isinstance(index, str) and is_index(index) else None
    return RankValue(fields.amount("value"), rank)


def _member(fields: Fields, name: str) -> Member:
    metrics, identity = fields.inner("metrics"), fields.inner("identity")
    return Member(
        identity={
            "node_rank": identity.whole("node_rank"),
            "local_rank": identity.whole("local_rank"),
            "hostname": identity.text("hostname"),
        },
        metrics={key: metrics.amount(_present(metrics, names)) for key, names in RENAMED[name]},
    )


def _whole_step(metrics: dict[str, MetricStat], members: dict[str, Member]) -> dict[str, MetricStat]:
    """Step time with the wait for input in it, and each metric's share of it."""
    if _leaves_out_input(metrics):
        metrics = {**metrics, "step_ms": _sum(metrics["step_ms"], metrics["input_ms"])}
        for key, member in members.items():
            own = member.metrics
            members[key] = replace(
                member,
                metrics={**own, "step_ms": (own["step_ms"] or 0.0) + (own["input_ms"] or 0.0)},
            )
    return {key: replace(stat, share=_share(key, stat, metrics, members)) for key, stat in metrics.items()}


def _leaves_out_input(metrics: dict[str, MetricStat]) -> bool:
    value = {key: stat.average for key, stat in metrics.items()}
    step, fetch = value["step_ms"], value["input_ms"]
    if not step or not fetch or value["compute_ms"] is None:
        return False
    rest = value["compute_ms"] + (value["h2d_ms"] or 0.0) + (value["wait_ms"] or 0.0)
    return abs(rest - step) <= CLOSES * step < abs(rest + fetch - step)


def _sum(one: MetricStat, other: MetricStat) -> MetricStat:
    def total(a: float | None, b: float | None) -> float | None:
        return None if a is None else a + (b or 0.0)

    return replace(
        one,
        average=total(one.average, other.average),
        median=replace(one.median, value=total(one.median.value, other.median.value)),
        worst=replace(one.worst, value=total(one.worst.value, other.worst.value)),
    )


def _share(
    key: str, stat: MetricStat, metrics: dict[str, MetricStat], members: dict[str, Member]
) -> float | None:
    """Median of the ranks' shares; the share of averages when there are no ranks."""
    shares = [
        value / step
        for value, step in ((m.metrics.get(key), m.metrics.get("step_ms")) for m in members.values())
        if value is not None and step
    ]
    if shares:
        return statistics.median(shares)
    whole = metrics["step_ms"].average
    return stat.average / whole if stat.average is not None and whole else None
