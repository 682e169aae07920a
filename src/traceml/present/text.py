"""The text of a summary: verdict, reason, next step, then the evidence, in at most 100 columns.

Shorter texts are here too: one line about a running training, and the table of `traceml runs`.
"""

from collections.abc import Sequence
from typing import Final

from traceml.present.columns import page, rule, spread, table, wrap
from traceml.schema import WATCH_ONLY, fmt
from traceml.schema import live as state
from traceml.schema.catalog import Metric
from traceml.schema.live import Live
from traceml.schema.summary import (
    Finding,
    Layers,
    ListedRun,
    MetricStat,
    Section,
    SectionWindow,
    Summary,
    Training,
)

LONGEST_NAME: Final = 36
SEVERITY: Final = {"warn": "warning", "crit": "critical"}
ALWAYS: Final = ("step_ms", "input_ms", "forward_ms", "backward_ms", "optimizer_ms", "wait_ms", "compute_ms")
WORTH_A_ROW: Final = 0.001
MOST_TRAININGS: Final = 16
MOST_LAYERS: Final = 10
LAYER_COLUMNS: Final = (
    ("Forward", "forward_ms", fmt.ms),
    ("Share", "forward_share", fmt.share),
    ("Backward", "backward_ms", fmt.ms),
    ("Share", "backward_share", fmt.share),
    ("Parameters", "parameter_bytes", fmt.size),
    ("Activations", "activation_bytes", fmt.size),
)
RUN_HEADS: Final = ("Run", "Date", "Status", "Exit", "Steps", "Step", "Verdict")


def render(summary: Summary) -> str:
    """The whole text, ending in a newline."""
    lines = [rule(), *_head(summary), rule(), *_verdict(summary)]
    has_steps = summary.step_time.diagnosis.kind != "NO_DATA" or not summary.final
    if has_steps:
        lines += ["", *_step_time(summary)]
        lines += ["", *_trainings(summary)] if summary.run.trainings else []
        lines += ["", *_run(summary)] if summary.run.parts else []
        lines += ["", *_memory(summary)]
        lines += ["", *_layers(summary.layers)] if summary.layers is not None else []
    if has_steps or summary.run.mode == WATCH_ONLY:
        lines += ["", *_gauges(summary, "system", "System"), "", *_gauges(summary, "process", "Process")]
    if summary.run.notes:
        lines += ["", "Notes"]
        for note in summary.run.notes:
            lines += wrap("  - ", note)
    foot = _foot(summary)
    return page([*lines, *([""] if foot else []), *foot, rule()])


def _head(summary: Summary) -> list[str]:
    run = summary.run
    facts = [
        run.status,
        fmt.steps(run.steps.total) if run.steps.total is not None else "",
        fmt.seconds(run.duration_s) if run.duration_s is not None else "",
        f"{run.world_size} ranks" if run.world_size > 1 else "",
    ]
    return [spread(f"TraceML  {run.name}", ", ".join(f for f in facts if f))]


def _verdict(summary: Summary) -> list[str]:
    first = summary.primary_diagnosis
    lines = [f"Verdict  {_judged(first)}"]
    lines += wrap("Why      ", first.summary)
    lines += wrap("Next     ", first.action)
    if first.potential_speedup is not None:
        much = "about" if first.potential_is_bound is False else "at most"
        gain = f"{much} {fmt.factor(first.potential_speedup)} as fast ({first.potential_how})"
        lines += wrap("Gain     ", gain)
    if summary.run.status not in ("completed", "running"):
        code = summary.run.exit_code
        reason = summary.run.reason or "no Python exception was seen"
        ended = f"{summary.run.status}: {reason}" + (f" (exit code {code})" if code is not None else "")
        lines += wrap("Ended    ", ended)
    return lines


def _judged(found: Finding | Training) -> str:
    word = SEVERITY.get(found.severity)
    return f"{found.status}  ({word})" if word else found.status


def _title(title: str, section: Section, right: str = "") -> str:
    return spread(f"{title:<13}{_judged(section.diagnosis)}", right)


