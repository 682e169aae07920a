"""Every listed rank in one table, sorted by any column, and everything that is known about one of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from traceml.present.terminal.ink import Ink
from traceml.present.terminal.phases import indented, label_of, phase_keys
from traceml.present.terminal.tables import Row, table, two_line_heads
from traceml.schema import fmt
from traceml.schema.summary import Member, Section, Summary

MEMORY = "peak_allocated_bytes"


@dataclass(frozen=True, slots=True)
class Sorting:
    """By which column; the largest first, or the smallest."""

    column: int = 0
    descending: bool = False

    def next(self, columns: int) -> "Sorting":
        """The next column, the largest first."""
        column = self.column + 1 if self.column + 1 < columns else 0
        return Sorting(column, descending=column > 0)


def heads_of(summary: Summary) -> list[str]:
    """The names of the columns."""
    return ["Rank", *(label_of(key, summary) for key in _times(summary)), "Memory", "CPU", "Host"]


def _times(summary: Summary) -> list[str]:
    return ["step_ms", *phase_keys(summary)]


def ordered(summary: Summary, sorting: Sorting) -> list[list[Any]]:
    """The values of each listed rank, the rank first, in their order; what is not known comes last."""
    named, column = set(summary.primary_diagnosis.ranks), sorting.column
    keys = _times(summary)
    rows = [_values(name, member, keys, summary) for name, member in summary.step_time.ranks.items()]
    if sorting == Sorting():  # by rank, but what matters comes first
        return sorted(rows, key=lambda row: (row[0] not in named, row[0]))
    known = [row for row in rows if row[column] is not None]
    known.sort(key=lambda row: (row[column], row[0]), reverse=sorting.descending)
    return [*known, *(row for row in rows if row[column] is None)]


def _values(name: str, member: Member, keys: Sequence[str], summary: Summary) -> list[Any]:
    rank = member.identity.rank if member.identity.rank is not None else int(name)
    times = [member.metrics.get(key) for key in keys]
    cpu = _value(summary.process, name, "cpu_percent")
    return [rank, *times, _memory(summary.step_memory, name), cpu, member.identity.host or ""]


def rank_lines(
    summary: Summary, rows: Sequence[Sequence[Any]], sorting: Sorting, ink: Ink, width: int
) -> tuple[list[Text], list[Text]]:
    """The lines of the head, and one for each of these rows of `ordered`."""
    arrow = "▼" if sorting.descending else "▲"
    heads = [
        ink.text(head + (arrow if at == sorting.column else ""), "bold")
        for at, head in enumerate(heads_of(summary))
    ]
    cells: list[Row] = [heads]
    for rank, *times, memory, cpu, host in rows:
        is_named = rank in summary.primary_diagnosis.ranks
        name = fmt.rank(rank) + "*" * is_named
        shown = (name, *map(fmt.ms, times), fmt.size(memory), fmt.percent(cpu), host)
        cells.append([ink.clipped(cell, 20, "bold" if is_named else "") for cell in shown])
    lines = table(cells)
    if lines[0].cell_len <= width:
        return lines[:1], lines[1:]
    lines = table(two_line_heads(cells))
    return lines[:2], lines[2:]


def _value(section: Section, name: str, key: str) -> float | None:
    member = section.ranks.get(name)
    return member.metrics.get(key) if member is not None else None


def _memory(section: Section, name: str) -> float | None:
    device = _value(section, name, MEMORY)
    return device if device is not None else _value(section, name, "rss_bytes")


def how_many(summary: Summary) -> str:
    """Which ranks are listed, of how many."""
    listed, used = len(summary.step_time.ranks), len(summary.step_time.window.ranks)
    named = "; * is named by the verdict" if summary.primary_diagnosis.ranks else ""
    if listed >= used:
        return f"{fmt.count(listed)} ranks{named}" if listed != 1 else f"1 rank{named}"
    return f"{fmt.count(listed)} of {fmt.count(used)} ranks: those that stand out, and some others{named}"


def rank_detail(summary: Summary, rank: int, ink: Ink) -> list[Text]:
    """Every number of one rank, next to the median rank's."""
    name = str(rank)
    member = summary.step_time.ranks.get(name, Member())
    who = member.identity
    rows = [[f"Rank {rank}", "this rank", "median"]]
    for title in ("step_time", "step_memory", "process"):
        section: Section = getattr(summary, title)
        units = {row.key: row.unit for row in summary.catalog if row.section == title}
        values = section.ranks[name].metrics if name in section.ranks else {}
        for key, value in values.items():
            median = section.metrics[key].median.value if key in section.metrics else None
            if value is not None and (value or median):
                show = fmt.BY_UNIT.get(units.get(key, ""), fmt.count)
                rows.append([label_of(key, summary), show(value), show(median)])
    where = f"  host {who.host or 'unknown'}, node {fmt.plain(who.node_rank)}, process {fmt.plain(who.pid)}"
    cells = [[ink.clipped(cell, 24, "" if at else "bold") for cell in row] for at, row in enumerate(rows)]
    return [ink.text(where, "dim"), *indented(table(cells))]
