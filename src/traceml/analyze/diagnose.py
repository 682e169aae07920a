"""Applies every rule to its view: which ones fire or abstain, the default, and the order of precedence."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from traceml.analyze.cores import consider_cores
from traceml.analyze.rank_view import RankView
from traceml.analyze.rules import change, memory, ranks, single, system, time
from traceml.analyze.rules.memory import MemoryView
from traceml.analyze.rules.rule import WARN_SHARE, Rule, View, informational, ordered
from traceml.analyze.rules.system import GaugeView
from traceml.analyze.rules.time import consider_epoch_starts
from traceml.analyze.views import FEWEST_STEPS, TimeView
from traceml.analyze.window import H2D, LABELS, OPTIMIZER, SYNC, Window
from traceml.schema import fmt
from traceml.schema.summary import CRIT, INFO, Finding, Primary

STEPS_FOR_CRITICAL: Final = 20
TOO_SHORT_SHARE: Final = 0.10
"""If TraceML's own cost is a larger share of the step than this, the step is too short to judge."""
ALIKE: Final = 0.98
"""A mean below this share of the mean of all steps is reported beside it."""


def all_rules() -> dict[str, tuple[Rule[Any], ...]]:
    """Every diagnosis by section, in the order of the documentation."""
    return {
        "step_time": (*time.RULES, *ranks.RULES, *change.RULES, *single.RULES),
        "step_memory": memory.RULES,
        "system": system.SYSTEM_RULES,
        "process": system.PROCESS_RULES,
    }


class _Verdicts:
    """The one rule loop: the findings so far, and the signals that rules lacked."""

    def __init__(self, critical_allowed: bool, measured: Callable[[str], bool] = lambda _key: True) -> None:
        self.missing: list[str] = []
        self._found: list[Finding] = []
        self._critical_allowed = critical_allowed
        self._measured = measured
        self._last_resorts: list[tuple[Rule[Any], object]] = []

    def apply(self, rules: Sequence[Rule[View]], view: View, of_all: float = 1.0) -> None:
        """`of_all` is the share of all time that this view is about."""
        for rule in rules:
            if rule.only_if_nothing_else:
                self._last_resorts.append((rule, view))
            else:
                self._apply(rule, view, of_all)

    def _apply(self, rule: Rule[View], view: View, of_all: float = 1.0) -> None:
        lacking = [key for key in rule.needs if not self._measured(key)]
        self.missing += [key for key in lacking if key not in self.missing]
        if lacking or any(found.kind in rule.unless for found in self._found):
            return
        measured = rule.measure(view)
        if measured is None:
            return
        level = measured.level * of_all if rule.of_all_time else measured.level
        of_view = replace(measured, score=measured.score * of_all, level=level)
        finding = rule.finding(of_view, self._critical_allowed)
        if finding is None:
            return
        # A warning about the same phase does not hide what is critical.
        same = {found.phase for found in self._found if found.severity in (CRIT, finding.severity)}
        if not (rule.unless_same_phase and finding.phase in same):
            self._found.append(finding)

    def findings(self, default: Finding) -> list[Finding]:
        """Sorted; never empty. Remarks come after the verdict of a run in which nothing is wrong."""
        if any(finding.severity != INFO for finding in self._found):
            return ordered(self._found)
        remarks, self._found = self._found, []
        for rule, view in self._last_resorts:
            self._apply(rule, view)
        first = ordered(self._found) or [default]
        if self.missing:
            names = ", ".join(LABELS.get(k, k) for k in self.missing)
            why = f"Nothing stands out, but not everything was recorded: {names}."
            action = "See the notes for the reason; traceml.trace_step(model) around the step helps."
            first = [informational("INCOMPLETE_DATA", why, action, missing=self.missing)]
        return [*first, *ordered(remarks)]


def diagnose_time(window: Window) -> list[Finding]:
    """Sorted findings; never empty."""
    too_little = _too_little(window)
    if too_little is not None:
        return [too_little]
    view = TimeView(window)
    calm = view.calm
    of_all = float(calm.window.net_step_ns.sum() / window.net_step_ns.sum())
    # An update by hand that was not seen is a part of the wait; if that is short, it changes no verdict.
    short_wait = window.steps_inferred and calm.window.median_share(calm.net_wait) < WARN_SHARE
    verdicts = _Verdicts(
        window.count >= STEPS_FOR_CRITICAL,
        lambda key: window.measured(key) or (key == OPTIMIZER and short_wait),
    )
    if window.clock != "device" and window.measured(H2D):
        verdicts.missing.append(H2D)  # copies are judged on the device clock, which is incomplete
    verdicts.apply(time.RULES, calm, of_all)
    if len(window.ranks) > 1:
        verdicts.apply(ranks.RULES, RankView(calm.window), of_all)
    elif window.measured(SYNC) and calm.window.median_share(calm.window.of(SYNC)) >= WARN_SHARE:
        verdicts.missing.append("the other ranks, which this one waits for")
    verdicts.apply(change.RULES, calm, of_all)
    verdicts.apply(single.RULES, view)
    why = f"No single bottleneck dominates a step of {fmt.ms(calm.step_ms)}."
    action = "Optimize further only if the throughput is too low; compare runs to see what changed."
    balanced = informational("BALANCED", why, action, step_ms=calm.step_ms)
    found = (consider_epoch_starts(finding, calm) for finding in verdicts.findings(balanced))
    return [consider_cores(finding, window.core_use) for finding in found]


