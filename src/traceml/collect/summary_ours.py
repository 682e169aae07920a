"""final_summary.json of this package, any version of it, as a Summary: what is missing stays
missing.
"""

from __future__ import annotations

import re
from typing import Any, Final

from traceml.collect.fields import Fields, clean
from traceml.schema import catalog, fmt
from traceml.schema.summary import (
    INFO,
    SCHEMA,
    Finding,
    Member,
    MetricStat,
    Primary,
    RankValue,
    Run,
    Section,
    Summary,
)

VERSION: Final = int(SCHEMA.rpartition("/")[2])
NO_DATA: Final = Finding("NO_DATA", "NO DATA", INFO, "The summary has no such section.", "")
KINDS: Final = {
    "RESIDUAL_HEAVY": ("WAIT_HEAVY", "WAIT-HEAVY"),
    "WAIT_HEAVY": ("WAIT_HEAVY", "WAIT-HEAVY"),
    "CREEP_EARLY": ("CREEP_EARLY", "MEMORY RISING"),
    "MEMORY_CREEP_EARLY": ("CREEP_EARLY", "MEMORY RISING"),
}
"""Kinds that other versions and the released tool spell differently: our kind and our label."""
STATUSES: Final = {
    "RESIDUAL-HEAVY": ("WAIT_HEAVY", "WAIT-HEAVY"),
    "MEMORY CREEP (EARLY)": ("CREEP_EARLY", "MEMORY RISING"),
}


def is_ours(data: dict[str, Any]) -> bool:
    """Whether this is a summary that we wrote."""
    return isinstance(data.get("schema"), str) and data["schema"].startswith("traceml.summary/")


def version(data: dict[str, Any]) -> int:
    """The schema's number; one that cannot be read counts as newer than ours."""
    number = re.fullmatch(r"traceml\.summary/(\d{1,6})(\..*)?", data["schema"])
    return int(number[1]) if number else VERSION + 1


def convert(fields: Fields) -> Summary:
    """The whole file."""
    final = fields.flag("final")
    return Summary(
        run=_run(fields.inner("run")),
        primary_diagnosis=_primary(fields.inner("primary_diagnosis")),
        step_time=section(fields.inner("step_time")),
        step_memory=section(fields.inner("step_memory")),
        system=section(fields.inner("system")),
        process=section(fields.inner("process")),
        schema=fields.text("schema") or SCHEMA,
        final=final is not False,
        series=plain(fields.inner("series").data),
        blocks=_blocks(fields.inner("blocks")),
        events=[plain(e.data) for e in fields.objects("events")],
        environment=_environment(fields.inner("environment")),
        overhead=_overhead(fields.inner("overhead")),
        catalog=_catalog(fields.objects("catalog")),
    )


def _run(run: Fields) -> Run:
    ranks, steps = run.inner("ranks"), run.inner("steps")
    accounting, totals = run.inner("accounting"), run.inner("totals")
    return Run(
        name=run.text("name") or "",
        status=run.text("status") or "unknown",
        exit_code=run.whole("exit_code"),
        reason=run.text("reason"),
        started_at=run.text("started_at"),
        ended_at=run.text("ended_at"),
        duration_s=run.amount("duration_s"),
        command=run.texts("command"),
        nodes=run.whole("nodes") or 1,
        world_size=run.whole("world_size") or 1,
        ranks={**plain(ranks.data), **{k: ranks.indices(k) for k in ("seen", "used", "lost")}},
        steps={
            **plain(steps.data),
            "total": steps.whole("total"),
            "analyzed": steps.whole("analyzed"),
            "warmup": steps.whole("warmup"),
            "first_step_ms": steps.amount("first_step_ms"),
        },
        mode=run.text("mode") or "",
        accounting={k: accounting.number(k) for k in accounting.data},
        totals={k: totals.number(k) for k in totals.data},
        notes=run.texts("notes"),
    )


def finding(fields: Fields) -> Finding:
    """A finding, under our names."""
    kind, status = named(fields.text("kind"), fields.text("status"))
    return Finding(
        kind=kind,
        status=status,
        severity=fields.text("severity") or INFO,
        summary=fields.text("summary") or fields.text("reason") or "",
        action=fields.text("action") or "",
        score=fields.number("score") or 0.0,
        phase=fields.text("phase"),
        ranks=fields.indices("ranks"),
        evidence=plain(fields.inner("evidence").data),
    )


def named(kind: str | None, status: str | None) -> tuple[str, str]:
    """Our kind and label for what another version may call differently."""
    if status in STATUSES:
        return STATUSES[status]
    if kind in KINDS:
        return KINDS[kind]
    if kind is None and status is None:
        return NO_DATA.kind, NO_DATA.status
    return kind or str(status).replace(" ", "_").replace("-", "_"), status or str(kind).replace("_", " ")


