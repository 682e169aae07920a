"""From each rank's rows to one aligned window: the steps that all ranks completed, without warm-up."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.recordings import Ranks
from traceml.analyze.rules.rule import MOST_SHARE
from traceml.analyze.window import SYNC, Floats, Window, median_low, median_over_ranks
from traceml.analyze.window_arrays import Before, Rows, WindowArrays
from traceml.schema.recorded import RankRecording

WARMUP_FACTOR: Final = 2.0
WARMUP_MOST_STEPS: Final = 50
WARMUP_MOST_SHARE: Final = 0.2
PLATEAU_STEPS: Final = 6
WARMUP_MOST_RANKS: Final = 256
"""With more ranks, an even selection of them decides how long the warm-up is."""
NOTABLE_SHARE: Final = 0.1
"""A single step that takes this share of the run is reported."""
MOST_UNFINISHED: Final = 16
FEW_STEPS: Final = 20

Steps = NDArray[np.int64]
Ends = tuple[int, int]


def align_ranks(newest: Ranks, before: Before | None = None) -> Window:
    """The window over all ranks that completed a step, from one recording per rank, in the order of ranks."""
    with_steps, held = _comparable(newest)
    without = tuple(rank for rank in newest if rank not in with_steps)
    if held is None:
        empty = WindowArrays((), np.zeros(0, dtype=np.int64), ()).window((), 0)
        return replace(empty, ranks_without_steps=without)
    ranks = list(with_steps.values())
    earlier = 0  # steps that all ranks completed before the first one that every rank still has a row of
    if len(held.common) and any(r.earlier is not None for r in ranks):
        known = [int(r.earlier["steps"]) if r.earlier is not None else 0 for r in ranks]
        earlier = int((np.array(known) + held.common[0] - held.firsts).min())
    steps = held.common[: len(held.common) - _unfinished(ranks, held.common)]
    user_names = list(dict.fromkeys(name for r in ranks for name in r.user_names if name))
    arrays = WindowArrays(ranks, steps, user_names)
    known_steps = arrays.take_over(before.arrays) if before is not None and before.arrays is not None else 0
    arrays.fill(held.pick([r.rows for r in ranks], steps[known_steps:]), known_steps)
    if before is not None:
        before.arrays = arrays
    warmup_ms, warm_until = _warmup(ranks, held.common, earlier, arrays.fields["step_ns"], steps)
    begin = int(np.searchsorted(steps, warm_until, side="right"))
    starts = [e for r in ranks for e in r.events if e.kind == "epoch_start"]
    return replace(
        arrays.window(tuple(with_steps), begin, _device_rows(ranks, steps[begin:])),
        workers=max((e.workers or 0 for e in starts), default=0),
        epoch_starts=frozenset(e.step for e in starts if e.step is not None),
        loader_on_thread=any(e.kind == "loader_on_thread" for r in ranks for e in r.events),
        early_batch=any(e.kind == "early_batch" for r in ranks for e in r.events),
        new_optimizers=tuple(
            e.step for e in ranks[0].events if e.kind == "new_optimizer" and e.step is not None
        ),
        batches_per_step=max(1.0, float(np.mean(ranks[0].rows["micro_batches"]))),
        warmup=warmup_ms,
        total_steps=len(held.common) + earlier,
        earlier_steps=earlier,
        ranks_without_steps=without,
        hosts=tuple((r.identity.host or "") for r in ranks),
    )


def _comparable(ranks: Ranks) -> tuple[Ranks, StepColumns | None]:
    """The ranks with rows, and their steps. Without those that stopped before the oldest steps that others
    still have rows of, or in their first steps while most others continued: a rank that died early must not
    hide what the others show. A rank numbers its steps without gaps: rows with gaps are damaged."""
    ends = {rank: _ends(r.rows) for rank, r in ranks.items() if len(r.rows)}
    ends = {rank: (a, b) for rank, (a, b) in ends.items() if b - a + 1 == len(ranks[rank].rows)}
    least = max((first for rank, (first, _) in ends.items() if ranks[rank].earlier is not None), default=0)
    if ends and np.median([last for _, last in ends.values()]) >= 2 * FEW_STEPS:
        least = max(least, FEW_STEPS)
    used = {rank: (first, last) for rank, (first, last) in ends.items() if last >= least}
    return {rank: ranks[rank] for rank in used}, StepColumns(list(used.values())) if used else None


def _ends(rows: Rows) -> Ends:
    return int(rows["step"][0]), int(rows["step"][-1])


def _warmup(
    ranks: list[RankRecording], common: Steps, earlier: int, step_ns: Floats, steps: Steps
) -> tuple[tuple[float, ...], int]:
    """(ms of each step to leave out, the last of them): the run's first steps compared with the window."""
    count = len(common) + earlier
    every = -(-len(ranks) // WARMUP_MOST_RANKS)
    some = ranks[::every]
    heads: list[Rows] = [r.head if earlier and r.head is not None else r.rows for r in some]
    heads = [h[: 2 * WARMUP_MOST_STEPS] if earlier else h for h in heads]
    columns = StepColumns(list(map(_ends, heads)))
    most = min(WARMUP_MOST_STEPS, max(2, int(count * WARMUP_MOST_SHARE)))
    first = (columns.common if earlier else common)[:most]
    if not len(first) or not len(steps):
        return (), -1
    rows = columns.pick(heads, first)
    took = np.stack([(r["end_ns"] - r["begin_ns"]).astype(float) for r in rows])
    own_first = took[:, 0] - [r[SYNC][0] for r in rows]
    lead = median_over_ranks(took)
    after = median_over_ranks(step_ns[::every, np.searchsorted(steps, first[-1], side="right") :])
    is_enough = count >= 5 and len(after) and not _stands_alone(own_first, float(lead.sum() + after.sum()))
    skip = _leading_slow(lead, took.max(axis=0), after) if is_enough else 0
    return tuple(float(v) for v in lead[:skip] / 1e6), int(first[skip - 1]) if skip else -1


def _stands_alone(own: Floats, all_ns: float) -> bool:
    """Whether one rank's work in its first step takes far longer than that of the others, and most of the
    training: that is no warm-up, which all ranks have."""
    others = median_low(np.sort(own)[:-1]) if len(own) > 1 else float(own.max())
    return float(own.max()) - others > max(MOST_SHARE * all_ns, WARMUP_FACTOR * others)


def _leading_slow(lead: Floats, longest: Floats, after: Floats) -> int:
    """How many leading steps are warm-up: the first one (it does not begin at the end of a step), and every
    one up to the last leading step that took twice as long as later steps, and longer than most of them.
    `longest` is what each took on its slowest rank."""
    last = 0
    notable = NOTABLE_SHARE * float(lead.sum() + after.sum())
    usual = max(WARMUP_FACTOR * float(np.median(after)), float(np.percentile(after, 90)))
    end = min(_first_to_stand_out(took, notable) for took in (lead, longest))
    for index in np.flatnonzero(lead[:end] > usual):  # no slower than many later steps is no warm-up
        if index > 2 * last + 3:
            break  # slow steps that keep coming are not warm-up: only an unbroken or thinning lead counts
        last = int(index)
    slow = lead[1 : last + 1][lead[1 : last + 1] > usual]
    early, late = np.array_split(slow, 2)
    if len(slow) >= PLATEAU_STEPS and np.median(late) > np.median(early) / 2:
        return 1  # nor are many that get no faster: a first epoch without a cache
    return last + 1


def _first_to_stand_out(took: Floats, notable: float) -> int:
    """The first step that takes far longer than those before it, and a notable part of all time: it must not
    vanish as warm-up, even if it is one rank's alone. Without one, how many steps there are."""
    before = np.maximum.accumulate(took)[:-1]
    far = np.flatnonzero(took[1:] > np.maximum(notable, WARMUP_FACTOR * before))
    return int(far[0]) + 1 if len(far) else len(took)


class StepColumns:
    """The step numbers of many ranks. They have no gaps, so their ends are enough."""

    def __init__(self, ends: list[Ends]) -> None:
        self.firsts = np.array([first for first, _ in ends])
        self.common = np.arange(self.firsts.max(), min(last for _, last in ends) + 1)

    def pick(self, rows: list[Rows], steps: Steps) -> list[Rows]:
        """The rows of these consecutive steps, from each rank's rows."""
        if not len(steps):
            return [r[:0] for r in rows]
        begins = (steps[0] - self.firsts).tolist()
        return [r[begin : begin + len(steps)] for r, begin in zip(rows, begins, strict=True)]


def _device_rows(ranks: list[RankRecording], steps: Steps) -> list[Rows]:
    """Each rank's device times of these steps; empty if any is missing, because clocks never mix."""
    found = []
    for recording in ranks:
        rows = recording.device_rows
        if rows is None or not 0 < len(steps) <= len(rows):
            return []
        ordered = rows[np.argsort(rows["step"], kind="stable")]
        found.append(ordered[np.searchsorted(ordered["step"], steps, side="right") - 1])
        if (found[-1]["step"] != steps).any():
            return []
    return found


def _unfinished(ranks: list[RankRecording], steps: Steps) -> int:
    """How many trailing steps had no device times yet when the run ended. Without them the rest can be judged
    on the device clock."""
    ends = [r.device_rows["step"].max() for r in ranks if r.device_rows is not None and len(r.device_rows)]
    if len(ends) < len(ranks):
        return 0
    late = int(np.sum(steps > min(ends)))
    return late if late <= MOST_UNFINISHED else 0