def _too_little(window: Window) -> Finding | None:
    """The finding about a window that has too little to judge."""
    total, count = window.total_steps, window.count
    if total < FEWEST_STEPS or (count < FEWEST_STEPS and not window.warmup):
        done = {0: "No training step was completed", 1: "Only one training step was completed"}
        why = f"{done.get(total, 'Too few steps were completed')}; at least two are needed."
        return informational("NO_DATA", why, "Let the run complete a few steps.", steps=total)
    if count < FEWEST_STEPS:
        why = f"All {total} completed steps look like warm-up (first step {fmt.ms(window.warmup[0])})."
        return informational("WARMUP", why, "Let the run complete more steps.", steps=total)
    own_ms, step_ms = window.mean_ms(window.overhead_ns), window.mean_ms(window.step_ns)
    if own_ms <= TOO_SHORT_SHARE * step_ms:
        return None
    why = (
        f"Steps of {fmt.ms(step_ms)} are too short to judge: {fmt.ms(own_ms)} of that is TraceML's own cost."
    )
    action = "Use a larger batch, or diagnose a run with longer steps."
    return informational("INCOMPLETE_DATA", why, action, own_ms=own_ms, step_ms=step_ms)


def diagnose_memory(view: MemoryView | None) -> list[Finding]:
    """Sorted findings; never empty."""
    if view is None or len(view.steps) < FEWEST_STEPS:
        why = "Too few completed steps with a memory reading."
        return [informational("NO_DATA", why, "Let the run complete more steps.")]
    verdicts = _Verdicts(len(view.steps) >= STEPS_FOR_CRITICAL)
    verdicts.apply(memory.RULES, view)
    return verdicts.findings(memory.balanced(view))


def diagnose_gauges(view: GaugeView, section: str, calm: str) -> list[Finding]:
    """Sorted findings; never empty. `calm` is the sentence if nothing stands out."""
    if not view.samples:
        return [informational("NO_DATA", "No samples: the run was too short.", "Run longer.")]
    verdicts = _Verdicts(critical_allowed=True)
    verdicts.apply(all_rules()[section], view)
    return verdicts.findings(informational("NORMAL", calm, "Nothing to do."))


def choose_primary(
    step_time: list[Finding], step_memory: list[Finding], system: list[Finding], step_ms: float | None
) -> Primary:
    """The first of: a step-time problem, critical memory, idle GPUs that nothing explains, a lack of cores
    that costs most of a balanced step, any step-time finding. With it, how much faster a step would be
    without its cost."""
    balanced = step_time[0].kind == "BALANCED"
    unjudged = step_time[0].kind in ("NO_DATA", "WARMUP")
    candidates = (
        ("step_time", [f for f in step_time if f.severity != INFO]),
        ("step_memory", [f for f in step_memory if f.severity == CRIT]),
        ("system", [f for f in system if f.kind == "LOW_GPU_UTILIZATION" and not unjudged]),
        ("system", [f for f in system if f.kind == "CPU_LIMITED" and f.severity == CRIT and balanced]),
        ("step_time", step_time),
    )
    section, finding = next((section, found[0]) for section, found in candidates if found)
    speedup, how = None, None
    cost = finding.evidence.get("saves_ms", finding.evidence.get("cost_ms"))
    # All ranks are as slow as the slowest; a bound is a part of the steps that it was judged by.
    slowest = finding.evidence.get("slowest_step_ms", finding.evidence.get("step_ms", step_ms))
    if isinstance(cost, float) and isinstance(slowest, float) and 0 < cost < slowest:
        speedup = slowest / (slowest - cost)
        is_calm = "slowest_step_ms" not in finding.evidence and slowest < ALIKE * (step_ms or slowest)
        which = "mean step without outliers" if is_calm else "mean step"
        how = f"{which} {fmt.ms(slowest)}, {fmt.ms(slowest - cost)} without these {fmt.ms(cost)}"
    is_bound = finding.evidence.get("promised") is not True if speedup is not None else None
    values = {f.name: getattr(finding, f.name) for f in fields(Finding)}
    return Primary(
        **values,
        section=section,
        potential_speedup=speedup,
        potential_how=how,
        potential_is_bound=is_bound,
    )
