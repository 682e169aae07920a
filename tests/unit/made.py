"""Hand-made windows and recordings: input for the rules without a training, a file or a clock.

Times are in milliseconds: one number for all steps, or one per step. A step is the sum of its phases and
`wait`, as in a real window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.align import align_ranks
from traceml.analyze.recordings import find_attempts
from traceml.analyze.window import PHASE_KEYS, WAIT, Window
from traceml.recording import layout
from traceml.recording.reader import row_dtype
from traceml.schema import catalog as c
from traceml.schema.recorded import NodeGauges, RankRecording, RecordedEvent, RunRecording
from traceml.schema.summary import Finding, Primary

Floats = NDArray[np.float64]
Ms = float | list[float] | Floats
ALL_MEASURED = tuple(k for k in PHASE_KEYS if k not in ("h2d", "sync"))
"""What a single rank on a CPU measures."""
MS = 1e6


def dtype_of(columns: tuple[tuple[str, str], ...]) -> np.dtype[np.void]:
    """The dtype that the reader gives rows with these columns."""
    size = layout.padded_row_size(layout.row_struct(columns).size)
    return row_dtype(columns, size)


def series(value: Ms, count: int) -> Floats:
    """One number per step."""
    found: Floats = np.broadcast_to(np.asarray(value, dtype=float), (count,)).copy()
    return found


def every(period: int, value: float, count: int, otherwise: float = 0.0, offset: int = 0) -> Floats:
    """`value` in every `period`-th step, `otherwise` in the others."""
    found = np.full(count, otherwise)
    found[offset::period] = value
    return found


def number(finding: Finding | Primary, key: str) -> float:
    """A number in the evidence of this finding."""
    value = finding.evidence[key]
    assert isinstance(value, (int, float)), f"{key} is {value!r}"
    return value


def measured(values: Sequence[float | None]) -> list[float]:
    """These values, of which none may be null."""
    assert None not in values
    return [value for value in values if value is not None]


def window(
    count: int = 100,
    *,
    wait: Ms = 0.0,
    gc: Ms = 0.0,
    gc_wait: Ms = 0.0,
    busy_wait: Ms = 0.0,
    overhead: Ms = 0.0,
    place: str = "wait_forward",
    unmeasured: tuple[str, ...] = ("h2d", "sync"),
    user: dict[str, Ms] | None = None,
    first_step: int = 1,
    **phases: Any,
) -> Window:
    """One rank. Phases by key in ms; other keyword arguments of Window as they are."""
    named = {k: series(phases.pop(k, 0.0), count) for k in PHASE_KEYS}
    named |= {f"user.{k}": series(v, count) for k, v in (user or {}).items()}
    named[WAIT] = series(wait, count)
    table = np.stack(list(named.values()), axis=1)[None, :, :] * MS
    step_ns = table.sum(axis=2)
    for key in unmeasured:
        table[:, :, PHASE_KEYS.index(key)] = np.nan
    places = np.zeros((1, count, len(c.WAIT_PLACES)))
    places[0, :, [w.key for w in c.WAIT_PLACES].index(place)] = named[WAIT] * MS
    made: dict[str, Any] = {
        "ranks": (0,),
        "steps": np.arange(first_step, first_step + count),
        "keys": tuple(named),
        "phases": table,
        "step_ns": step_ns,
        "overhead_ns": series(overhead, count)[None, :] * MS,
        "gc_ns": series(gc, count)[None, :] * MS,
        "gc_wait_ns": series(gc_wait, count)[None, :] * MS,
        "busy_wait_ns": series(busy_wait, count)[None, :] * MS,
        "wait_places": places,
        "samples": np.full((1, count), np.nan),
        "tokens": np.full((1, count), np.nan),
        "total_steps": count,
    }
    return Window(**{**made, **phases})


def steps(
    count: int = 100,
    *,
    measured: tuple[str, ...] = ALL_MEASURED,
    wait: Ms = 0.0,
    rss: Ms | None = 500e6,
    allocated: Ms | None = None,
    reserved: Ms | None = None,
    samples: int = 0,
    tokens: int = 0,
    begin_ns: int = 1_000_000_000,
    first_step: int = 1,
    extra_flags: int = 0,
    **phases: Any,
) -> NDArray[np.void]:
    """Step rows of one rank as the reader returns them; phases (and user0, ...) by key in ms."""
    rows = np.zeros(count, dtype=dtype_of(c.STEP_COLUMNS))
    rows["step"] = np.arange(first_step, first_step + count)
    total = np.zeros(count)
    for key, value in {**phases, "wait_forward": wait}.items():
        rows[key] = series(value, count) * MS
        total += rows[key]
    rows["end_ns"] = begin_ns + np.cumsum(total).astype(np.int64)
    rows["begin_ns"] = rows["end_ns"] - total.astype(np.int64)
    flags = sum(1 << PHASE_KEYS.index(k) for k in measured) | extra_flags
    if rss is not None:
        rows["rss_bytes"] = series(rss, count)
        flags |= c.FLAG_RSS
    if allocated is not None:
        rows["peak_allocated_bytes"] = series(allocated, count)
        rows["peak_reserved_bytes"] = series(reserved if reserved is not None else allocated, count)
        flags |= c.FLAG_DEVICE_MEMORY
    rows["flags"], rows["samples"], rows["tokens"] = flags, samples, tokens
    rows["micro_batches"], rows["switches"] = 1, 5
    rows["sequence"] = np.arange(1, count + 1)
    return rows


def device_times(count: int = 100, first_step: int = 1, **phases: Any) -> NDArray[np.void]:
    """Device rows of one rank, phases by key in ms."""
    rows = np.zeros(count, dtype=dtype_of(c.DEVICE_COLUMNS))
    rows["step"] = np.arange(first_step, first_step + count)
    for key, value in phases.items():
        rows[key] = series(value, count) * MS
    return rows


def events(given: Iterable[dict[str, Any] | RecordedEvent]) -> list[RecordedEvent]:
    """Events as the reader returns them."""
    return [RecordedEvent(**event) if isinstance(event, dict) else event for event in given]


def rank(rows: NDArray[np.void], number: int = 0, **parts: Any) -> RankRecording:
    """A rank's recording with these rows."""
    header = {
        "identity": {
            "rank": number,
            "local_rank": number,
            "node_rank": 0,
            "world_size": parts.pop("world_size", 1),
            "host": "box",
            "pid": parts.pop("pid", 100 + number),
        },
        "process": {
            "python": "3.11.4",
            "torch": "2.13.0",
            "threads": 2,
            "packages": {},
            "clock_ns": parts.pop("clock_ns", 0),
        },
        "device": parts.pop("device", {"type": "cpu"}),
        "overhead": parts.pop("overhead", {"switch_ns": 200, "row_ns": 1000}),
    }
    return RankRecording(header=header, rows=rows, events=events(parts.pop("events", ())), **parts)


