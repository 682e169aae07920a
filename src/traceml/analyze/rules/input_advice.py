"""What to do about waiting for input: what loader workers would gain here, and what they would cost.

A worker takes the dataset's work off the training thread. It costs a hand-over per batch, start-up in each
epoch, and a core if the dataset computes. So workers are advised only if a step would be shorter with them.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traceml.analyze import window as w
from traceml.analyze.rules.rule import EXPLAINED_SHARE
from traceml.analyze.views import TimeView
from traceml.schema import fmt
from traceml.schema.summary import Finding

HANDOVER_MS: Final = 1.0
"""What a batch from a worker costs the training thread at least: unpickling, a file descriptor, a wake-up.
`bench/loader_workers.py` measures 0.8 to 1.2 ms of its CPU time for batches from 1 kB to 4 MB."""
SMALL_INPUT: Final = 4.0
"""Input of fewer hand-overs than this is too cheap for workers."""
LEAST_PART: Final = 0.25
"""Workers that would hide a smaller part of the input are not advised."""
MOST_PER_CORE: Final = 4
"""Workers that only wait for storage need no core, but memory and a start in each epoch."""
MOSTLY: Final = 0.5
CALM_WAIT_SHARE: Final = 0.1
"""If threads wait for a core longer than this, no gain can be promised."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, and how much shorter a step will be. Not `promised`: at most that much."""

    text: str
    saves_ms: float
    promised: bool = False


def advise(view: TimeView, input_ms: float) -> Advice:
    """For a run that waits `input_ms` per step for its batches."""
    window = view.window
    start_ms = epoch_start_ms(view)
    if start_ms >= EXPLAINED_SHARE * input_ms:
        return Advice(f"most of it is where an epoch begins: {_of_epoch_starts(window)}", start_ms)
    if window.input_inferred:
        return Advice(_OWN_LOADER, input_ms)
    handover_ms = HANDOVER_MS * window.batches_per_step
    if input_ms < SMALL_INPUT * handover_ms:
        return _for_cheap_batches(view, input_ms, handover_ms)
    best_ms = _with_enough_workers(view, input_ms, handover_ms)
    if view.step_ms - best_ms < LEAST_PART * input_ms:
        return _for_busy_cores(view, input_ms)
    # Without workers the whole input takes one thread; workers that hold up the step are busy all the time.
    work_ms = input_ms if not window.workers else window.workers * view.step_ms
    most = max(MOST_PER_CORE * max(window.core_use.cores, 1), window.workers)
    count = min(math.ceil(work_ms / best_ms), most)
    if window.workers:
        count = min(count + 1, most)  # these batches are known to come unevenly
        more = f"num_workers={count}, or " if count > window.workers else ""
        has = f"the loader already has {workers(window.workers)}, too few or too slow"
        return Advice(f"{has}: try {more}a faster dataset", input_ms)
    text = f"load batches in the background (DataLoader with num_workers={count})"
    if window.core_use.free is None or window.core_use.wait_share >= CALM_WAIT_SHARE:
        floor_ms = view.step_ms * (window.core_use.run_busy or 0.0) / max(window.core_use.cores, 1)
        return Advice(f"try to {text}", min(input_ms, view.step_ms - floor_ms))
    return Advice(text, view.step_ms - max(best_ms, work_ms / count), promised=True)


