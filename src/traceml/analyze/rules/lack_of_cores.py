"""Lack of CPU cores stretches every phase, so it comes first in what to do; idle cores come in, too."""

from dataclasses import replace
from statistics import median
from typing import Final

from traceml.analyze.cores import CoreUse
from traceml.analyze.rules.rule import CRIT_SHARE, MOST_SHARE, WARN_SHARE
from traceml.schema import fmt
from traceml.schema.summary import Finding

STRETCHED: Final = ("INPUT_BOUND", "WAIT_HEAVY", "COMPUTE_BOUND", "BALANCED")
"""Diagnoses of where the time goes. Those that compare steps or ranks subtract the delay themselves."""

_UNSEEN: Final = "look for other jobs, a CPU quota, or a busy host of this machine"


def consider_cores(finding: Finding, use: CoreUse) -> Finding:
    """The finding with what a lack of cores, or idle ones, mean for it."""
    finding = _idle_model(finding, use)
    if finding.kind in STRETCHED and use.is_short:
        waited = f"The threads waited for a core {fmt.share(use.wait_share)} of the time."
        return _cores_first(finding, use, waited, "Free CPU cores first")
    if finding.kind.endswith("STRAGGLER") and finding.ranks:
        return _starved_rank(finding, use)
    return _idle_cores(finding, use)


def _cores_first(finding: Finding, use: CoreUse, why: str, action: str) -> Finding:
    then = f"{finding.action[:1].lower()}{finding.action[1:]}"
    return replace(
        finding,
        summary=f"{finding.summary} {why}",
        action=f"{action}: {use.rival or _UNSEEN}. Then {then}",
        evidence={**finding.evidence, **_facts(use), "promised": False},
    )


def _starved_rank(finding: Finding, use: CoreUse) -> Finding:
    """A rank that is slower than the others may only have had fewer cores than they, if that explains most of
    its excess. One that has more work also waits for cores more often."""
    waits = {} if finding.evidence.get("uneven_work") else use.rank_waits
    mine = [waits[rank] for rank in finding.ranks if rank in waits]
    others = [share for rank, share in waits.items() if rank not in finding.ranks]
    excess = finding.evidence.get("share")
    least = max(WARN_SHARE, MOST_SHARE * excess if isinstance(excess, float) else 0.0)
    if not mine or not others or min(mine) - median(others) < least:
        return finding
    who = ", ".join(f"r{rank}" for rank in finding.ranks)
    why = (
        f"The threads of {who} waited for a core {fmt.share(min(mine))} of the time, those of the other "
        f"ranks {fmt.share(median(others))}."
    )
    return _cores_first(finding, use, why, f"Free CPU cores for {who} first")


def _idle_model(finding: Finding, use: CoreUse) -> Finding:
    """A model on the CPU that computes keeps a core busy. If its process is idle, something in it waits."""
    share = finding.evidence.get("share")
    if finding.kind != "COMPUTE_BOUND" or not use.on_cpu or not isinstance(share, float):
        return finding
    idle = use.idle_share - (1 - share)  # the rest of the step may all be idle
    if idle < CRIT_SHARE:
        return finding
    return replace(
        finding,
        summary=f"{finding.summary} But {fmt.share(idle)} of the time its process only waited.",
        action="Look for sleeps, locks and reads inside the model, its hooks or the optimizer, which are no "
        f"computation. {finding.action}",
        evidence={**finding.evidence, "idle_share": idle},
    )


def _idle_cores(finding: Finding, use: CoreUse) -> Finding:
    more, free = use.more_threads, use.free
    if finding.kind != "COMPUTE_BOUND" or more is None or free is None:
        return finding
    idle = (
        f"Try more torch threads first: OMP_NUM_THREADS={more} (torchrun sets 1 unless you set it). Each "
        f"process computes with {use.threads}, and {free:.1f} of {use.cores} cores are idle."
    )
    return replace(finding, action=f"{idle} {finding.action}", evidence={**finding.evidence, **_facts(use)})


def _facts(use: CoreUse) -> dict[str, int | float | None]:
    return {
        "core_wait_share": use.wait_share,
        "cores": use.cores,
        "processes": use.processes,
        "threads": use.threads,
        "others_busy_cores": use.others_busy,
        "run_busy_cores": use.run_busy,
    }
