"""The numbers of the terminal view as lines that fit: a step's time, memory, machine, processes, ranks."""

import re
from collections.abc import Sequence
from typing import Any, Final

from rich.text import Text

from traceml.present.columns import clip, columns, table
from traceml.present.terminal.ink import Ink, line
from traceml.present.text import gauge_rows
from traceml.schema import fmt
from traceml.schema.catalog import GUIDE_LABELS
from traceml.schema.summary import Member, MetricStat, Summary

COLUMNS: Final = ("input_ms", "h2d_ms", "forward_ms", "backward_ms", "sync_ms", "optimizer_ms")
"""Always there, then phases that take time, then Wait* and Step Time."""
NOT_PHASES: Final = ("step_ms", "wait_ms", "compute_ms", "gc_ms")
NOTABLE_SHARE: Final = 0.001
SHOWN_OF_SYSTEM: Final = (
    *("cpu_percent", "ram_bytes", "ram_percent", "cpu_throttled_percent"),
    *("gpu_util_percent", "gpu_mem_bytes", "gpu_temp_c"),
)
"""The rest is in the summary."""
LEAD: Final = 18
"""Columns before a bar: its name."""
WIDEST_CELL: Final = 26
NOBODY: Final = Member()
MARK: Final = "▌"


def grid(
    rows: Sequence[Sequence[str]], width: int, gaps: Sequence[int] = (2,), indent: int = 0
) -> tuple[list[str], list[str]]:
    """The head and the rows of a table; if there is no room, heads of two words take two lines."""
    head, *body = rows
    words = [name.split(" ", 1) for name in head]
    first = [found[0] if len(found) > 1 else "" for found in words]
    most = [WIDEST_CELL] * len(head)
    for gap in gaps:
        lines = table(rows, indent=indent, gap=gap, most=most)
        if columns(lines[0]) <= width or not any(first):
            return lines[:1], lines[1:]
    lines = table([first, [found[-1] for found in words], *body], indent=indent, gap=gaps[-1], most=most)
    return lines[:2], lines[2:]


def inked(ink: Ink, heads: Sequence[str], rows: Sequence[str] = ()) -> list[Text]:
    """The lines of a table; those of its head are bold."""
    return [*(ink.text(one, "bold") for one in heads), *(ink.text(one) for one in rows)]


def label_of(key: str, summary: Summary) -> str:
    """The reading guide's name of a metric, or the catalogue's."""
    known = (row.label for row in summary.catalog if row.key == key)
    return GUIDE_LABELS.get(key) or next(known, key)


def phase_keys(summary: Summary) -> list[str]:
    """The phases that are columns of a table, in their order."""
    more = [
        key
        for key, stat in summary.step_time.metrics.items()
        if key.endswith("_ms") and key not in (*COLUMNS, *NOT_PHASES) and (stat.share or 0.0) >= NOTABLE_SHARE
    ]
    return [*COLUMNS, *more, "wait_ms"]


def step_lines(summary: Summary, width: int, ink: Ink) -> list[Text]:
    """The table of the reading guide, the typical step as a bar of its phases, step time over the run."""
    if not summary.step_time.window.num_steps:
        return [ink.text("  no completed step to show yet", "dim")]
    return [*_phases(summary, width, ink), *_ribbon(summary, width, ink), *_history(summary, width, ink)]


def phase_styles(summary: Summary, ink: Ink, background: bool = False) -> dict[str, str]:
    """The phases that are columns of a table, in their order, each with its style."""
    users = [key for key in summary.step_time.metrics if key.startswith("user.")]
    return {key: ink.phase(key, users, background) for key in phase_keys(summary)}


