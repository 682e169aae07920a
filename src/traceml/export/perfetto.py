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

from traceml.export.tables import NS_PER_MS, SPAN, Piece, RunTables, Table
from traceml.files import replacing
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
NS_PER_US: Final = 1000
Entry = dict[str, Any]


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
                file.write(json.dumps(entry))
                count += 1
            file.write("\n]}\n")
    return count


def _entries(run: RunTables) -> Iterator[Entry]:
    steps = [run.steps(rank) for rank in run.ranks]
    samples = next(table for table in run.tables() if table.name == "system")
    # Where the axis begins: double precision would blur nanoseconds since 1970.
    begins = [*(piece["begin_unix_ns"] for piece in steps), samples["unix_ns"]]
    zero_ns = min((int(times.min()) for times in begins if len(times)), default=0)
    numbers = {id(rank): number for number, rank in enumerate(run.ranks, 1)}
    for rank, piece in zip(run.ranks, steps, strict=True):
        name = f"rank {rank.rank} (node {rank.node}, process {rank.pid})"
        yield from _named(numbers[id(rank)], name, {STEPS: "steps and phases", EVENTS: "events"})
        yield from _steps(piece, numbers[id(rank)], zero_ns)
    yield from _samples(samples, zero_ns)
    for event, rank_of_it in run.events():
        args = {"step": event.step, "message": event.message}
        entry: Entry = {
            "name": event.kind,
            "cat": "event",
            "pid": numbers.get(id(rank_of_it), 0),
            "tid": EVENTS,
        }
        entry["ts"] = (run.when(event, rank_of_it) - zero_ns) / NS_PER_US
        entry["args"] = {key: value for key, value in args.items() if value is not None}
        took = (
            {"ph": "X", "dur": event.duration_ns / NS_PER_US} if event.duration_ns else {"ph": "i", "s": "p"}
        )
        yield {**entry, **took}


def _named(pid: int, name: str, threads: dict[int, str]) -> Iterator[Entry]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    for tid, thread in threads.items():
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": thread}}


def _steps(piece: Piece, pid: int, zero_ns: int) -> Iterator[Entry]:
    """A slice for each step, and inside it one for each phase that took time."""
    labels = {p.key: p.label for p in c.PHASES} | {w.key: f"Wait ({w.where})" for w in c.WAIT_PLACES}
    users = [name.removesuffix("_ms") for name in piece if name.startswith("user.")]
    labels |= {name: name.removeprefix("user.") for name in users}
    known = (*BEFORE, *users, *ORDER)
    columns = [
        (labels[key], np.rint(np.nan_to_num(piece[f"{key}_ms"]) * NS_PER_MS).astype(np.int64).tolist())
        for key in (*known, *(key for key in labels if key not in known))
    ]
    begins, ends = ((piece[key] - zero_ns).tolist() for key in SPAN)
    for at, (step, now, end) in enumerate(zip(piece["step"].tolist(), begins, ends, strict=True)):
        about: Entry = {"ph": "X", "pid": pid, "tid": STEPS}
        yield {**about, "name": "Step", "cat": "step", **_span(now, end), "args": {"step": step}}
        for label, took in columns:
            if ns := min(took[at], end - now):
                yield {**about, "name": label, "cat": "phase", **_span(now, now + ns)}
                now += ns
    for name in COUNTERS:
        before = math.nan
        for end, value in zip(ends, piece[name].tolist(), strict=True):
            if value != before and not math.isnan(value):
                yield _counter(name, pid, end / NS_PER_US, {"bytes": int(value)})
                before = value


def _span(begin_ns: int, end_ns: int) -> Entry:
    return {"ts": begin_ns / NS_PER_US, "dur": (end_ns - begin_ns) / NS_PER_US}


def _counter(name: str, pid: int, ts: float, args: Entry) -> Entry:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": ts, "args": args}


def _samples(table: Table, zero_ns: int) -> Iterator[Entry]:
    nodes = table["node"].tolist()
    for node in dict.fromkeys(nodes):
        yield from _named(NODES_FROM + node, f"machine of node {node}", {})
    times = ((table["unix_ns"] - zero_ns) / NS_PER_US).tolist()
    for metric in c.SYSTEM_METRICS:
        for node, ts, value in zip(nodes, times, table[metric.key].tolist(), strict=True):
            if not math.isnan(value):
                yield _counter(metric.label, NODES_FROM + node, ts, {metric.unit: value})
