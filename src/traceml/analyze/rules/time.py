"""Step-time diagnoses of the typical rank: where the time of a step goes."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traceml.analyze import window as w
from traceml.analyze.rules.rule import EXPLAINED_SHARE, MOST_SHARE, Measured, Rule, judged_share
from traceml.analyze.views import AFTER_NO_GRAD, TimeView
from traceml.schema import catalog as c
from traceml.schema import fmt
from traceml.schema.summary import Finding

COMPUTE_SHARE: Final = 0.90
HANDOVER_MS: Final = 1.0
"""What a batch from a worker costs the training thread at least: unpickling, a file descriptor, a wake-up.
`bench/loader_workers.py` measures 0.8 to 1.2 ms of its CPU time for batches from 1 kB to 4 MB."""
SMALL_INPUT: Final = 4.0
"""Input of fewer hand-overs than this is too cheap for workers."""
LEAST_PART: Final = 0.25
"""Workers that would hide a smaller part of the input are not advised."""
FEWEST_PER_EPOCH: Final = 20
"""In shorter epochs, what workers save depends on how long the start of each epoch takes."""
MOST_FILLING: Final = 64
MOST_PER_CORE: Final = 4
"""Workers that only wait for storage need no core, but they need memory, and start again in each epoch."""
MOSTLY: Final = 0.5
CALM_WAIT_SHARE: Final = 0.1
"""If threads wait for a core for a larger share of the time, no gain can be promised."""


def _bound(view: TimeView, values: w.Floats, phase: str, burst: int = 1) -> Measured:
    share, typical = view.window.median_share(values), view.window.typical_share(values, burst)
    return Measured(
        level=judged_share(share, typical),
        score=share,
        phase=phase,
        evidence={"share": share, "typical_share": typical, "step_ms": view.step_ms},
        cost_ms=view.window.mean_ms(values),
    )


def input_bound(view: TimeView) -> Measured:
    """The training thread waits for its next batch for a large share of the step."""
    count, inferred = view.window.workers, view.window.input_inferred
    found = _bound(view, view.window.of(w.INPUT), w.INPUT, max(1, count))
    how = f", {_workers(count, 'loader worker')}" if count else ""
    if inferred:
        who = "another thread reads the loader" if view.window.loader_on_thread else "no loader was seen"
        how = f", inferred: {who}, so everything that runs {view.window.input_place} counts as input"
    advice = _advise(view, found.cost_ms or 0.0)
    found.words.update(how=how, advice=advice.text)
    found.evidence.update(inferred=inferred, workers=count)
    found.evidence.update(saves_ms=advice.saves_ms, promised=advice.promised)
    return found


def h2d_bound(view: TimeView) -> Measured | None:
    """Copies to the device take a large share of the step. Judged on the device clock only."""
    if view.window.clock != "device":
        return None
    return _bound(view, view.window.of(w.H2D), w.H2D)


def wait_heavy(view: TimeView) -> Measured:
    """A large share of the step is neither input nor model work: checkpoints, validation, logging."""
    window = view.window
    values = view.net_wait + view.outside_work
    parts = {
        **{_OUTSIDE_WORDS.get(k, w.LABELS[k]): (k, view.cost_of(k)) for k in w.OUTSIDE},
        "garbage collection": (w.WAIT, window.gc_wait_ns),
        **{f"phase {k[5:]!r}": (k, view.cost_of(k)) for k in window.user_keys},
        UNATTRIBUTED: (w.WAIT, np.maximum(view.net_wait - window.gc_wait_ns, 0.0)),
    }
    whole = max(float(values.sum()), 1.0)
    shares = {name: min(1.0, float(part.sum()) / whole) for name, (_, part) in parts.items()}
    name = max(shares, key=lambda n: shares[n])
    phase = parts[name][0]
    # Deliberate work is no jitter, so all of it counts; of the rest only what typical steps show.
    found = _bound(view, values, phase)
    rare = np.maximum(view.net_wait - view.between_rollouts, 0.0)
    steady = window.median_share(view.outside_work + view.between_rollouts) + _bound(view, rare, w.WAIT).level
    # The rank that does nearly all of this phase while the others wait, if there is one.
    totals = window.of(phase).sum(axis=1)
    at = int(np.argmax(totals))
    is_alone = phase != w.WAIT and len(totals) > 1 and totals[at] >= EXPLAINED_SHARE * totals.sum() > 0
    alone = window.ranks[at] if is_alone else None
    advice = _WAIT_ADVICE.get(name, "look at what that phase does on the training thread")
    if name == UNATTRIBUTED:
        advice = _UNATTRIBUTED_ADVICE[_activity(view)]
        calls = view.work.get("model calls")
        many = calls is not None and float(np.median(calls)) >= MANY_CALLS
        plays = _main_place(view)[0] in (AFTER_NO_GRAD, *((AFTER_FORWARD,) if many else ()))
        advice = f"{_ENVIRONMENT}; otherwise {advice}" if plays else advice
    but = "" if window.measured(w.OPTIMIZER) else " that was recorded (the optimizer was not)"
    found.words.update(part=_parts_in_words(view, shares, name, alone), advice=advice, but=but)
    found.evidence.update(largest_part=name, busy_wait_share=view.busy_wait_share)
    return replace(found, level=max(found.level, steady), ranks=() if alone is None else (alone,))


def _parts_in_words(view: TimeView, shares: dict[str, float], largest: str, alone: int | None) -> str:
    """The largest part first, then every other part worth a word; unattributed time with its place."""
    first = f"{largest} on r{alone}" if alone is not None else largest
    worth = [n for n in shares if n != largest and shares[n] >= WORTH_A_WORD]
    others = sorted(worth, key=lambda n: -shares[n])
    words = [] if largest == UNATTRIBUTED else [f"{first} is {fmt.share(shares[largest])} of it"]
    words += [f"{fmt.share(shares[n])} {n}" for n in others if n != UNATTRIBUTED]
    if largest != UNATTRIBUTED and UNATTRIBUTED not in others:
        return ", ".join(words)
    at, share = _main_place(view)
    activity = _activity(view)
    did = f", where the training thread was {activity}" if activity else ""
    # Steps end with the backward pass where no optimizer and nothing of the next step is seen.
    place = at if at or view.window.measured(w.OPTIMIZER) else c.WAIT_BACKWARD - c.FIRST_WAIT
    rest = f"{fmt.share(share)} of it is {c.WAIT_PLACES[place].where}{did}"
    if not words:
        return f"it is unattributed; {rest}"
    unattributed = f"{fmt.share(shares[UNATTRIBUTED])} is unattributed, {rest}"
    return "; ".join([", ".join(words), unattributed] if largest != UNATTRIBUTED else [unattributed, *words])


def _main_place(view: TimeView) -> tuple[int, float]:
    """The place in the step where the median rank waits most, and its share of all waiting."""
    totals = view.window.wait_places.sum(axis=1)
    totals = totals[np.argsort(totals.sum(axis=1))[(len(totals) - 1) // 2]]
    at = int(np.argmax(totals))
    return at, float(totals[at] / max(totals.sum(), 1.0))


def _activity(view: TimeView) -> str:
    """What the training thread did while it waited, if that is certain. Waiting for a device keeps the thread
    running; on a busy machine, a thread that wants to run may not."""
    share, window = view.busy_wait_share, view.window
    if window.clock != "device" and share >= MOSTLY_BUSY:
        return "busy"
    return "idle" if share <= MOSTLY_IDLE and window.cpu_delay_share < NOTABLE_DELAY else ""


UNATTRIBUTED: Final = "unattributed"
AFTER_FORWARD: Final = c.WAIT_FORWARD - c.FIRST_WAIT
MANY_CALLS: Final = 10
"""A model that is called so often in a step may act in an environment."""
WORTH_A_WORD: Final = 0.1
MOSTLY_BUSY, MOSTLY_IDLE, NOTABLE_DELAY = 0.7, 0.3, 0.05
_OUTSIDE_WORDS: Final = {w.CHECKPOINT: "checkpoint writing"}
_UNATTRIBUTED_ADVICE: Final = {
    "busy": "profile the Python or tensor code at that place in the loop, and make it cheaper",
    "idle": "look for sleeps, blocking writes, locks and network calls at that place in the loop",
    "": "look for logging, .item() calls, sleeps and Python work at that place in the loop",
}
_ENVIRONMENT: Final = (
    "if an environment runs there (reinforcement learning), try to make its steps cheaper, or to run several "
    "environments at once"
)
_WAIT_ADVICE: Final = {
    "checkpoint writing": "save less often, or asynchronously (torch.distributed.checkpoint.async_save)",
    "validation": "validate less often or on fewer batches",
    "garbage collection": "collect less often (gc.freeze() after setup, or gc.disable() and collect rarely)",
}


def compute_bound(view: TimeView) -> Measured | None:
    """The model fills the step: forward, backward, optimizer, and forward passes without gradients."""
    window = view.window
    share = min(window.median_share(window.of(*w.MODEL)), 1.0)  # our own cost is no part of the step
    shares = {key: window.median_share(window.of(key)) for key in w.MODEL}
    largest = max(shares, key=lambda key: shares[key])
    if share < COMPUTE_SHARE and shares[largest] < MOST_SHARE:
        return None
    how = _COMPUTE_ADVICE.get(largest, "batch size, precision, kernels")
    if largest == w.NO_GRAD and view.played.any():
        times = np.count_nonzero(view.played.any(axis=0))
        how = f"it runs in {times} of {window.count} steps, so run it less often or on fewer samples"
    return Measured(
        level=share,
        score=share,
        words={"step": fmt.ms(view.step_ms), "what": w.LABELS[largest], "how": how},
        phase=largest,
        evidence={"share": share, "largest": largest, "largest_ms": window.mean_ms(window.of(largest))},
    )


_COMPUTE_ADVICE: Final = {
    w.OPTIMIZER: "fused=True or foreach=True, fewer steps with larger batches",
    w.NO_GRAD: "cache what a teacher or reference model computes, run it in lower precision, batch rollouts",
}
# ---- what to do about waiting for input ----------------------------------------------------------
#
# A worker takes the dataset's work off the training thread. It costs a hand-over per batch, start-up in each
# epoch, and a core if the dataset computes. So workers are advised only if a step would be shorter with them.


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, and how much shorter a step will be. Not `promised`: at most that much."""

    text: str
    saves_ms: float
    promised: bool = False