def align(recordings: Sequence[RankRecording]) -> Window:
    """The window over all ranks of these recordings that completed a step."""
    return align_ranks(find_attempts(recordings).chosen)


def gauges(columns: tuple[tuple[str, str], ...], count: int = 10, **values: Any) -> NDArray[np.void]:
    """System or process samples, 100 ms apart; what is not given was not measured (NaN)."""
    rows = np.zeros(count, dtype=dtype_of(columns))
    for name, code in columns:
        if code == "d":
            rows[name] = np.nan
    rows["time_ns"] = 1_000_000_000 + np.arange(count) * 100_000_000
    for name, value in values.items():
        rows[name] = value
    return rows


def system(count: int = 10, **values: Any) -> NDArray[np.void]:
    """System samples of a calm machine, changed by `values`."""
    calm = {"cpu_percent": 20.0, "ram_bytes": 8e9, "ram_percent": 25.0}
    return gauges(c.SYSTEM_COLUMNS, count, **{**calm, **values})


def process(count: int = 10, pid: int = 100, **values: Any) -> NDArray[np.void]:
    """Samples of one training process, changed by `values`."""
    calm = {"cpu_percent": 100.0, "rss_bytes": 5e8}
    return gauges(c.PROCESS_COLUMNS, count, pid=pid, **{**calm, **values})


def run(*ranks: RankRecording, **parts: Any) -> RunRecording:
    """A run's recording with these ranks."""
    noticed = events(parts.pop("monitor_events", ()))
    own = NodeGauges(parts.pop("system_rows", None), parts.pop("process_rows", None))
    nodes = {0: own, **parts.pop("other_nodes", {})}
    return RunRecording(ranks=list(ranks), nodes=nodes, monitor_events=noticed, **parts)
