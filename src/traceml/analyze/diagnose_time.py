"""All step-time rules on one window: who fires, who abstains, what is said when nobody does."""

from __future__ import annotations

from typing import Final, TypeVar

from traceml.analyze.rank_view import RankView
from traceml.analyze.rule import STEPS_FOR_ANY, STEPS_FOR_CRITICAL, WARN_SHARE, Rule, ordered
from traceml.analyze.rules_change import RULES as CHANGES
from traceml.analyze.rules_ranks import RULES as RANK_RULES
from traceml.analyze.rules_time import BOUNDS, COMPUTE_RULE, TimeView
from traceml.analyze.window import H2D, LABELS, SYNC, Window
from traceml.schema import fmt
from traceml.schema.summary import INFO, Finding

AnyView = TypeVar("AnyView", TimeView, RankView)

TOO_SHORT_SHARE: Final = 0.10
"""A step of which our own cost is more than this is too short to judge."""


def diagnose_time(window: Window) -> list[Finding]:
    """Sorted findings; never empty."""
    if window.total_steps < STEPS_FOR_ANY:
        return [_no_data(window)]
    if window.count < STEPS_FOR_ANY:
        return [_warmup(window) if window.warmup else _no_data(window)]
    own = window.mean_ms(window.own_ns)
    step = window.mean_ms(window.step_ns)
    if own > TOO_SHORT_SHARE * step:
        return [_too_short(own, step)]
    view = TimeView(window)
    allowed = window.count >= STEPS_FOR_CRITICAL
    found: list[Finding] = []
    missing: list[str] = []
    if window.clock != "device" and window.measured(H2D):
        missing.append(H2D)  # copies are judged on the device's clock, and that is not complete
    for rule in BOUNDS:
        _apply(rule, view, allowed, found, missing)
    if len(window.ranks) > 1:
        ranks = RankView(window)
        for rank_rule in RANK_RULES:
            _apply(rank_rule, ranks, allowed, found, missing)
    elif window.measured(SYNC) and window.median_share(window.of(SYNC)) >= WARN_SHARE:
        missing.append("the other ranks, for which this one waits")
    for rule in CHANGES:
        said = {f.phase for f in found}
        more: list[Finding] = []
        _apply(rule, view, allowed, more, missing)
        # Slow steps in a phase that is named already are that finding's, not jitter of their own.
        found += [f for f in more if f.kind == "SLOWDOWN" or f.phase not in said]
    if found:
        return ordered(found)
    if missing:
        return [_incomplete(missing)]
    _apply(COMPUTE_RULE, view, allowed, found, missing)
    return found or [_balanced(view)]


def _apply(
    rule: Rule[AnyView], view: AnyView, allowed: bool, found: list[Finding], missing: list[str]
) -> None:
    lacking = [k for k in rule.needs if not view.window.measured(k)]
    if lacking:
        missing += [k for k in lacking if k not in missing]
        return
    measured = rule.measure(view)
    finding = rule.finding(measured, allowed) if measured is not None else None
    if finding is not None:
        found.append(finding)


def _no_data(window: Window) -> Finding:
    done = {0: "No training step was completed", 1: "Only one training step was completed"}
    return Finding(
        "NO_DATA",
        "NO DATA",
        INFO,
        f"{done.get(window.total_steps, 'Too few steps')}; at least two are needed.",
        "Let the run complete a few steps.",
        evidence={"steps": window.total_steps},
    )


def _warmup(window: Window) -> Finding:
    return Finding(
        "WARMUP",
        "WARMUP",
        INFO,
        f"All {window.total_steps} completed steps look like warm-up "
        f"(first step {fmt.ms(window.warmup[0])}).",
        "Let the run complete more steps.",
        evidence={"steps": window.total_steps},
    )


def _too_short(own_ms: float, step_ms: float) -> Finding:
    return Finding(
        "INCOMPLETE_DATA",
        "INCOMPLETE DATA",
        INFO,
        f"Steps of {fmt.ms(step_ms)} are too short to judge: TraceML's own cost is {fmt.ms(own_ms)} of it.",
        "Use a larger batch, or judge by a run with longer steps.",
        evidence={"own_ms": own_ms, "step_ms": step_ms},
    )


def _incomplete(missing: list[str]) -> Finding:
    names = ", ".join(LABELS.get(k, k) for k in missing)
    return Finding(
        "INCOMPLETE_DATA",
        "INCOMPLETE DATA",
        INFO,
        f"Nothing fired, but not everything was recorded: {names}.",
        "See the notes for why; traceml.trace_step(model) around the step helps.",
        evidence={"missing": missing},
    )


def _balanced(view: TimeView) -> Finding:
    return Finding(
        "BALANCED",
        "BALANCED",
        INFO,
        f"No single bottleneck dominates a step of {fmt.ms(view.step_ms)}.",
        "Optimize further only if the throughput is too low; compare runs to see what changed.",
        evidence={"step_ms": view.step_ms},
    )