def _advise(view: TimeView, input_ms: float) -> Advice:
    """For a run that waits `input_ms` per step for its batches."""
    window = view.window
    start_ms = _epoch_start_ms(view)
    if start_ms >= EXPLAINED_SHARE * input_ms:
        return Advice(f"most of the wait is where epochs begin: {_of_epoch_starts(window)}", start_ms)
    if window.input_inferred:
        own = _OWN_LOADER.format(place=window.input_place)
        return Advice(_READ_BY_A_THREAD if window.loader_on_thread else own, input_ms)
    handover_ms = HANDOVER_MS * window.batches_per_step
    if input_ms < SMALL_INPUT * handover_ms:
        return _for_cheap_batches(view, input_ms, handover_ms)
    best_ms = _with_enough_workers(view, input_ms, handover_ms)
    if view.step_ms - best_ms < LEAST_PART * input_ms:
        return _for_busy_cores(view, input_ms)
    # Without workers the whole input takes one thread; workers that hold up the step are busy all the time.
    # While the script validates or saves, they only fill their queue.
    work_ms = input_ms if not window.workers else window.workers * view.step_ms
    apart_ms = window.mean_ms(view.outside_work)
    loads_ms = max(best_ms - apart_ms, HANDOVER_MS)
    most = max(MOST_PER_CORE * max(window.core_use.cores, 1), window.workers)
    count = min(math.ceil(work_ms / loads_ms), most)
    if window.workers:
        count = min(count + 1, most)  # these batches are known to come unevenly
        more = f"num_workers={count}, or " if count > window.workers else ""
        has = f"the loader already has {_workers(window.workers)}, too few or too slow"
        return Advice(f"{has}: try {more}a faster dataset", input_ms)
    # The first batch of each epoch is waited for, and without persistent workers also their start.
    epochs = len(window.epoch_starts.intersection(window.steps.tolist()))
    stay = ", persistent_workers=True" if epochs > 1 else ""
    text = f"load batches in the background (DataLoader with num_workers={count}{stay})"
    if window.core_use.free is None or window.core_use.wait_share >= CALM_WAIT_SHARE:
        floor_ms = view.step_ms * (window.core_use.run_busy or 0.0) / max(window.core_use.cores, 1)
        return Advice(f"try to {text}", min(input_ms, view.step_ms - floor_ms))
    expected_ms = max(loads_ms, work_ms / count) + apart_ms + work_ms * epochs / window.count
    is_certain = epochs <= window.count / FEWEST_PER_EPOCH
    saves_ms = view.step_ms - expected_ms
    return Advice(text if is_certain else f"try to {text}", max(saves_ms, 0.0), promised=is_certain)