def _others(summary: Summary, name: str) -> list[str]:
    """Every finding of a section, except the one that is the verdict."""
    section: Section = getattr(summary, name)
    first = summary.primary_diagnosis
    lines: list[str] = []
    for finding in section.issues:
        if (first.section, first.kind) != (name, finding.kind):
            lead = "" if finding is section.issues[0] else f"{_judged(finding)}: "
            lines += wrap("  ", f"{lead}{finding.summary}")
            lines += [] if finding.severity == "info" else wrap("  -> ", finding.action)
    return lines


def _rows_of(summary: Summary, section: str) -> dict[str, Metric]:
    return {row.key: row for row in summary.catalog if row.section == section}


def steps_of(window: SectionWindow) -> str:
    """Which steps a section is about, and by which clock; nothing if there are none."""
    first, last = fmt.plain(window.start_step), fmt.plain(window.end_step)
    return f"steps {first} to {last}, {window.clock or 'unknown'} clock" if window.num_steps else ""


def _step_time(summary: Summary) -> list[str]:
    section, window = summary.step_time, summary.step_time.window
    lines = [_title("Step time", section, steps_of(window)), *_others(summary, "step_time")]
    if not window.num_steps:
        return lines
    known, many = _rows_of(summary, "step_time"), summary.run.world_size > 1
    head = ["Median rank", "Median share", "Worst", "Worst rank", "Skew"]
    head = head if many else ["Mean", "Share", "p5", "p95"]
    rows = [["", *head]]
    step = section.metrics.get("step_ms", MetricStat()).median.value or 0.0
    for key, stat in section.metrics.items():
        row = known.get(key, Metric(key, key, "ms", "step_time", ""))
        if row.unit == "ms" and stat.median.value is not None and _is_notable(key, stat, step):
            rows.append([row.label, *_time_cells(stat, many)])
    lines += _number_table(rows)
    if "wait_ms" in section.metrics:
        lines.append("  * time in the step that no phase claims")
    rates = [
        _rate(section.metrics[key], noun, many)
        for key, noun in (("samples_per_s", "samples"), ("tokens_per_s", "tokens"))
        if key in section.metrics and section.metrics[key].average is not None
    ]
    return [*lines, "  " + "; ".join(rates)] if rates else lines


def _rate(stat: MetricStat, noun: str, many: bool) -> str:
    if not many or stat.total is None:
        return fmt.rate(stat.average, noun)
    return f"{fmt.rate(stat.average, noun)} per rank, {fmt.rate(stat.total, noun)} in total"


def _is_notable(key: str, stat: MetricStat, step_ms: float) -> bool:
    """Whether any rank spends a notable share of its step on it."""
    return key in ALWAYS or max(stat.median.value or 0.0, stat.worst.value or 0.0) >= WORTH_A_ROW * step_ms


def _time_cells(stat: MetricStat, many: bool) -> list[str]:
    share = fmt.share(stat.share) if stat.share is not None else ""
    if not many:
        return [fmt.ms(stat.average), share, fmt.ms(stat.p5), fmt.ms(stat.p95)]
    worst = [fmt.ms(stat.worst.value), fmt.rank(stat.worst.rank), fmt.skew(stat.skew)]
    return [fmt.ms(stat.median.value), share, *worst]


def _number_table(rows: list[list[str]]) -> list[str]:
    """A table with names on the left and numbers on the right."""
    return table(rows, least=(12, *[9] * len(rows[0])), most=(LONGEST_NAME,))


def _trainings(summary: Summary) -> list[str]:
    """One line per process, if several trained without ranks of their own."""
    found = summary.run.trainings
    rows = [["Pid", "Steps", "Step", "Input", "Compute", ""]]
    rows += [
        [
            f"{t.pid}{'*' * t.in_tables}",
            fmt.count(t.steps),
            fmt.ms(t.step_ms),
            fmt.share(t.input_share),
            fmt.share(t.compute_share),
            _judged(t),
        ]
        for t in found[:MOST_TRAININGS]
    ]
    lines = [f"Trainings    {len(found)} processes", *table(rows, "<>>>><", least=(12, *[9] * 4))]
    if len(found) > MOST_TRAININGS:
        lines.append(f"  ... {len(found)} in all; final_summary.json lists every one")
    return [*lines, "  * the tables are about this one"]