def _phases(summary: Summary, width: int, ink: Ink) -> list[Text]:
    """Median, Worst, Worst Rank, Skew (%) and WAIT Share (%) of each phase; turned if it is too wide.

    A mark before each name has the phase's colour: coloured text is not readable on every background.
    """
    styles, mark = phase_styles(summary, ink), MARK if ink.colour and ink.unicode else ""
    labels = {key: mark + clip(label_of(key, summary), 18) for key in styles}
    stats = {key: summary.step_time.metrics.get(key, MetricStat()) for key in (*styles, "step_ms")}
    found = stats.values()
    rows = [
        ["", *labels.values(), GUIDE_LABELS["step_ms"]],
        ["Median", *(fmt.ms(stat.median.value) for stat in found)],
        ["Worst", *(fmt.ms(stat.worst.value) for stat in found)],
        ["Worst Rank", *(fmt.rank(stat.worst.rank) for stat in found)],
        ["Skew (%)", *(fmt.skew(stat.skew) for stat in found)],
        [
            "WAIT Share (%)",
            *(fmt.share(stat.share) if key == "wait_ms" else "" for key, stat in stats.items()),
        ],
    ]
    heads, lines = grid(rows, width, (3, 2, 1), indent=2)
    marked = sorted(styles, key=lambda key: len(heads) > 1 and " " not in labels[key])
    if columns(heads[0]) > width:
        heads, lines = grid(list(zip(*rows, strict=True)), width, indent=2)
        marked = list(styles)
    drawn, left = inked(ink, heads, lines), iter(marked)
    for one in drawn:
        for place in re.finditer(MARK, one.plain):
            one.stylize(styles[next(left)], *place.span())
    return drawn


def _ribbon(summary: Summary, width: int, ink: Ink) -> list[Text]:
    """Each phase as wide as its share of the typical step, with its name or first letter on it."""
    styles = phase_styles(summary, ink, background=True)
    shares = [summary.step_time.metrics.get(key, MetricStat()).share for key in styles]
    widths = fmt.ribbon_widths(shares, width - LEAD)
    parts = [
        ink.text(_on_ribbon(label_of(key, summary), fmt.share(share), wide, ink), styles[key])
        for key, share, wide in zip(styles, shares, widths, strict=True)
        if wide > 0
    ]
    return [line(ink.text("  Median step".ljust(LEAD)), *parts)] if parts else []


def _on_ribbon(label: str, share: str, width: int, ink: Ink) -> str:
    """The longest description that fits; without colour a bar marks where the phase begins."""
    bar = "" if ink.colour else "|"
    for text in (f" {label} {share} ", f" {label} ", f" {label[:1]} {share} ", f" {label[:1]} ", label[:1]):
        if len(bar + text) <= width:
            return (bar + text).ljust(width, " " if ink.colour else "-")
    return label[:width]


def _history(summary: Summary, width: int, ink: Ink) -> list[Text]:
    """Step time over the steps that are shown; the slowest of each piece."""
    series = summary.series.step_time
    values = series.get("step_ms_max") or series.get("step_ms") or []
    bars, highest = fmt.sparkline(values, max(width - LEAD - 20, 10), ink.bars)
    said = ink.text(f"{bars}  slowest {fmt.ms(highest)}", "dim")
    return [line(ink.text("  Step Time".ljust(LEAD)), said)] if bars else []


def memory_lines(summary: Summary, width: int, ink: Ink) -> list[Text]:
    """Median and worst peak of each kind of memory over the K steps that are looked at."""
    section = summary.step_memory
    shown = {key: stat for key, stat in section.metrics.items() if stat.worst.value is not None}
    stats = shown.values()
    rows = [
        ["", *(label_of(key, summary) for key in shown)],
        ["Median Peak (max/K)", *(fmt.size(stat.median.value) for stat in stats)],
        ["Worst Peak (max/K)", *(fmt.size(stat.worst.value) for stat in stats)],
        ["Worst Rank", *(fmt.rank(stat.worst.rank) for stat in stats)],
        ["Skew (%)", *(fmt.skew(stat.skew) for stat in stats)],
        ["Head/Tail Delta (worst)", fmt.size(section.window.head_tail_delta_bytes), *[""] * (len(shown) - 1)],
    ]
    return inked(ink, *grid(rows, width)) if shown else _nothing(ink)


def system_lines(summary: Summary, width: int, ink: Ink) -> list[Text]:
    """The machines: CPU, RAM and, if there are any, GPUs."""
    rows = gauge_rows(summary, "system", {key: label_of(key, summary) for key in SHOWN_OF_SYSTEM})
    used = summary.system.metrics.get("gpu_mem_percent", MetricStat())
    if used.average is not None:
        more = [""] * (len(rows[0]) - 3)
        rows.append(["GPU headroom", fmt.free_percent(used.average), fmt.free_percent(used.p95), *more])
    return inked(ink, *grid(rows, width)) if len(rows) > 1 else _nothing(ink)