def _workers(count: int, noun: str = "worker") -> str:
    """`1 worker`, `2 workers`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def _epoch_start_ms(view: TimeView, phase: str = w.INPUT) -> float:
    """What the start of epochs costs a mean step: what their first steps spend more on input or wait."""
    window = view.window
    # Each worker that starts has yet to make its first batch.
    filling = min(max(1, window.workers), MOST_FILLING)
    starts = np.array(list(window.epoch_starts), dtype=np.int64)
    first = np.isin(window.steps, starts[:, None] + np.arange(filling))
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
    if _epoch_start_ms(view, finding.phase) < EXPLAINED_SHARE * cost:
        return finding
    is_input, between = finding.phase == w.INPUT, "look at what the loop does between epochs"
    advice = _of_epoch_starts(view.window) if is_input else between
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
    if not count:
        return Advice(f"loader workers would cost more than they save; try to {cheap}", input_ms)
    few = "num_workers=0" if count <= 2 else "fewer workers or num_workers=0"
    # A short wait says little about workers that hide long work. They cannot do more than this in a step.
    is_cheap = count * view.step_ms < SMALL_INPUT * handover_ms
    takes = f"takes about {fmt.ms(HANDOVER_MS)}, which is a lot here"
    do = f"{few}, then" if is_cheap else "to"
    return Advice(f"handing a batch over from a worker {takes}: try {do} {cheap}", input_ms)


def _for_busy_cores(view: TimeView, input_ms: float) -> Advice:
    window = view.window
    use = window.core_use
    busy = f"the {use.cores} cores are busy"
    cheaper = "a cheaper dataset: cached or pre-computed tensors, fewer transforms"
    # Whether it is certain that loading wants a core for most of its time. Known is how long all threads and
    # workers of the run wanted one: what the rest of the step can have used of that is taken off.
    count, step_ms = window.workers, view.step_ms
    loading_ms = min(count, use.cores) * step_ms if count else input_ms
    wanted_ms = step_ms * ((use.run_busy or 0.0) + use.wait_share * max(count, 1))
    if wanted_ms - (step_ms - input_ms) * use.threads < MOSTLY * loading_ms:
        more = f"num_workers={count + 1} if loading waits for storage or a network, otherwise {cheaper}"
        return Advice(f"{busy}, but loading may not need them: try {more}", input_ms)
    if not window.workers:
        return Advice(f"{busy}, so loader workers would only compete for them: try {cheaper}", input_ms)
    free = max(1, use.cores // use.processes - 1)
    is_ours = (use.run_busy or 0.0) > (use.others_busy or 0.0)  # else fewer workers free no core
    fewer = f"num_workers={free}, or " if is_ours and free < window.workers else ""
    more = f"more than {_workers(window.workers)} cannot help"
    return Advice(f"{busy}, so {more}: try {fewer}{cheaper}", input_ms)


_OWN_LOADER: Final = (
    "look at what runs {place}. If it makes the batch, try to do that in the background: a "
    "DataLoader with workers, or a thread. If it logs or saves, try to do that less often"
)
_READ_BY_A_THREAD: Final = (
    "if the training waits for the thread that reads the loader, try more loader workers or a faster dataset"
)


RULES: Final[tuple[Rule[TimeView], ...]] = (
    Rule(
        "INPUT_BOUND",
        input_bound,
        "Waiting for input takes {cost_ms} of each {step_ms} step ({share}{how}).",
        "Inspect the input path: {advice}.",
        status="INPUT-BOUND",
        needs=(w.INPUT,),
    ),
    Rule(
        "H2D_BOUND",
        h2d_bound,
        "Copying data to the device takes {cost_ms} of each {step_ms} step ({share}).",
        "Try pinned memory in the loader and copies with non_blocking=True, or copy fewer bytes.",
        status="H2D-BOUND",
    ),
    Rule(
        "WAIT_HEAVY",
        wait_heavy,
        "{cost_ms} of each {step_ms} step ({share}) is neither input nor model work{but}: {part}.",
        "Inspect that time: {advice}.",
        status="WAIT-HEAVY",
        needs=(w.FORWARD, w.BACKWARD),
    ),
    Rule(
        "COMPUTE_BOUND",
        compute_bound,
        "Model work is {share} of each {step} step; {what} is the largest part ({largest_ms}).",
        "Try to make {what} cheaper: {how}. An operator-level profiler shows where it spends its time.",
        thresholds=None,
        status="COMPUTE-BOUND",
        needs=w.COMPUTE,
        only_if_nothing_else=True,
    ),
)