def _run(summary: Summary) -> list[str]:
    """Where the run's duration went: steps, and everything before, between and after them."""
    rows = [["", "Time", "Share", ""]]
    rows += [[p.label, fmt.seconds(p.seconds), fmt.share(p.share), p.about] for p in summary.run.parts]
    rank = summary.run.totals.get("rank")
    whose = f"of r{rank:.0f}" if rank is not None and summary.run.world_size > 1 else ""
    return [spread("Run", whose), *table(rows, "<>><", least=(12, 9, 9))]


def _memory(summary: Summary) -> list[str]:
    section = summary.step_memory
    kind = {"device": "device memory", "rss": "resident memory (no accelerator)"}
    lines = [_title("Step memory", section, kind.get(section.window.memory or "", ""))]
    lines += _others(summary, "step_memory")
    known = _rows_of(summary, "step_memory")
    rows = [["", "Median peak", "Worst peak", "Worst rank", "Skew"]]
    for key, stat in section.metrics.items():
        if stat.worst.value is not None:
            label = known[key].label if key in known else key
            peaks = [fmt.size(stat.median.value), fmt.size(stat.worst.value)]
            rows.append([label, *peaks, fmt.rank(stat.worst.rank), fmt.share(stat.skew)])
    if len(rows) > 1:
        delta = fmt.size(section.window.head_tail_delta_bytes)
        lines += [*_number_table(rows), f"  Head/tail delta (worst rank): {delta}"]
    return lines


def _layers(found: Layers) -> list[str]:
    rows = layer_rows(found, MOST_LAYERS)
    lines = [spread("Layers", about_layers(found))]
    lines += table(rows, "<<".ljust(len(rows[0]), ">"), most=(LONGEST_NAME, 16))
    for line in layer_sums(found, MOST_LAYERS):
        lines += wrap("  ", line)
    return lines


def layer_rows(found: Layers, most: int) -> list[list[str]]:
    """The head, and the layers that take longest: own time and memory, without the layers that they call."""
    several = len(found.ranks) > 1
    rows = [["Layer", "Type", *(head for head, *_ in LAYER_COLUMNS), *["Worst rank"] * several]]
    for one in found.layers[:most]:
        values = [(getattr(one, name), show) for _, name, show in LAYER_COLUMNS]
        worst = f"{fmt.ms(one.worst.value)} {fmt.rank(one.worst.rank)}"
        shown = ["-" if value == 0 else show(value) for value, show in values]
        rows.append([one.path, one.type, *shown, *[worst] * several])
    return rows


def about_layers(found: Layers) -> str:
    """What the numbers are based on."""
    samples = f"{fmt.count(found.samples)} samples" if found.samples != 1 else "1 sample"
    first, last = fmt.plain(found.start_step), fmt.plain(found.end_step)
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"{samples}, {steps}, {found.clock or 'unknown'} clock"


def layer_sums(found: Layers, shown: int) -> list[str]:
    """The sums, and remarks that the table does not show."""
    rest = f"{fmt.count(found.count)} layers in all; " if found.count > shown else ""
    sums = (
        f"{rest}forward {fmt.ms(found.forward_ms)}, backward {fmt.ms(found.backward_ms)} "
        f"({fmt.share(found.outside_share)} outside of layers); "
        f"parameters {fmt.size(found.parameter_bytes)}, gradients {fmt.size(found.gradient_bytes)}, "
        f"activations {fmt.size(found.activation_bytes)} ({fmt.size(found.outside_bytes)} outside)"
    )
    return [sums, *found.notes]


