"""Writes a run as a trace for ui.perfetto.dev and chrome://tracing: the steps of all ranks on one time axis.

A recorded step has the time of each phase, not their order. They are drawn one after the other in the usual
order: how wide each is was measured, where in its step it begins was not.
"""

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from traceml.export.tables import NS_PER_MS, SPAN, Piece, RankFile, RunTables, Table
from traceml.runs.atomic import replacing
from traceml.schema import catalog as c

BEFORE: Final = ("wait_start", "validation", "checkpoint", "wait_other")
"""What a step begins with, because a step reaches from the end of the last one to its own end."""
ORDER: Final = (
    *("input", "wait_input", "h2d", "forward", "wait_forward", "no_grad", "wait_no_grad"),
    *("backward", "sync", "wait_backward", "optimizer"),
)
STEPS, EVENTS = 1, 2
"""Rows of a rank in the viewer."""
NODES_FROM: Final = 1_000_000
COUNTERS: Final = ("rss_bytes", "peak_allocated_bytes")
NS_PER_US: Final = 1e3


def write_trace(run: RunTables, target: Path) -> int:
    """Write the trace, compressed if the name ends in .gz; returns how many entries it has."""
    count = 0
    with replacing(target) as path:
        is_packed = target.suffix == ".gz"
        with gzip.open(path, "wt", compresslevel=3) if is_packed else path.open("w") as file:
            about = {"run": run.manifest.get("name"), "started_at": run.manifest.get("started_at")}
            file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [')
            for entry in _entries(run):
                file.write(",\n" if count else "\n")
                file.write(entry)
                count += 1
            file.write("\n]}\n")
    return count


def _entries(run: RunTables) -> Iterator[str]:
    tables = {table.name: table for table in run.tables()}
    zero_ns = _earliest(tables)
    numbers: dict[tuple[int, int, int], int] = {}
    for number, rank in enumerate(run.ranks, 1):
        who = rank.who
        numbers[who["rank"], who["node"], who["pid"]] = number
        name = f"rank {who['rank']} (node {who['node']}, process {who['pid']})"
        yield from _named(number, name, {STEPS: "steps and phases", EVENTS: "events"})
    phases = _phase_order(tables["steps"])
    for piece in tables["steps"].pieces():
        who_first = tuple(int(piece[key][0]) for key in ("rank", "node", "pid"))
        yield from _steps(piece, numbers[who_first], phases, zero_ns)  # type: ignore[index]
    yield from _samples(tables["system"], zero_ns)
    for event, node, source in run.events():
        yield from _event(event, source, numbers, (run.when(event, node) - zero_ns) / NS_PER_US)


def _earliest(tables: dict[str, Table]) -> int:
    """Where the axis begins: double precision would blur nanoseconds since 1970."""
    first = [int(p["begin_unix_ns"].min()) for p in tables["steps"].pieces()]
    samples = [int(p["unix_ns"].min()) for p in tables["system"].pieces()]
    return min([*first, *samples], default=0)


def _named(pid: int, name: str, threads: dict[int, str]) -> Iterator[str]:
    yield _json(ph="M", name="process_name", pid=pid, tid=0, args={"name": name})
    yield _json(ph="M", name="process_sort_index", pid=pid, tid=0, args={"sort_index": pid})
    for tid, thread in threads.items():
        yield _json(ph="M", name="thread_name", pid=pid, tid=tid, args={"name": thread})


def _phase_order(steps: Table) -> dict[str, str]:
    """Column to label of the phases, in the order in which they are drawn."""
    labels = {p.key: p.label for p in c.PHASES} | {w.key: f"Wait ({w.where})" for w in c.WAIT_PLACES}
    users = [name.removesuffix("_ms") for name in steps.columns if name.startswith("user.")]
    labels |= {name: name.removeprefix("user.") for name in users}
    known = (*BEFORE, *users, *ORDER)
    return {f"{key}_ms": labels[key] for key in (*known, *(k for k in labels if k not in known))}


def _steps(piece: Piece, pid: int, phases: dict[str, str], zero_ns: int) -> Iterator[str]:
    """A slice for each step, and inside it one for each phase that took time."""
    columns = [
        (json.dumps(label), np.rint(np.nan_to_num(piece[key]) * NS_PER_MS).astype(np.int64).tolist())
        for key, label in phases.items()
    ]
    begins, ends = ((piece[key] - zero_ns).tolist() for key in SPAN)
    for at, (step, now, end) in enumerate(zip(piece["step"].tolist(), begins, ends, strict=True)):
        yield (
            f'{{"ph":"X","name":"Step","cat":"step","pid":{pid},"tid":{STEPS},"ts":{_us(now)},'
            f'"dur":{_us(end - now)},"args":{{"step":{step}}}}}'
        )
        for label, took in columns:
            if ns := min(took[at], end - now):
                yield (
                    f'{{"ph":"X","name":{label},"cat":"phase","pid":{pid},"tid":{STEPS},"ts":{_us(now)},'
                    f'"dur":{_us(ns)}}}'
                )
                now += ns
    for name in COUNTERS:
        before = math.nan
        for end, value in zip(ends, piece[name].tolist(), strict=True):
            if value != before and not math.isnan(value):
                yield _json(ph="C", name=name, pid=pid, tid=0, ts=end / NS_PER_US, args={"bytes": int(value)})
                before = value


def _us(ns: int) -> str:
    """Microseconds, exact: a phase must not end after its step."""
    return f"{ns // 1000}.{ns % 1000:03}"


def _samples(table: Table, zero_ns: int) -> Iterator[str]:
    """CPU, memory and GPU of each machine."""
    known: set[int] = set()
    for piece in table.pieces():
        node = int(piece["node"][0])
        if node not in known:
            known.add(node)
            yield from _named(NODES_FROM + node, f"machine of node {node}", {})
        times = ((piece["unix_ns"] - zero_ns) / NS_PER_US).tolist()
        for metric in c.SYSTEM_METRICS:
            for ts, value in zip(times, piece[metric.key].tolist(), strict=True):
                if not math.isnan(value):
                    args = {metric.unit: value}
                    yield _json(ph="C", name=metric.label, pid=NODES_FROM + node, tid=0, ts=ts, args=args)


def _event(
    event: Any, source: RankFile | None, numbers: dict[tuple[int, int, int], int], ts: float
) -> Iterator[str]:
    who = source.who if source is not None else {}
    of_rank = [n for (rank, _, _), n in numbers.items() if rank == event.rank]
    pid = numbers.get((who.get("rank", -1), who.get("node", -1), who.get("pid", -1))) or (of_rank or [0])[-1]
    args = {"step": event.step, "message": event.message}
    about: dict[str, Any] = {"name": event.kind, "cat": "event", "pid": pid, "tid": EVENTS, "ts": ts}
    about["args"] = {key: value for key, value in args.items() if value is not None}
    if event.duration_ns:
        yield _json(ph="X", dur=event.duration_ns / NS_PER_US, **about)
    else:
        yield _json(ph="i", s="p", **about)


def _json(**entry: Any) -> str:
    if "ts" in entry:
        entry["ts"] = round(entry["ts"], 3)
    return json.dumps(entry, separators=(",", ":"))
