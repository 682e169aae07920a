"""final_summary.txt and the screen: verdict, why, next, then the evidence, in at most 100 columns."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence

from traceml.schema import fmt
from traceml.schema.summary import Finding, MetricStat, Section, Summary

WIDTH = 100
RULE = "-" * WIDTH
LONGEST_NAME = 36
SEVERITY = {"info": "", "warn": "  (warning)", "crit": "  (critical)"}
SECTIONS = (
    ("step_time", "Step time"),
    ("step_memory", "Step memory"),
    ("system", "System"),
    ("process", "Process"),
)


def render(summary: Summary) -> str:
    """The whole text, ending in a newline."""
    lines = [RULE, *_head(summary), RULE, *_verdict(summary)]
    lines += ["", *_step_time(summary)]
    lines += ["", *_memory(summary), "", *_gauges(summary, "system", "System")]
    lines += ["", *_gauges(summary, "process", "Process")]
    if summary.run.notes:
        lines += ["", "Notes"]
        for note in summary.run.notes:
            lines += _wrapped("- ", note, indent=2)
    lines += ["", *_foot(summary), RULE]
    return "\n".join(_cut(_printable(line), WIDTH).rstrip() for line in lines) + "\n"


def _printable(text: str) -> str:
    """Names and reasons are other people's: nothing in them may move the cursor or break a line."""
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() else " " if ch.isspace() else "?" for ch in text)