def process_lines(summary: Summary, _width: int, ink: Ink) -> list[Text]:
    """The training processes: the rank that uses most CPU, memory, GPU memory and its imbalance."""
    metrics = summary.process.metrics
    cpu = metrics.get("cpu_percent", MetricStat())
    if cpu.average is None:
        return _nothing(ink)
    rows = [["Worst-rank CPU", f"{fmt.percent(cpu.worst.value)} ({fmt.rank(cpu.worst.rank)})"]]
    for row in summary.catalog:
        stat = metrics.get(row.key, MetricStat()) if row.section == "process" else MetricStat()
        if stat.average is not None and row.key != "cpu_percent" and "gpu" not in row.key:
            rows.append([row.label, fmt.BY_UNIT[row.unit](stat.average)])
    used = metrics.get("gpu_mem_used_bytes", MetricStat())
    if used.average is not None:
        reserved = metrics.get("gpu_mem_reserved_bytes", MetricStat())
        rows += [
            ["GPU memory used", fmt.size(used.worst.value)],
            ["  / reserved", fmt.size(reserved.worst.value)],
            ["  / total", fmt.size(summary.environment.device_memory_bytes)],
            ["GPU used imbalance", fmt.skew(used.skew)],
        ]
    return inked(ink, (), table(rows, indent=0))


def _nothing(ink: Ink) -> list[Text]:
    return [ink.text("no measurement yet", "dim")]


def rank_heads(summary: Summary) -> list[str]:
    """The names of the columns of the ranks."""
    times = ("step_ms", *phase_keys(summary))
    return ["Rank", *(label_of(key, summary) for key in times), "Memory", "CPU", "Host"]


def ranked(summary: Summary, column: int, descending: bool) -> list[list[Any]]:
    """The values of each listed rank, the rank first, by this column; what is not known comes last."""
    named, times = set(summary.primary_diagnosis.ranks), ("step_ms", *phase_keys(summary))
    memories, processes = summary.step_memory.ranks, summary.process.ranks
    rows: list[list[Any]] = []
    for name, member in summary.step_time.ranks.items():  # thousands, at each redraw
        identity, held = member.identity, memories.get(name, NOBODY).metrics
        memory = held.get("peak_allocated_bytes")
        memory = held.get("rss_bytes") if memory is None else memory
        cpu = processes.get(name, NOBODY).metrics.get("cpu_percent")
        rank = identity.rank if identity.rank is not None else int(name)
        rows.append([rank, *map(member.metrics.get, times), memory, cpu, identity.host or ""])
    if column == 0 and not descending:  # by rank, but what matters comes first
        return sorted(rows, key=lambda row: (row[0] not in named, row[0]))
    known = [row for row in rows if row[column] is not None]
    known.sort(key=lambda row: (row[column], row[0]), reverse=descending)
    return [*known, *(row for row in rows if row[column] is None)]


def rank_cells(row: Sequence[Any], is_named: bool) -> list[str]:
    """One row of `ranked` as text."""
    rank, *times, memory, cpu, host = row
    shown = (*map(fmt.ms, times), fmt.size(memory), fmt.percent(cpu))
    return [fmt.rank(rank) + "*" * is_named, *shown, clip(host, 20)]


def rank_detail(summary: Summary, rank: int, ink: Ink) -> list[Text]:
    """Every number of one rank, next to the median rank's."""
    name = str(rank)
    who = summary.step_time.ranks.get(name, NOBODY).identity
    rows = [[f"Rank {rank}", "this rank", "median"]]
    units = {row.key: row.unit for row in summary.catalog}
    for section in (summary.step_time, summary.step_memory, summary.process):
        for key, value in section.ranks.get(name, NOBODY).metrics.items():
            median = section.metrics.get(key, MetricStat()).median.value
            if value is not None and (value or median):
                show = fmt.BY_UNIT.get(units.get(key, ""), fmt.count)
                rows.append([label_of(key, summary), show(value), show(median)])
    where = f"  host {who.host or 'unknown'}, node {fmt.plain(who.node_rank)}, process {fmt.plain(who.pid)}"
    heads, lines = grid(rows, 100, indent=2)
    return [ink.text(where, "dim"), *inked(ink, heads, lines)]
