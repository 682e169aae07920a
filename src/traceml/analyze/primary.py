"""The one diagnosis of the run: why is it slow or unstable, and what it would bring to mend it."""

from __future__ import annotations

from traceml.schema import fmt
from traceml.schema.summary import CRIT, INFO, Finding, Primary


def choose(
    step_time: list[Finding],
    step_memory: list[Finding],
    system: list[Finding],
    step_ms: float | None,
) -> Primary:
    """Step time first; critical memory when step time has nothing; idle GPUs when nothing explains them."""
    slow = [f for f in step_time if f.severity != INFO]
    full = [f for f in step_memory if f.severity == CRIT]
    idle = [f for f in system if f.kind == "LOW_GPU_UTILIZATION"]
    if slow:
        return _primary(slow[0], "step_time", step_ms)
    if full:
        return _primary(full[0], "step_memory", step_ms)
    if idle and step_time[0].kind not in ("NO_DATA", "WARMUP"):
        return _primary(idle[0], "system", step_ms)
    return _primary(step_time[0], "step_time", step_ms)


def _primary(finding: Finding, section: str, step_ms: float | None) -> Primary:
    speedup, how = None, None
    cost = finding.evidence.get("cost_ms")
    step_ms = finding.evidence.get("slowest_step_ms", step_ms)  # the slowest rank sets the pace
    if cost is not None and step_ms is not None and 0 < cost < step_ms:
        speedup = step_ms / (step_ms - cost)
        how = f"mean step {fmt.ms(step_ms)}, {fmt.ms(step_ms - cost)} without the named {fmt.ms(cost)}"
    return Primary(
        kind=finding.kind,
        status=finding.status,
        severity=finding.severity,
        section=section,
        summary=finding.summary,
        action=finding.action,
        score=finding.score,
        phase=finding.phase,
        ranks=finding.ranks,
        potential_speedup=speedup,
        potential_how=how,
        evidence=finding.evidence,
    )