def _columns(text: str) -> int:
    """Columns on a screen: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(ch) in "WF" for ch in text)
    return len(text) + wide - sum(unicodedata.combining(ch) != 0 for ch in text)


def _cut(text: str, columns: int) -> str:
    """The text, or as much of it as fits with an ellipsis."""
    if _columns(text) <= columns:
        return text
    while _columns(text) >= columns:
        text = text[: -max(1, (_columns(text) - columns) // 2)]
    return text + "…"


def _spread(left: str, right: str) -> str:
    """One line: the left part cut where it would run into the right one."""
    right = _cut(_printable(right), WIDTH * 2 // 3)
    left = _cut(_printable(left), WIDTH - 2 - _columns(right))
    return left + " " * (WIDTH - _columns(left) - _columns(right)) + right


def _wrapped(label: str, text: str, indent: int = 0) -> list[str]:
    lead = " " * indent + label
    text = _printable(text)
    # With wide characters in it, half as many are sure to fit.
    wide = _columns(text) > len(text)
    return textwrap.wrap(
        text,
        len(lead) + (WIDTH - len(lead)) // 2 if wide else WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=True,
    ) or [lead]


def _head(summary: Summary) -> list[str]:
    run = summary.run
    steps = run.steps.get("total")
    facts = [
        run.status,
        f"{fmt.count(steps)} steps" if steps is not None else "",
        fmt.seconds(run.duration_s) if run.duration_s is not None else "",
        f"{run.world_size} ranks" if run.world_size > 1 else "",
    ]
    right = ", ".join(f for f in facts if f)
    return [_spread(f"TraceML  {run.name}", right)]


def _verdict(summary: Summary) -> list[str]:
    first = summary.primary_diagnosis
    lines = [f"Verdict  {first.status}{SEVERITY.get(first.severity, '')}"]
    lines += _wrapped("Why      ", first.summary)
    lines += _wrapped("Next     ", first.action)
    if first.potential_speedup is not None:
        gain = f"up to {fmt.factor(first.potential_speedup)} as fast ({first.potential_how})"
        lines += _wrapped("Gain     ", gain)
    if summary.run.status not in ("completed", "running"):
        code = summary.run.exit_code
        reason = summary.run.reason or "no reason recorded"
        ended = f"{summary.run.status}: {reason}" + (f" (exit code {code})" if code is not None else "")
        lines += _wrapped("Ended    ", ended)
    return lines


def _title(title: str, section: Section, right: str = "") -> list[str]:
    found = section.diagnosis
    return [_spread(f"{title:<13}{found.status}{SEVERITY.get(found.severity, '')}", right)]


def _others(summary: Summary, name: str) -> list[str]:
    """Every finding of a section that the verdict above has not said already."""
    section: Section = getattr(summary, name)
    first = summary.primary_diagnosis
    lines: list[str] = []
    for finding in section.issues:
        if (first.section, first.kind) != (name, finding.kind):
            lines += _finding(finding, first=finding is section.issues[0])
    return lines


def _finding(finding: Finding, first: bool) -> list[str]:
    lead = "" if first else f"{finding.status}{SEVERITY.get(finding.severity, '')}: "
    lines = _wrapped("", f"{lead}{finding.summary}", indent=2)
    if finding.severity != "info":
        lines += _wrapped("-> ", finding.action, indent=2)
    return lines


def _step_time(summary: Summary) -> list[str]:
    section = summary.step_time
    window = section.window
    span = ""
    if window.get("num_steps"):
        first, last = (fmt.plain(window.get(key)) for key in ("start_step", "end_step"))
        span = f"steps {first} to {last}, {window.get('clock') or 'unknown'} clock"
    lines = _title("Step time", section, span)
    lines += _others(summary, "step_time")
    if not window.get("num_steps"):
        return lines
    labels = {row["key"]: row for row in summary.catalog if row["section"] == "step_time"}
    many = summary.run.world_size > 1
    head = ["", "Mean", "Share", "p5", "p95"]
    if many:
        head = ["", "Median", "Worst", "Worst rank", "Skew", "Share"]
    table = [head]
    step = section.metrics.get("step_ms", MetricStat()).median.value or 0.0
    for key, stat in section.metrics.items():
        row = labels.get(key, {"label": key, "unit": "ms"})
        if row["unit"] != "ms" or stat.median.value is None or not _says_something(key, stat, step):
            continue
        table.append([row["label"], *_time_cells(stat, many)])
    lines += _table(table)
    rates = [
        f"{labels[k]['label'].lower()} {fmt.rate(section.metrics[k].average)}"
        for k in ("samples_per_s", "tokens_per_s")
        if k in labels and k in section.metrics and section.metrics[k].average is not None
    ]
    if rates:
        lines.append("  " + ", ".join(rates))
    return lines


ALWAYS = (
    "step_ms",
    "input_ms",
    "forward_ms",
    "backward_ms",
    "optimizer_ms",
    "wait_ms",
    "compute_ms",
)


WORTH_A_ROW = 0.001


def _says_something(key: str, stat: MetricStat, step_ms: float) -> bool:
    """Whether any rank spends a notable part of a step on it."""
    return key in ALWAYS or max(stat.median.value or 0.0, stat.worst.value or 0.0) >= WORTH_A_ROW * step_ms


def _time_cells(stat: MetricStat, many: bool) -> list[str]:
    share = fmt.share(stat.share) if stat.share is not None else ""
    if many:
        return [
            fmt.ms(stat.median.value),
            fmt.ms(stat.worst.value),
            fmt.rank(stat.worst.rank),
            fmt.skew(stat.skew),
            share,
        ]
    return [fmt.ms(stat.average), share, fmt.ms(stat.p5), fmt.ms(stat.p95)]


def _table(rows: Sequence[Sequence[str]], indent: int = 2) -> list[str]:
    """Left-aligned names, right-aligned numbers."""
    names = [_cut(_printable(row[0]), LONGEST_NAME) for row in rows]
    first = max(12, *(_columns(name) for name in names))
    widths = [max(9, *(len(row[i]) for row in rows)) + 2 for i in range(1, len(rows[0]))]
    return [
        " " * indent
        + name
        + " " * (first - _columns(name))
        + "".join(cell.rjust(width) for cell, width in zip(row[1:], widths, strict=True))
        for name, row in zip(names, rows, strict=True)
    ]


def _memory(summary: Summary) -> list[str]:
    section = summary.step_memory
    kind = {"device": "device memory", "rss": "resident memory (no accelerator)"}
    lines = _title("Step memory", section, kind.get(str(section.window.get("memory")), ""))
    lines += _others(summary, "step_memory")
    labels = {row["key"]: row["label"] for row in summary.catalog if row["section"] == "step_memory"}
    table = [["", "Median peak", "Worst peak", "Worst rank", "Skew"]]
    for key, stat in section.metrics.items():
        if stat.worst.value is not None:
            table.append(
                [
                    labels.get(key, key),
                    fmt.size(stat.median.value),
                    fmt.size(stat.worst.value),
                    fmt.rank(stat.worst.rank),
                    fmt.share(stat.skew),
                ]
            )
    if len(table) > 1:
        lines += _table(table)
        lines.append(
            f"  Head/tail delta (worst rank): {fmt.size(section.window.get('head_tail_delta_bytes'))}"
        )
    return lines


def _gauges(summary: Summary, name: str, title: str) -> list[str]:
    section: Section = getattr(summary, name)
    samples = section.window.get("samples") or 0
    lines = _title(title, section, f"{samples} samples" if samples else "")
    lines += _others(summary, name)
    rows = {row["key"]: row for row in summary.catalog if row["section"] == name}
    members = len(section.nodes) + len(section.ranks)
    letter, noun = ("node ", "Worst node") if section.nodes else ("r", "Worst rank")
    table = [["", "Mean", "p95", *(("Worst", noun) if members > 1 else ())]]
    for key, stat in section.metrics.items():
        if stat.average is not None and key in rows:
            show = fmt.BY_UNIT.get(rows[key]["unit"], fmt.count)
            worst = (show(stat.worst.value), f"{letter}{stat.worst.rank}") if members > 1 else ()
            table.append([rows[key]["label"], show(stat.average), show(stat.p95), *worst])
    return lines + (_table(table) if len(table) > 1 else [])


def _foot(summary: Summary) -> list[str]:
    lines = []
    env = summary.environment
    facts = [
        f"torch {env['torch']}" if env.get("torch") else "",
        f"Python {env['python']}" if env.get("python") else "",
        str(env.get("device_name") or env.get("device") or ""),
        f"batch {env['batch_size']}" if env.get("batch_size") else "",
        f"git {str(env['git_commit'])[:10]}{' (dirty)' if env.get('git_dirty') else ''}"
        if env.get("git_commit")
        else "",
    ]
    lines += _wrapped("", ", ".join(f for f in facts if f)) if any(facts) else []
    cost = summary.overhead.get("us_per_step")
    if cost is not None:
        share = fmt.share(summary.overhead.get("share"))
        lines.append(f"TraceML's own cost: {cost:.1f} µs a step ({share} of step time)")
    return lines