def workers(count: int, noun: str = "worker") -> str:
    """`1 worker`, `2 workers`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def epoch_start_ms(view: TimeView, phase: str = w.INPUT) -> float:
    """What the start of epochs costs a mean step: what their first steps spend more on input or wait."""
    window = view.window
    first = np.isin(window.steps, list(window.epoch_starts))
    if not first.any() or first.all():
        return 0.0
    spent_ns = w.median_over_ranks(window.of(phase))
    extra = spent_ns[first] - np.median(spent_ns[~first])
    return float(np.maximum(extra, 0.0).sum()) / window.count / 1e6


def consider_epoch_starts(finding: Finding, view: TimeView) -> Finding:
    """Slow steps that are slow because an epoch begins: say so."""
    cost = finding.evidence.get("cost_ms")
    if finding.kind != "JITTER" or finding.phase not in (w.INPUT, w.WAIT) or not isinstance(cost, float):
        return finding
    if epoch_start_ms(view, finding.phase) < EXPLAINED_SHARE * cost:
        return finding
    between = "look at what the loop does between epochs"
    advice = _of_epoch_starts(view.window) if finding.phase == w.INPUT else between
    return replace(finding, action=f"In those steps an epoch begins: {advice}.")


def _of_epoch_starts(window: w.Window) -> str:
    if window.workers:
        return "loader workers start, so set persistent_workers=True in the DataLoader"
    return "look at what the dataset and its sampler do then: shuffling, listing or opening files"


def _with_enough_workers(view: TimeView, input_ms: float, handover_ms: float) -> float:
    """The shortest step that any number of workers allows: the rest of the step and the hand-over, or all
    CPU time of a step spread over the cores that the run can get."""
    use = view.window.core_use
    rest_ms = view.step_ms - input_ms + handover_ms
    if use.run_busy is None or not use.cores:
        return rest_ms
    # Other work gives up some of its cores when the run wants more: the kernel is fair. If cores are short, a
    # thread gets one for a part of the time in which it wants one; while it waits for storage, it wants none.
    can_get = max(use.cores - (use.others_busy or 0.0), use.run_busy, use.cores / 2)
    if use.is_short:
        can_get = max(use.run_busy, use.run_busy / (use.run_busy + use.wait_share))
    return max(rest_ms, (view.step_ms * use.run_busy + 2 * handover_ms) / max(can_get, 0.01))


def _for_cheap_batches(view: TimeView, input_ms: float, handover_ms: float) -> Advice:
    count = view.window.workers
    cheap = "index a whole batch at once (a tensor, or the dataset's __getitems__), or use larger batches"
    if count:
        few = "num_workers=0" if count <= 2 else "fewer workers or num_workers=0"
        # A short wait says little about workers that hide long work. They cannot do more than this in a step.
        is_cheap = count * view.step_ms < SMALL_INPUT * handover_ms
        text = (
            f"handing a batch over from a worker takes about {fmt.ms(HANDOVER_MS)}, which is much here: "
            f"try {f'{few}, then' if is_cheap else 'to'} {cheap}"
        )
    else:
        text = f"loader workers would cost more than they save; try to {cheap}"
    return Advice(text, input_ms)


def _for_busy_cores(view: TimeView, input_ms: float) -> Advice:
    window = view.window
    use = window.core_use
    busy = f"the {use.cores} cores are busy"
    cheaper = "a cheaper dataset: cached or pre-computed tensors, fewer transforms"
    if not _loading_computes(view, input_ms):
        count = window.workers + 1
        more = f"num_workers={count} if loading waits for storage or a network, otherwise {cheaper}"
        return Advice(f"{busy}, and it is not certain that loading needs them: try {more}", input_ms)
    if not window.workers:
        return Advice(f"{busy}, so loader workers would only compete for them: try {cheaper}", input_ms)
    free = max(1, use.cores // use.processes - 1)
    is_ours = (use.run_busy or 0.0) > (use.others_busy or 0.0)  # else fewer workers free no core
    fewer = f"num_workers={free}, or " if is_ours and free < window.workers else ""
    more = f"more than {workers(window.workers)} cannot help"
    return Advice(f"{busy}, so {more}: try {fewer}{cheaper}", input_ms)


def _loading_computes(view: TimeView, input_ms: float) -> bool:
    """Whether it is certain that loading wants a core for most of its time. Known is how long all threads and
    workers of the run wanted one: what the rest of the step can have used of that is taken off."""
    use, step_ms = view.window.core_use, view.step_ms
    count = view.window.workers
    loading_ms = min(count, use.cores) * step_ms if count else input_ms
    wanted_ms = step_ms * ((use.run_busy or 0.0) + use.wait_share * max(count, 1))
    rest_ms = (step_ms - input_ms) * use.threads
    return wanted_ms - rest_ms >= MOSTLY * loading_ms


_OWN_LOADER: Final = (
    "no loader was seen, so try to prepare batches in the background: a DataLoader with workers, or a thread"
)
