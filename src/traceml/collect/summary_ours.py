"""final_summary.json of this package, any version of it, as a Summary: what is missing stays missing.

The dataclasses of the schema say what is expected where; TYPED says it for the free-form parts of which
readers need certain keys.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any, Final, TypeVar

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
SIGNED: Final = frozenset({"skew", "score", "accounting", "totals"})
"""Numbers that may be negative; all others are times, sizes or counts."""

T = TypeVar("T")
Read = Callable[[Fields, str], Any]
WHOLE, AMOUNT, TEXT = Fields.whole, Fields.amount, Fields.text
TYPED: Final[dict[str, dict[str, Read]]] = {
    "ranks": dict.fromkeys(("seen", "used", "lost"), Fields.indices),
    "steps": {**dict.fromkeys(("total", "analyzed", "warmup"), WHOLE), "first_step_ms": AMOUNT},
    "window": {
        **dict.fromkeys(("start_step", "end_step", "num_steps", "warmup_steps"), WHOLE),
        **dict.fromkeys(("samples", "loader_workers"), WHOLE),
        **dict.fromkeys(("clock", "memory"), TEXT),
        **dict.fromkeys(("capacity_bytes", "first_step_ms"), AMOUNT),
        "head_tail_delta_bytes": Fields.number,
    },
    "identity": {"node_rank": WHOLE},
    "blocks": {
        "steps_per_block": lambda blocks, key: blocks.whole(key) or 0,
        "start_steps": Fields.indices,
        "metrics": lambda blocks, key: _values(blocks.inner(key), Fields.numbers),
    },
    "environment": {
        **dict.fromkeys(("host", "os", "python", "torch", "device", "device_name", "git_commit"), TEXT),
        **dict.fromkeys(("batch_size", "micro_batches", "world_size", "cpu_count", "torch_threads"), WHOLE),
        "git_dirty": Fields.flag,
        "packages": lambda given, key: {k: str(v) for k, v in plain(given.inner(key).data).items()},
    },
    "overhead": {"us_per_step": AMOUNT, "share": AMOUNT},
}
ALWAYS: Final = frozenset({"ranks", "steps", "blocks", "overhead"})
"""Parts whose keys are there for every reader, empty or None where the file has nothing."""


def is_ours(data: dict[str, Any]) -> bool:
    """Whether this is a summary that we wrote."""
    return isinstance(data.get("schema"), str) and data["schema"].startswith("traceml.summary/")


def version(data: dict[str, Any]) -> int:
    """The schema's number; one that cannot be read counts as newer than ours."""
    number = re.fullmatch(r"traceml\.summary/(\d{1,6})(\..*)?", data["schema"])
    return int(number[1]) if number else VERSION + 1


def convert(given: Fields) -> Summary:
    """The whole file."""
    summary = filled(Summary, given)
    run = replace(summary.run, status=summary.run.status or "unknown")
    return replace(summary, run=run, schema=summary.schema or SCHEMA)


def filled(shape: Callable[..., T], given: Fields) -> T:
    """A dataclass of the schema from the object that should hold its fields."""
    return shape(**{key: read(given, key) for key, read in _readers(shape)})


@cache
def _readers(shape: Any) -> tuple[tuple[str, Read], ...]:
    hints = typing.get_type_hints(shape)
    return tuple((f.name, _reader(f.name, hints[f.name], f.default)) for f in fields(shape))


def _reader(key: str, hint: Any, default: Any) -> Read:
    """How a value of this type is read."""
    number = Fields.number if key in SIGNED else Fields.amount
    simple: dict[Any, Read] = {
        str: lambda given, key: given.text(key) or "",
        int: lambda given, key: given.whole(key) or default,
        float: lambda given, key: number(given, key) or default,
        bool: lambda given, key: default if given.flag(key) is None else given.flag(key),
        str | None: Fields.text,
        int | None: Fields.whole,
        float | None: number,
        list[int]: Fields.indices,
        list[str]: Fields.texts,
        list[Finding]: lambda given, key: [finding(one) for one in given.objects(key)],
        list[dict[str, Any]]: lambda given, key: [plain(one.data) for one in given.objects(key)],
        list[dict[str, str]]: lambda given, key: _catalog(given.objects(key)),
        dict[str, Any]: _free,
        dict[str, float | None]: lambda given, key: _values(given.inner(key), number),
        dict[str, Member]: lambda given, key: {
            index: filled(Member, one) for index, one in given.inner(key).each() if is_index(index)
        },
        dict[str, MetricStat]: lambda given, key: {
            name: filled(MetricStat, one) for name, one in given.inner(key).each()
        },
        Run: lambda given, key: filled(Run, given.inner(key)),
        RankValue: lambda given, key: filled(RankValue, given.inner(key)),
        Finding: lambda given, key: finding(given.inner(key)),
        Section: lambda given, key: section(given.inner(key)),
        Primary: lambda given, key: primary(given.inner(key)),
    }
    return simple[hint]


def _free(given: Fields, key: str) -> dict[str, Any]:
    """A free-form part: as it is, but for the keys that readers rely on."""
    part, typed = given.inner(key), TYPED.get(key, {})
    known = {name: read(part, name) for name, read in typed.items() if name in part.data or key in ALWAYS}
    return {**plain(part.data), **known}


def _values(given: Fields, read: Read) -> dict[str, Any]:
    return {clean(key)[:100]: read(given, key) for key in given.data}


def finding(given: Fields) -> Finding:
    """A finding, under our names."""
    found = filled(Finding, given)
    kind, status = named(found.kind, found.status)
    summary = found.summary or given.text("reason") or ""
    return replace(found, kind=kind, status=status, severity=found.severity or INFO, summary=summary)


def primary(given: Fields) -> Primary:
    """The run's own diagnosis: a finding, where it comes from, and what mending it would bring."""
    if not given.data:
        return Primary(summary="The summary names no diagnosis.")
    first, found = finding(given), filled(Primary, given)
    said = {name: getattr(first, name) for name in ("kind", "status", "severity", "summary")}
    return replace(found, **said, section=found.section or "step_time")


def named(kind: str, status: str) -> tuple[str, str]:
    """Our kind and label for what another version may call differently."""
    if status in STATUSES:
        return STATUSES[status]
    if kind in KINDS:
        return KINDS[kind]
    if not kind and not status:
        return NO_DATA.kind, NO_DATA.status
    return kind or status.replace(" ", "_").replace("-", "_"), status or kind.replace("_", " ")


def section(given: Fields) -> Section:
    """One of the four sections; a missing one says NO DATA."""
    found = filled(Section, given)
    if "diagnosis" not in given:
        found = replace(found, diagnosis=found.issues[0] if found.issues else NO_DATA)
    return replace(found, issues=found.issues or [found.diagnosis])


def is_index(key: str) -> bool:
    """Whether a member's key is a rank or a node."""
    return key.isascii() and key.isdigit() and len(key) < 10


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
