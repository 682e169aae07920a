"""Diagnoses of the exchange between ranks: what it costs even the last one, and what the others wait for."""

from typing import Final

import numpy as np

from traceml.analyze import window as w
from traceml.analyze.rank_view import RankView
from traceml.analyze.rules.rule import WARN_SHARE, Measured, Rule, beyond_delay, judged_share
from traceml.analyze.views import CALLS_OF_ANY_STEP, TimeView
from traceml.schema import catalog as c
from traceml.schema import fmt

NOTABLE_WAIT: Final = 0.05
STARTING_NS: Final = 300e3
"""More than it takes to start an exchange. That time is not sync, but part of the phase it is in."""
NEGLIGIBLE_SHARE: Final = 0.1
CALLS_OF_A_BATCH: Final = 2
"""Its fetch and its forward pass."""
MANY_EXCHANGES: Final = 8


def phase_name(phase: str) -> str:
    """A phase, or a phase of the user's, in a sentence."""
    return w.LABELS.get(phase, f"phase {phase[5:]!r}")


def comm_bound(view: RankView) -> Measured | None:
    """Exchanging gradients takes long even for the rank that arrives last: communication, not waiting."""
    window = view.window
    exchange = window.of(w.SYNC).min(axis=0)
    step_ms = float(np.median(window.net_step_ns.mean(axis=1))) / 1e6
    cost_ms = float(exchange.mean()) / 1e6
    share = cost_ms / step_ms
    typical = float(w.frequent_level(exchange / window.net_step_ns.mean(axis=0)))
    most, saves_ms = _most_exchanges(window), None
    rest_ns = float(window.own_work.values.max(axis=0).mean())
    # A step without any exchange could save at most the exchange, and what prepares it after backward.
    # Unknown if there are so many exchanges that starting them may be a notable part of other phases, too.
    if STARTING_NS * most <= NEGLIGIBLE_SHARE * rest_ns:
        prepares = window.wait_places[:, :, c.WAIT_BACKWARD - c.FIRST_WAIT].max(axis=0)
        saves_ms = float((exchange + prepares).mean()) / 1e6
    times = {"sync_ms": cost_ms, "step_ms": step_ms, "saves_ms": saves_ms}
    together_ns = float(window.own_work.values.sum(axis=0).mean())
    in_turn = LEAST_IN_TURN <= together_ns / 1e6 / step_ms <= MOST_IN_TURN
    in_turn = in_turn and rest_ns < MOST_ALONE * together_ns
    combine = saves_ms is None and most >= MANY_EXCHANGES
    return Measured(
        level=beyond_delay(judged_share(share, typical), window.cpu_delay_share),
        score=share,
        words={"most": fmt.count(most)},
        phase=w.SYNC,
        evidence={"share": share, "typical_share": typical, **times},
        cost_ms=cost_ms,
        summary=_IN_TURN if in_turn else None,
        action=_COMBINE if combine else _OVERLAP_STAGES if in_turn else None,
    )


LEAST_IN_TURN, MOST_IN_TURN = 0.8, 1.1
"""If the own work of all ranks adds up to this many steps, they may work one after the other."""
MOST_ALONE: Final = 2 / 3
"""If one rank has more of it than this, it is late, and the sum is close to the step by chance."""
_IN_TURN: Final = (
    "Every rank spends at least {cost_ms} of each {step_ms} step ({share}) in sync. Either the exchange "
    "takes that long, or the ranks work one after the other: their own work adds up to the step."
)
_OVERLAP_STAGES: Final = (
    "If they are stages of a pipeline, try more micro-batches, so that all of them work at the same time. "
    "Otherwise try to exchange less, or to overlap it: larger batches, compression, bucket size."
)
_COMBINE: Final = (
    "Combine exchanges: a step has up to {most}, and the time to start each one is not included in these "
    "{cost_ms}. Try one exchange of all gradients (DDP, or one flat tensor), or exchange less often."
)


def _most_exchanges(window: w.Window) -> int:
    """How many exchanges a typical step has at most: the timed calls that not every training step has."""
    if not window.switches.size:
        return 0
    usual = CALLS_OF_ANY_STEP + CALLS_OF_A_BATCH * window.batches_per_step
    return max(0, round(float(np.median(window.switches)) - usual))


def sync_share(view: RankView) -> Measured | None:
    """A large share of a typical step is sync, but neither one rank nor the exchange itself explains it."""
    sync = view.window.of(w.SYNC)
    sync_ms = w.median_low(np.median(sync, axis=1)) / 1e6
    exchange_ms = float(np.median(sync.min(axis=0))) / 1e6
    share = 1e6 * sync_ms / float(np.median(view.window.net_step_ns))
    if share < WARN_SHARE:
        return None
    times = {"exchange_ms": exchange_ms, "waiting_ms": max(sync_ms - exchange_ms, 0.0)}
    return Measured(level=share, score=share, evidence={"share": share, **times})


def wait_for_outside(view: RankView) -> Measured | None:
    """A rank validates, saves or runs a user phase while the other ranks wait for it in sync."""
    window, found = view.window, []
    for key in (*w.OUTSIDE, *window.user_keys):
        mine = window.of(key)
        if not mine.any():
            continue
        at = int(np.argmax(mine.sum(axis=1)))
        waited = TimeView(window).cost_of(key) - mine
        found.append((float(np.delete(waited, at, axis=0).mean()), at, key))
    waited_ns, at, phase = max(found, default=(0.0, 0, w.VALIDATION))
    share = waited_ns / float(window.net_step_ns.mean())
    if share < NOTABLE_WAIT:
        return None
    return Measured(
        level=share,
        score=share,
        words={"rank": view.name(at), "phase": phase_name(phase)},
        ranks=(window.ranks[at],),
        evidence={"share": share, "waited_ms": waited_ns / 1e6},
    )


RULES: Final[tuple[Rule[RankView], ...]] = (
    Rule(
        "COMM_BOUND",
        comm_bound,
        "Data exchange between ranks takes {cost_ms} of each {step_ms} step ({share}), even for the rank "
        "that arrives last.",
        "Try to exchange less, or to overlap it: larger batches, accumulation with no_sync, compression, "
        "bucket size.",
        status="COMM-BOUND",
        needs=(w.SYNC,),
    ),
    Rule(
        "WAIT_FOR_RANK",
        wait_for_outside,
        "The other ranks wait for {rank} in sync while it is in {phase}: {waited_ms} per step ({share}).",
        "Try to share that work between the ranks, or to do it less often.",
        thresholds=None,
        needs=(w.SYNC,),
    ),
    Rule(
        "SYNC_SHARE",
        sync_share,
        "Sync is {share} of a typical step: {exchange_ms} of data exchange, which even the last rank pays, "
        "and {waiting_ms} of waiting for whichever rank is last. No single rank causes it.",
        "Try to give every rank the same work in each step, and a core of its own.",
        thresholds=None,
        needs=(w.SYNC,),
        unless=("INPUT_STRAGGLER", "COMPUTE_STRAGGLER", "H2D_STRAGGLER", "STRAGGLER", "COMM_BOUND"),
    ),
)