def _gauges(summary: Summary, name: str, title: str) -> list[str]:
    section: Section = getattr(summary, name)
    samples = section.window.samples or 0
    lines = [_title(title, section, f"{samples} samples" if samples else ""), *_others(summary, name)]
    rows = gauge_rows(summary, name, {key: row.label for key, row in _rows_of(summary, name).items()})
    return lines + (_number_table(rows) if len(rows) > 1 else [])


def gauge_rows(summary: Summary, name: str, labels: dict[str, str]) -> list[list[str]]:
    """The head, and a row for each metric of the section that has a label and was measured."""
    section: Section = getattr(summary, name)
    known = _rows_of(summary, name)
    several = len(section.nodes) + len(section.ranks) > 1
    letter, noun = ("node ", "Worst node") if section.nodes else ("r", "Worst rank")
    rows = [["", "Mean", "p95", *(("Worst", noun) if several else ())]]
    for key, stat in section.metrics.items():
        if stat.average is not None and key in known and key in labels:
            show = fmt.BY_UNIT.get(known[key].unit, fmt.count)
            worst = (show(stat.worst.value), f"{letter}{stat.worst.rank}") if several else ()
            rows.append([labels[key], show(stat.average), show(stat.p95), *worst])
    return rows


def _foot(summary: Summary) -> list[str]:
    env, cost = summary.environment, summary.overhead
    dirty = " (dirty)" if env.git_dirty else ""
    facts = [
        f"torch {env.torch}" if env.torch else "",
        f"Python {env.python}" if env.python else "",
        env.device_name or env.device or "",
        f"batch {env.batch_size}" if env.batch_size else "",
        f"git {env.git_commit[:10]}{dirty}" if env.git_commit else "",
    ]
    lines = wrap("", ", ".join(f for f in facts if f)) if any(facts) else []
    if cost.us_per_step is not None:
        share = fmt.share(cost.share)
        lines.append(f"TraceML's own cost: {cost.us_per_step:.1f} µs per step ({share} of step time)")
    return lines


def status_line(live: Live) -> str:
    """Progress, step time and verdict in one line, for logs without a terminal."""
    summary = live.summary
    run, found = summary.run, summary.primary_diagnosis
    age = fmt.age(run.duration_s or 0.0)
    if run.mode == WATCH_ONLY:
        parts = (("machine", summary.system, "ram_bytes"), ("command", summary.process, "rss_bytes"))
        return f"{age}: " + "; ".join(_used(name, section, memory) for name, section, memory in parts)
    if not run.steps.total:
        return f"{age}: {state.STATES[live.state]}"
    step = summary.step_time.metrics.get("step_ms", MetricStat())
    rate = f" ({fmt.rate(live.steps_per_s, 'steps')})" if live.steps_per_s is not None else ""
    news = f", {state.STATES[live.state]} for {fmt.age(live.quiet_s)}" if live.state == state.STALE else ""
    word = f" ({SEVERITY[found.severity]})" if found.severity in SEVERITY else ""
    progress = f"{age}: step {fmt.count(run.steps.total)}{rate}{news}"
    return f"{progress}; step time {fmt.ms(step.median.value)}; {found.status}{word}: {found.summary}"


def _used(name: str, section: Section, memory: str) -> str:
    cpu, held = (section.metrics.get(key, MetricStat()).average for key in ("cpu_percent", memory))
    return f"{name} CPU {fmt.percent(cpu)}, memory {fmt.size(held)}"


def list_of_runs(runs: Sequence[ListedRun]) -> str:
    """The table of `traceml runs`: one line per run, at most 100 columns."""
    rows = [
        (
            run.name,
            (run.started_at or "").replace("T", " ")[:16],
            run.status or "",
            "" if run.exit_code is None else str(run.exit_code),
            "" if run.steps is None else fmt.count(run.steps),
            "" if run.step_ms is None else fmt.ms(run.step_ms),
            run.problem or run.verdict or "",
        )
        for run in runs
    ]
    return page(table([RUN_HEADS, *rows], "<<<>>><", indent=0, most=(30, 16, 11, 4, 9, 9)))
