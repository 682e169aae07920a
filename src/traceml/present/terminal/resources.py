"""Memory of the steps, the machine, and the training processes: three small tables."""

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from traceml.present.terminal.ink import Ink
from traceml.present.terminal.phases import label_of
from traceml.present.terminal.tables import table, two_line_heads, width_of
from traceml.present.text import gauge_rows
from traceml.schema import fmt
from traceml.schema.summary import MetricStat, Summary

SHOWN_OF_SYSTEM: Final = (
    *("cpu_percent", "ram_bytes", "ram_percent", "cpu_throttled_percent"),
    *("gpu_util_percent", "gpu_mem_bytes", "gpu_temp_c"),
)
"""The rest is in the summary."""


def memory_lines(summary: Summary, width: int, ink: Ink) -> list[Text]:
    """Median and worst peak of each kind of memory over the K steps that are looked at."""
    section = summary.step_memory
    known = {row.key: row.label for row in summary.catalog if row.section == "step_memory"}
    shown = {key: stat for key, stat in section.metrics.items() if stat.worst.value is not None}
    if not shown:
        return _nothing(ink)
    stats, blank = list(shown.values()), [""] * (len(shown) - 1)
    rows = [
        ["", *(known.get(key, key) for key in shown)],
        ["Median Peak (max/K)", *(fmt.size(s.median.value) for s in stats)],
        ["Worst Peak (max/K)", *(fmt.size(s.worst.value) for s in stats)],
        ["Worst Rank", *(fmt.rank(s.worst.rank) for s in stats)],
        ["Skew (%)", *(fmt.skew(s.skew) for s in stats)],
        ["Head/Tail Delta (worst)", fmt.size(section.window.head_tail_delta_bytes), *blank],
    ]
    cells = _cells(rows, ink)
    return table(cells if width_of(cells, 2) <= width else two_line_heads(cells))


def system_lines(summary: Summary, _width: int, ink: Ink) -> list[Text]:
    """The machines: CPU, RAM and, if there are any, GPUs."""
    section = summary.system
    rows = gauge_rows(summary, "system", {key: label_of(key, summary) for key in SHOWN_OF_SYSTEM})
    used = section.metrics.get("gpu_mem_percent", MetricStat())
    if used.average is not None:
        more = [""] * (len(rows[0]) - 3)
        rows.append(["GPU headroom", fmt.free_percent(used.average), fmt.free_percent(used.p95), *more])
    return table(_cells(rows, ink)) if len(rows) > 1 else _nothing(ink)


def process_lines(summary: Summary, _width: int, ink: Ink) -> list[Text]:
    """The training processes: the rank that uses most CPU, memory, GPU memory and its imbalance."""
    section = summary.process
    cpu = section.metrics.get("cpu_percent", MetricStat())
    if cpu.average is None:
        return _nothing(ink)
    worst = f"{fmt.percent(cpu.worst.value)} ({fmt.rank(cpu.worst.rank)})"
    rows = [["Worst-rank CPU", worst]]
    for key, stat in section.metrics.items():
        row = next((r for r in summary.catalog if (r.section, r.key) == ("process", key)), None)
        if row is not None and stat.average is not None and key != "cpu_percent" and "gpu" not in key:
            rows.append([row.label, fmt.BY_UNIT[row.unit](stat.average)])
    used = section.metrics.get("gpu_mem_used_bytes", MetricStat())
    if used.average is not None:
        reserved = section.metrics.get("gpu_mem_reserved_bytes", MetricStat())
        total = summary.environment.device_memory_bytes
        rows += [
            ["GPU memory used", fmt.size(used.worst.value)],
            ["  / reserved", fmt.size(reserved.worst.value)],
            ["  / total", fmt.size(total)],
            ["GPU used imbalance", fmt.skew(used.skew)],
        ]
    return table(_cells(rows, ink, heads=0))


def _cells(rows: Sequence[Sequence[str]], ink: Ink, heads: int = 1) -> list[list[Text]]:
    return [
        [ink.clipped(cell, 26, "bold" if at < heads else "") for cell in row] for at, row in enumerate(rows)
    ]


def _nothing(ink: Ink) -> list[Text]:
    return [ink.text("no measurement yet", "dim")]