def _primary(fields: Fields) -> Primary:
    if not fields.data:
        return Primary(summary="The summary names no diagnosis.")
    first = finding(fields)
    return Primary(
        kind=first.kind,
        status=first.status,
        severity=first.severity,
        section=fields.text("section") or "step_time",
        summary=first.summary,
        action=first.action,
        score=first.score,
        phase=first.phase,
        ranks=first.ranks,
        potential_speedup=fields.amount("potential_speedup"),
        potential_how=fields.text("potential_how"),
        evidence=first.evidence,
    )


def section(fields: Fields) -> Section:
    """One of the four sections; a missing one says NO DATA."""
    issues = [finding(f) for f in fields.objects("issues")]
    first = finding(fields.inner("diagnosis")) if "diagnosis" in fields else None
    if first is None:
        first = issues[0] if issues else NO_DATA
    return Section(
        diagnosis=first,
        issues=issues or [first],
        window=_window(fields.inner("window")),
        metrics={key: _stat(f) for key, f in fields.inner("metrics").each()},
        ranks={key: _member(f) for key, f in fields.inner("ranks").each() if is_index(key)},
        nodes={key: _member(f) for key, f in fields.inner("nodes").each() if is_index(key)},
    )


def is_index(key: str) -> bool:
    """Whether a member's key is a rank or a node."""
    return key.isascii() and key.isdigit() and len(key) < 10


def _window(fields: Fields) -> dict[str, Any]:
    window = plain(fields.data)
    for key in ("start_step", "end_step", "num_steps", "warmup_steps", "samples", "loader_workers"):
        if key in fields.data:
            window[key] = fields.whole(key)
    for key in ("clock", "memory"):
        if key in fields.data:
            window[key] = fields.text(key)
    for key in ("capacity_bytes", "first_step_ms"):
        if key in fields.data:
            window[key] = fields.amount(key)
    if "head_tail_delta_bytes" in fields.data:
        window["head_tail_delta_bytes"] = fields.number("head_tail_delta_bytes")
    return window


def _stat(fields: Fields) -> MetricStat:
    return MetricStat(
        average=fields.amount("average"),
        median=_rank_value(fields.inner("median")),
        worst=_rank_value(fields.inner("worst")),
        p5=fields.amount("p5"),
        p95=fields.amount("p95"),
        skew=fields.number("skew"),
        share=fields.amount("share"),
    )


def _rank_value(fields: Fields) -> RankValue:
    return RankValue(fields.amount("value"), fields.whole("rank"))


def _member(fields: Fields) -> Member:
    metrics = fields.inner("metrics")
    identity = fields.inner("identity")
    known = plain(identity.data)
    if "node_rank" in identity.data:
        known["node_rank"] = identity.whole("node_rank")
    return Member(identity=known, metrics={clean(k)[:100]: metrics.amount(k) for k in metrics.data})


def _blocks(fields: Fields) -> dict[str, Any]:
    metrics = fields.inner("metrics")
    return {
        "steps_per_block": fields.whole("steps_per_block") or 0,
        "start_steps": fields.indices("start_steps"),
        "metrics": {clean(k)[:100]: metrics.numbers(k) for k in metrics.data},
    }


def _environment(fields: Fields) -> dict[str, Any]:
    known = plain(fields.data)
    for key in ("host", "os", "python", "torch", "device", "device_name", "git_commit"):
        if key in fields.data:
            known[key] = fields.text(key)
    for key in ("batch_size", "micro_batches", "world_size", "cpu_count", "torch_threads"):
        if key in fields.data:
            known[key] = fields.whole(key)
    if "git_dirty" in fields.data:
        known["git_dirty"] = fields.flag("git_dirty")
    known["packages"] = {k: str(v) for k, v in plain(fields.inner("packages").data).items()}
    return known


def _overhead(fields: Fields) -> dict[str, Any]:
    known = plain(fields.data)
    known["us_per_step"] = fields.amount("us_per_step")
    known["share"] = fields.amount("share")
    return known


def our_catalog() -> list[dict[str, str]]:
    """The rows that every summary can be shown with."""
    return [
        {"key": m.key, "label": m.label, "unit": m.unit, "section": m.section, "help": m.help}
        for m in catalog.METRICS
    ]


def _catalog(rows: list[Fields]) -> list[dict[str, str]]:
    found = our_catalog()
    known = {(row["section"], row["key"]) for row in found}
    for row in rows:
        texts = {k: row.text(k) or "" for k in ("key", "label", "unit", "section", "help")}
        if texts["key"] and texts["unit"] in fmt.BY_UNIT and (texts["section"], texts["key"]) not in known:
            known.add((texts["section"], texts["key"]))
            found.append(texts)
    return found


def plain(data: dict[str, Any]) -> dict[str, Any]:
    """A free-form part, safe to show and to write again."""
    return {clean(k): _plain(v, 1) for k, v in data.items()}


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return {clean(str(k)): _plain(v, depth + 1) for k, v in value.items()} if depth < 20 else {}
    if isinstance(value, list):
        return [_plain(v, depth + 1) for v in value] if depth < 20 else []
    return clean(value) if isinstance(value, str) else value
