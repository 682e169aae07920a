"""From each rank's rows to one aligned window: the steps that all ranks completed, without warm-up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.attempts import find_attempts
from traceml.analyze.gather import Planes
from traceml.analyze.window import PHASE_KEYS, WAIT, Floats, Window, median_of_ranks
from traceml.schema import catalog as c
from traceml.schema.recorded import RankRecording

WARMUP_FACTOR = 2.0
WARMUP_MOST_STEPS = 50
WARMUP_MOST_SHARE = 0.2
MOST_WARMUP_RANKS = 256
MOST_UNFINISHED = 16
FEW_STEPS = 20

Steps = NDArray[np.int64]
Rows = NDArray[np.void]


def align(recordings: Sequence[RankRecording], last: int | None = None) -> Window:
    """The window over all ranks that completed a step; `last` keeps only the newest steps (live views)."""
    return align_ranks(find_attempts(recordings).chosen, last)


def align_ranks(newest: dict[int, RankRecording], last: int | None = None) -> Window:
    """The same from one recording a rank, in the order of ranks."""
    lit = _lasting(_overlapping({rank: r for rank, r in newest.items() if len(r.rows)}))
    dark = tuple(rank for rank in newest if rank not in lit)
    if not lit:
        return empty_window(dark)
    ranks = list(lit.values())
    held = StepColumns([r.rows["step"] for r in ranks])
    earlier = _steps_before(ranks, held)
    steps = held.common[: len(held.common) - _unfinished(ranks, held.common)]
    steps = steps[-last:] if last else steps
    names = _user_names(ranks)
    planes = Planes(ranks, len(steps), names)
    planes.fill(held.pick([r.rows for r in ranks], steps))
    warmup_ms, warm_until = _warmup(ranks, held.common, earlier, planes.step_ns, steps)
    begin = int(np.searchsorted(steps, warm_until, side="right"))
    steps = steps[begin:]
    planes.leave_out(begin)
    on_device = _use_device(planes, ranks, steps)
    return Window(
        ranks=tuple(lit),
        steps=steps,
        keys=(*PHASE_KEYS, *(f"user.{n}" for n in names), WAIT),
        phases=np.moveaxis(planes.phases, 0, 2),
        step_ns=planes.step_ns,
        own_ns=planes.own_ns,
        gc_ns=planes.gc["gc_ns"],
        gc_wait_ns=planes.gc["gc_wait_ns"],
        wait_places=np.moveaxis(planes.places, 0, 2),
        samples=planes.amounts["samples"],
        tokens=planes.amounts["tokens"],
        memory=planes.memory,
        clock="device" if on_device else "host",
        input_inferred=planes.input_inferred,
        workers=_workers(ranks),
        warmup=warmup_ms,
        total_steps=len(held.common) + earlier,
        earlier_steps=earlier,
        dark_ranks=dark,
        hosts=tuple(str(r.identity.get("host", "")) for r in ranks),
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
    typical = median_of_ranks(step_ns) if step_ns.size else np.zeros(0)
    most = _most_warmup(step_ns.shape[1])
    return _leading_slow(typical[:most], typical[most:], step_ns.shape[1])


def _most_warmup(count: int) -> int:
    return min(WARMUP_MOST_STEPS, max(2, int(count * WARMUP_MOST_SHARE)))


def _leading_slow(lead: Floats, after: Floats, count: int) -> int:
    if count < 5 or not len(after):
        return 0
    slow = np.flatnonzero(lead > WARMUP_FACTOR * float(np.median(after)))
    # Slow steps that keep coming are not warm-up: only an unbroken or thinning lead counts.
    last = 0
    for index in slow:
        if index > 2 * last + 3:
            break
        last = int(index)
    return last + 1


def _warmup(
    ranks: list[RankRecording], common: Steps, earlier: int, step_ns: Floats, steps: Steps
) -> tuple[tuple[float, ...], int]:
    """(ms of each step that is left out, the last of them). The first steps of the run, wherever they are
    kept, are judged against the steps of the window. Of very many ranks some are enough for this."""
    count = len(common) + earlier
    every = -(-len(ranks) // MOST_WARMUP_RANKS)
    some = ranks[::every]
    heads: list[Rows] = [r.head if earlier and r.head is not None else r.rows for r in some]
    columns = StepColumns([h["step"][: 2 * WARMUP_MOST_STEPS] if earlier else h["step"] for h in heads])
    first = (columns.common if earlier else common)[: _most_warmup(count)]
    if not len(first) or not len(steps):
        return (), -1
    lead_rows = columns.pick(heads, first)
    lead = median_of_ranks(np.stack([(r["end_ns"] - r["begin_ns"]).astype(float) for r in lead_rows]))
    after = median_of_ranks(step_ns[::every, np.searchsorted(steps, first[-1], side="right") :])
    skip = _leading_slow(lead, after, count)
    return tuple(float(v) for v in lead[:skip] / 1e6), int(first[skip - 1]) if skip else -1


def _overlapping(lit: dict[int, RankRecording]) -> dict[int, RankRecording]:
    """Without ranks that stopped before the steps of which the others' rows are still there."""
    cut = max((int(r.rows["step"][0]) for r in lit.values() if r.earlier is not None), default=None)
    if cut is None:
        return lit
    return {rank: r for rank, r in lit.items() if int(r.rows["step"][-1]) >= cut} or lit


