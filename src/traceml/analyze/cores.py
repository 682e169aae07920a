"""Whether the run had the CPU cores that it asked for, and who had them instead.

What the run asks for decides who its rival is: with more threads and workers than cores, the run competes
with itself, whatever else runs there. Only the monitor's machine is examined.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.rules.rule import CRIT_SHARE, MOST_SHARE, WARN_SHARE
from traceml.schema import fmt
from traceml.schema.recorded import RankRecording, RunFacts, RunRecording
from traceml.schema.summary import INFO, Finding

NOTABLE_CORES: Final = 0.25
"""Other work that keeps fewer cores busy than this is the ordinary noise of a machine."""
ALL_CORES: Final = 0.9
"""Threads that want less than this share of the cores do not compete for them."""
IDLE_CORES: Final = 0.75
BUSY_SHARE: Final = 0.7
"""More threads do not help threads that compute for a smaller share of the time."""
STRETCHED: Final = ("INPUT_BOUND", "WAIT_HEAVY", "COMPUTE_BOUND", "BALANCED")
"""A lack of cores stretches every phase, so these diagnoses advise to free cores first. Those that compare
steps or ranks subtract the delay themselves."""


@dataclass(frozen=True, slots=True)
class CoreUse:
    """The cores of a machine while the run trained there. Busy cores are a mean over time, so not whole."""

    cores: int = 0  # that the run may use; 0 if unknown
    processes: int = 1  # that train
    threads: int = 1  # torch threads of each of them
    workers: int = 0  # loader workers of all of them
    wait_share: float = 0.0  # of the time: a thread was ready to run but had no core
    run_busy: float | None = None
    others_busy: float | None = None
    throttled_share: float = 0.0  # of the time: a CPU quota stopped the run
    on_cpu: bool = True  # the model trains on the CPU
    rank_waits: dict[int, float] = field(default_factory=dict)  # `wait_share` of each rank

    @property
    def is_short(self) -> bool:
        """Whether lack of cores costs enough to be mentioned before anything else."""
        return self.wait_share >= CRIT_SHARE

    @property
    def free(self) -> float | None:
        """Cores that nobody used."""
        if not self.cores or self.run_busy is None:
            return None
        return max(0.0, self.cores - self.run_busy - (self.others_busy or 0.0))

    @property
    def idle_share(self) -> float:
        """The least share of the time in which a process neither ran nor waited for a core; 0 if unknown."""
        if self.run_busy is None:
            return 0.0
        return max(0.0, 1 - self.run_busy / self.processes - self.wait_share)

    @property
    def rival(self) -> str:
        """What has the cores that the run lacks, and what to do about it; empty if nothing was seen."""
        cores, processes, workers, busy = self.cores, self.processes, self.workers, self.others_busy or 0.0
        threads, others = processes * self.threads, ""
        if self.throttled_share >= WARN_SHARE:
            others = f"a CPU quota stops the run {fmt.share(self.throttled_share)} of the time"
        elif busy >= NOTABLE_CORES and threads + workers + busy >= ALL_CORES * cores:
            # If they want fewer than about all cores, the host of a virtual machine takes them.
            others = f"other work keeps {busy:.1f} of {_some(cores, 'core')} busy"
        # Workers mostly wait, so with other work on the machine they are not blamed.
        alone = self.others_busy is not None and busy < NOTABLE_CORES
        if not 0 < cores < threads + (workers if alone else 0):
            # Threads that wait for each other at the end of each operation suffer most from a busy core.
            few = max(1, int(cores - busy) // processes)
            fewer = others and self.on_cpu and self.threads > few
            return others + (f" (until they are free, try OMP_NUM_THREADS={few})" if fewer else "")
        few = max(1, cores // processes)  # no two threads of the run share a core
        remedy = "try fewer loader workers" if workers else "try fewer processes, or more cores"
        if few < self.threads:
            remedy = f"try OMP_NUM_THREADS={few} (or torch.set_num_threads({few}))"
        asked = f"{_some(processes, 'process', 'processes')} × {_some(self.threads, 'thread')}"
        asked += f" and {_some(workers, 'loader worker')}" if workers else ""
        itself = f"the run competes with itself, {asked} on {_some(cores, 'core')}: {remedy}"
        return "; ".join(filter(None, (itself, others)))

    @property
    def remedy(self) -> str:
        """What to do about a lack of cores."""
        return self.rival or "look for other jobs, a CPU quota, or a busy host of this machine"

    @property
    def more_threads(self) -> int | None:
        """Torch threads per process that idle cores would allow; None if too few are idle."""
        free, wanted = self.free, self.processes * self.threads
        if not self.on_cpu or free is None or free < IDLE_CORES:
            return None
        if (self.run_busy or 0.0) < BUSY_SHARE * wanted:
            return None
        allowed = self.threads + int((free + 1 - IDLE_CORES) // self.processes)
        return allowed if allowed > self.threads else None


def _some(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def trains_on_cpu(ranks: Iterable[RankRecording]) -> bool:
    """Whether no rank has a device."""
    return all(r.header.get("device", {}).get("type", "cpu") == "cpu" for r in ranks)


def core_use(
    recording: RunRecording, facts: RunFacts, trained: Sequence[RankRecording], times: tuple[int, int] | None
) -> CoreUse:
    """How the cores of this machine were used between these times. `trained` are all processes that train,
    with a rank of their own or not."""
    processes = {r.pid: r for r in trained if r.node == 0}
    if not processes or times is None:
        return CoreUse(on_cpu=trains_on_cpu(trained))

    def during(rows: NDArray[np.void] | None, key: str) -> NDArray[np.void] | None:
        """Samples between these times in which this gauge is known."""
        if rows is None:
            return None
        found: NDArray[np.void] = rows[(rows["time_ns"] >= times[0]) & (rows["time_ns"] <= times[1])]
        found = found[~np.isnan(found[key])]
        return found if len(found) else None

    def of_processes(key: str) -> dict[int, float]:
        """The mean share of each process that has one."""
        rows = during(recording.gauges(0).process_rows, key)
        if rows is None:
            return {}
        pids, owner, counts = np.unique(rows["pid"], return_inverse=True, return_counts=True)
        means = np.bincount(owner, weights=rows[key], minlength=len(pids)) / counts / 100
        return {
            pid: mean for pid, mean in zip(pids.tolist(), means.tolist(), strict=True) if pid in processes
        }

    def of_machine(key: str) -> float | None:
        rows = during(recording.gauges(0).system_rows, key)
        return None if rows is None else float(rows[key].mean()) / 100

    busy, waited = of_processes("cpu_percent"), of_processes("core_wait_percent")
    run_busy = sum(busy.values()) if len(busy) == len(processes) else None
    count, all_busy, others_busy = facts.environment.cpu_count, of_machine("cpu_percent"), None
    cores = min(facts.cores, _cores_of(processes.values()) or facts.cores)
    # What other work used is unknown if the run may use only some of the machine's cores.
    if all_busy is not None and run_busy is not None and count == cores:
        others_busy = max(0.0, all_busy * count - run_busy)
    threads = [r.header.get("process", {}).get("threads") for r in processes.values()]
    starts = ([e for e in r.events if e.kind == "epoch_start"] for r in processes.values())
    return CoreUse(
        cores=cores,
        processes=len(processes),
        threads=max(n if isinstance(n, int) and n > 0 else 1 for n in threads),
        workers=sum(max((e.workers or 0 for e in events), default=0) for events in starts),
        wait_share=max(waited.values(), default=0.0),
        run_busy=None if run_busy is None else min(run_busy, float(cores)),
        others_busy=others_busy,
        throttled_share=of_machine("cpu_throttled_percent") or 0.0,
        on_cpu=trains_on_cpu(trained),
        rank_waits={processes[pid].rank: share for pid, share in waited.items()},
    )


def _cores_of(processes: Iterable[RankRecording]) -> int:
    """On how many cores these may run together: each may be pinned to its own, or all to one. 0: unknown."""
    together = 0
    for recorded in processes:
        try:
            together |= int(recorded.header.get("process", {})["cores"], 16)
        except (KeyError, TypeError, ValueError):
            return 0
    return max(together, 0).bit_count()


# ---- what that means for a finding ---------------------------------------------------------------


def consider_cores(finding: Finding, use: CoreUse) -> Finding:
    """The finding, adjusted for a lack of cores or for idle ones."""
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
        action=f"{action}: {use.remedy}. Then {then}",
        evidence={**finding.evidence, **_facts(use), "promised": False},
    )


def _starved_rank(finding: Finding, use: CoreUse) -> Finding:
    """A slow rank may only have had fewer cores than the others, if that explains most of its excess. A rank
    with more work also waits for cores more often."""
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
        summary=f"{finding.summary} But its process was idle {fmt.share(idle)} of the time.",
        action="Look for sleeps, locks and reads inside the model, its hooks or the optimizer: they are not "
        f"computation. {finding.action}",
        evidence={**finding.evidence, "idle_share": idle},
    )


def without_calm_model(findings: list[Finding]) -> list[Finding]:
    """If anything is wrong, a model that computes is no finding; one that mostly waits is a remark."""
    if all(finding.severity == INFO for finding in findings):
        return findings
    return [f for f in findings if f.kind != "COMPUTE_BOUND" or "idle_share" in f.evidence]


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
