"""From each rank's rows to one aligned window: the steps that all ranks completed, without warm-up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.window import PHASE_KEYS, WAIT, Floats, Window
from traceml.schema import catalog as c
from traceml.schema.recorded import RankRecording

WARMUP_FACTOR = 2.0
WARMUP_MOST_STEPS = 50
WARMUP_MOST_SHARE = 0.2
MOST_UNFINISHED = 16


def newest_of_each_rank(recordings: Sequence[RankRecording]) -> dict[int, RankRecording]:
    """A rank that restarted has several recordings: the last one that completed a step counts."""
    chosen: dict[int, RankRecording] = {}
    for recording in sorted(recordings, key=_started):
        known = chosen.get(recording.rank)
        if known is None or len(recording.rows) or not len(known.rows):
            chosen[recording.rank] = recording
    return dict(sorted(chosen.items()))


def _started(recording: RankRecording) -> int:
    return int(recording.header.get("process", {}).get("clock_ns", 0))


def align(recordings: Sequence[RankRecording], last: int | None = None) -> Window:
    """The window over all ranks that completed a step; `last` keeps only the newest steps (live views)."""
    newest = newest_of_each_rank(recordings)
    lit = {rank: r for rank, r in newest.items() if len(r.rows)}
    if not lit:
        return empty_window(tuple(newest))
    common = _common_steps([r.rows["step"] for r in lit.values()])
    total = len(common)
    rows = [_pick(r.rows, common) for r in lit.values()]
    skip = find_warmup(np.stack([_duration(r) for r in rows])) if total else 0
    warmup = tuple(float(v) for v in np.median([_duration(r)[:skip] for r in rows], axis=0) / 1e6)
    common = common[: len(common) - _unfinished(list(lit.values()), common)]
    rows = [_pick(r.rows, common) for r in lit.values()]
    begin = max(skip, len(common) - last) if last else skip
    names = _user_names(list(lit.values()))
    picked = [r[begin:] for r in rows]
    steps = common[begin:]
    device = [_device_rows(r, steps) for r in lit.values()]
    on_device = bool(len(steps)) and all(d is not None for d in device)
    return Window(
        ranks=tuple(lit),
        steps=steps,
        keys=(*PHASE_KEYS, *(f"user.{n}" for n in names.values()), WAIT),
        phases=np.stack(
            [
                _device_phases(d, p, names) if on_device and d is not None else _host_phases(p, names)
                for d, p in zip(device, picked, strict=True)
            ]
        ),
        step_ns=np.stack(
            [
                _device_total(d) if on_device and d is not None else _duration(p)
                for d, p in zip(device, picked, strict=True)
            ]
        ),
        own_ns=np.stack([_own_cost(r, p) for r, p in zip(lit.values(), picked, strict=True)]),
        gc_ns=_column(picked, "gc_ns"),
        gc_wait_ns=_column(picked, "gc_wait_ns"),
        wait_places=np.stack(
            [np.stack([p[w.key] for w in c.WAIT_PLACES], axis=1).astype(float) for p in picked]
        ),
        samples=_if_counted(picked, "samples"),
        tokens=_if_counted(picked, "tokens"),
        clock="device" if on_device else "host",
        input_inferred=any(bool((p["flags"] & c.FLAG_INPUT_INFERRED).any()) for p in picked),
        workers=_workers(list(lit.values())),
        warmup=warmup,
        total_steps=total,
        dark_ranks=tuple(rank for rank in newest if rank not in lit),
        hosts=tuple(str(r.identity.get("host", "")) for r in lit.values()),
    )


def empty_window(dark: tuple[int, ...] = ()) -> Window:
    """No completed step anywhere."""
    none = np.zeros((0, 0))
    return Window(
        ranks=(),
        steps=np.zeros(0, dtype=np.int64),
        keys=(*PHASE_KEYS, WAIT),
        phases=np.zeros((0, 0, len(PHASE_KEYS) + 1)),
        step_ns=none,
        own_ns=none,
        gc_ns=none,
        gc_wait_ns=none,
        wait_places=np.zeros((0, 0, len(c.WAIT_PLACES))),
        samples=none,
        tokens=none,
        dark_ranks=dark,
    )


def find_warmup(step_ns: Floats) -> int:
    """How many leading steps are warm-up: the first one (its start is not a step's end), and
    every one up to the last leading step that took twice as long as what follows."""
    count = step_ns.shape[1]
    if count < 5:
        return 0
    typical = np.median(step_ns, axis=0)
    most = min(WARMUP_MOST_STEPS, max(2, int(count * WARMUP_MOST_SHARE)))
    settled = float(np.median(typical[most:]))
    slow = np.flatnonzero(typical[:most] > WARMUP_FACTOR * settled)
    # Slow steps that keep coming are not warm-up: only an unbroken or thinning lead counts.
    last = 0
    for index in slow:
        if index > 2 * last + 3:
            break
        last = int(index)
    return last + 1


def _common_steps(columns: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    common = np.unique(columns[0])
    for column in columns[1:]:
        common = np.intersect1d(common, column)
    return common


def _pick(rows: NDArray[np.void], steps: NDArray[np.int64]) -> NDArray[np.void]:
    if len(rows) == len(steps):
        return rows
    return rows[np.isin(rows["step"], steps)]


def _duration(rows: NDArray[np.void]) -> Floats:
    took: Floats = (rows["end_ns"] - rows["begin_ns"]).astype(float)
    return took


def _column(picked: list[NDArray[np.void]], name: str) -> Floats:
    return np.stack([p[name].astype(float) for p in picked])


def _if_counted(picked: list[NDArray[np.void]], name: str) -> Floats:
    """Counts; 0 means that the size of the batch could not be told."""
    return np.stack([np.where(p[name] > 0, p[name].astype(float), np.nan) for p in picked])


def _user_names(recordings: list[RankRecording]) -> dict[str, str]:
    """Column name to the user's name; ranks that use a slot differently keep the first name."""
    names: dict[str, str] = {}
    for recording in recordings:
        for slot, name in enumerate(recording.user_names):
            if name:
                names.setdefault(f"user{slot}", name)
    return names


def _host_phases(rows: NDArray[np.void], names: dict[str, str]) -> Floats:
    flags = rows["flags"]
    columns = [
        np.where(flags & (1 << i), rows[key].astype(float), np.nan) for i, key in enumerate(PHASE_KEYS)
    ]
    columns += [rows[slot].astype(float) for slot in names]
    wait = np.sum([rows[w.key] for w in c.WAIT_PLACES], axis=0).astype(float)
    return np.stack([*columns, wait], axis=1)


def _device_rows(recording: RankRecording, steps: NDArray[np.int64]) -> NDArray[np.void] | None:
    """This rank's device times for exactly these steps, or None if any is missing: clocks never mix."""
    rows = recording.device_rows
    if rows is None or len(rows) < len(steps):
        return None
    order = np.argsort(rows["step"], kind="stable")
    ordered = rows[order]
    at = np.searchsorted(ordered["step"], steps)
    if (at >= len(ordered)).any() or (ordered["step"][at] != steps).any():
        return None
    return ordered[at]


def _unfinished(recordings: list[RankRecording], steps: NDArray[np.int64]) -> int:
    """Trailing steps whose device times had not come when the run ended: left out, so that the rest can be
    judged on the device's clock."""
    ends = [
        r.device_rows["step"].max() for r in recordings if r.device_rows is not None and len(r.device_rows)
    ]
    if len(ends) < len(recordings):
        return 0
    late = int(np.sum(steps > min(ends)))
    return late if late <= MOST_UNFINISHED else 0


def _device_phases(device: NDArray[np.void], rows: NDArray[np.void], names: dict[str, str]) -> Floats:
    flags = rows["flags"]
    columns = [
        np.where(flags & (1 << i), device[key].astype(float), np.nan) for i, key in enumerate(PHASE_KEYS)
    ]
    columns += [device[slot].astype(float) for slot in names]
    return np.stack([*columns, device[WAIT].astype(float)], axis=1)


def _device_total(device: NDArray[np.void]) -> Floats:
    names = [n for n in device.dtype.names or () if n not in ("step", "sequence")]
    return np.asarray(np.sum([device[n] for n in names], axis=0), dtype=float)


def _own_cost(recording: RankRecording, rows: NDArray[np.void]) -> Floats:
    cost = recording.header.get("overhead", {})
    switch_ns = float(cost.get("switch_ns", 0))
    return rows["switches"].astype(float) * switch_ns + float(cost.get("row_ns", 0))


def _workers(recordings: list[RankRecording]) -> int:
    counts = [int(e.get("workers") or 0) for r in recordings for e in r.events if e["kind"] == "epoch_start"]
    return max(counts, default=0)