def _lasting(lit: dict[int, RankRecording]) -> dict[int, RankRecording]:
    """Without ranks that stopped in their first steps, while most of the others went on: one rank that died
    early does not silence what the others prove."""
    lasts = {rank: int(r.rows["step"][-1]) for rank, r in lit.items()}
    if not lasts or np.median(list(lasts.values())) < 2 * FEW_STEPS:
        return lit
    return {rank: r for rank, r in lit.items() if lasts[rank] >= FEW_STEPS} or lit


def _steps_before(ranks: list[RankRecording], held: StepColumns) -> int:
    """Steps that all ranks completed before those of which every rank's row is there.

    A rank counts its steps without gaps, so that the rank that has fewest of them tells.
    """
    if not len(held.common) or all(r.earlier is None for r in ranks):
        return 0
    known = [int(r.earlier["steps"]) if r.earlier is not None else 0 for r in ranks]
    return int((np.array(known) + held.counts_before(int(held.common[0]))).min())


class StepColumns:
    """The step numbers of many ranks. Nearly always they have no gaps, and then their ends say it all."""

    def __init__(self, columns: list[Steps]) -> None:
        self._columns = columns
        lengths = np.array([len(column) for column in columns])
        every = np.concatenate(columns)
        ends = np.cumsum(lengths)
        rises = np.ones(len(every), dtype=bool)
        np.equal(every[1:] - every[:-1], 1, out=rises[1:])
        rises[ends[:-1]] = True
        self._gapless = bool(rises.all())
        self._firsts = every[ends - lengths]
        self.common = self._common(every[ends - 1])

    def _common(self, lasts: Steps) -> Steps:
        """Step numbers that are in every column."""
        if self._gapless:
            return np.arange(int(self._firsts.max()), int(lasts.min()) + 1)
        common = np.unique(self._columns[0])
        for column in self._columns[1:]:
            common = np.intersect1d(common, column)
        return common

    def counts_before(self, step: int) -> Steps:
        """How many steps each column has before this one, which is in every column."""
        if self._gapless:
            counts: Steps = step - self._firsts
            return counts
        return np.array([int(np.sum(column < step)) for column in self._columns])

    def pick(self, rows: list[Rows], steps: Steps) -> list[Rows]:
        """From each rank's rows, which these columns are of, those of the given steps."""
        if not len(steps):
            return [r[:0] for r in rows]
        if self._gapless:
            begins = (steps[0] - self._firsts).tolist()
            return [r[begin : begin + len(steps)] for r, begin in zip(rows, begins, strict=True)]
        return [_pick(r, steps) for r in rows]


def _pick(rows: Rows, steps: Steps) -> Rows:
    """Of a step that is there twice the later row."""
    order = np.argsort(rows["step"], kind="stable")
    return rows[order[np.searchsorted(rows["step"], steps, side="right", sorter=order) - 1]]


def _user_names(recordings: list[RankRecording]) -> list[str]:
    """Every user phase of any rank, once."""
    return list(dict.fromkeys(name for r in recordings for name in r.user_names if name))


def _use_device(planes: Planes, ranks: list[RankRecording], steps: Steps) -> bool:
    """The device's clock, if every rank has it for every step: clocks never mix."""
    if not len(steps):
        return False
    found = []
    for recording in ranks:
        rows = _device_rows(recording, steps)
        if rows is None:
            return False
        found.append(rows)
    planes.use_device(found)
    return True


def _device_rows(recording: RankRecording, steps: Steps) -> Rows | None:
    """This rank's device times for exactly these steps, or None if any is missing."""
    rows = recording.device_rows
    if rows is None or len(rows) < len(steps):
        return None
    order = np.argsort(rows["step"], kind="stable")
    ordered = rows[order]
    at = np.searchsorted(ordered["step"], steps)
    if (at >= len(ordered)).any() or (ordered["step"][at] != steps).any():
        return None
    return ordered[at]


def _unfinished(recordings: list[RankRecording], steps: Steps) -> int:
    """Trailing steps whose device times had not come when the run ended: left out, so that the rest can be
    judged on the device's clock."""
    ends = [
        r.device_rows["step"].max() for r in recordings if r.device_rows is not None and len(r.device_rows)
    ]
    if len(ends) < len(recordings):
        return 0
    late = int(np.sum(steps > min(ends)))
    return late if late <= MOST_UNFINISHED else 0


def _workers(recordings: list[RankRecording]) -> int:
    counts = [int(e.get("workers") or 0) for r in recordings for e in r.events if e["kind"] == "epoch_start"]
    return max(counts, default=0)
