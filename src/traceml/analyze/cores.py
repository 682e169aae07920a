"""Whether the run had the CPU cores that it asked for, and who had them instead.

Who is the rival is decided by what the run asks for: if its own threads and workers are more than the cores,
it competes with itself, whoever else is there. Only one machine is looked at, that of the monitor.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.rules.rule import CRIT_SHARE, WARN_SHARE
from traceml.schema import fmt
from traceml.schema.recorded import RankRecording, RunFacts, RunRecording

Rows: TypeAlias = NDArray[np.void]
NOTABLE_CORES: Final = 0.25
"""Other work that keeps fewer cores busy than this is the ordinary noise of a machine."""
ALL_CORES: Final = 0.9
"""Threads that want less than this share of the cores do not compete for them."""
IDLE_CORES: Final = 0.75
BUSY_SHARE: Final = 0.7
"""Threads that compute for a smaller share of the time do not lack company."""


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
        """Of the time: a process neither ran nor waited for a core, at least; 0 if that is not known."""
        if self.run_busy is None:
            return 0.0
        return max(0.0, 1 - self.run_busy / self.processes - self.wait_share)

    @property
    def competes_with_itself(self) -> bool:
        """Its threads alone are more than the cores; or nobody else is there, and its workers are too many.
        Workers mostly wait, so with other work on the machine they are not blamed."""
        threads = self.processes * self.threads
        alone = self.others_busy is not None and self.others_busy < NOTABLE_CORES
        return 0 < self.cores < threads + (self.workers if alone else 0)

    @property
    def asked(self) -> str:
        """`2 processes × 2 threads on 2 cores`."""
        parts = [f"{_some(self.processes, 'process', 'processes')} × {_some(self.threads, 'thread')}"]
        if self.workers:
            parts.append(_some(self.workers, "loader worker"))
        return f"{' and '.join(parts)} on {_some(self.cores, 'core')}"

    @property
    def rival(self) -> str:
        """Who has the cores that the run lacks, and what to do about it; empty if nobody was seen."""
        others = ""
        if self.throttled_share >= WARN_SHARE:
            others = f"a CPU quota stops the run {fmt.share(self.throttled_share)} of the time"
        elif self.others_busy is not None and self.others_busy >= NOTABLE_CORES and self._all_are_wanted:
            others = f"other work keeps {self.others_busy:.1f} of {_some(self.cores, 'core')} busy"
        if not self.competes_with_itself:
            # Threads that wait for each other at the end of each operation suffer most from a busy core.
            few = max(1, int(self.cores - (self.others_busy or 0.0)) // self.processes)
            fewer = self.on_cpu and self.threads > few
            return others + (f" (until they are free, try OMP_NUM_THREADS={few})" if others and fewer else "")
        return f"the run competes with itself, {self.asked}: {self._remedy}" + (others and f"; {others}")

    @property
    def _all_are_wanted(self) -> bool:
        """Whether the run and others want about all cores; else the host of a virtual machine takes them."""
        wanted = self.processes * self.threads + self.workers + (self.others_busy or 0.0)
        return wanted >= ALL_CORES * self.cores

    @property
    def _remedy(self) -> str:
        threads = max(1, self.cores // self.processes)  # no two threads of the run share a core
        if threads < self.threads:
            return f"try OMP_NUM_THREADS={threads} (or torch.set_num_threads({threads}))"
        if self.workers:
            return "try fewer loader workers"
        return "try fewer processes, or more cores"

    @property
    def more_threads(self) -> int | None:
        """Torch threads per process that idle cores would allow; None if there are none to speak of."""
        free = self.free
        wanted = self.processes * self.threads
        if (
            not self.on_cpu
            or free is None
            or free < IDLE_CORES
            or (self.run_busy or 0.0) < BUSY_SHARE * wanted
        ):
            return None
        allowed = self.threads + int((free + 1 - IDLE_CORES) // self.processes)
        return allowed if allowed > self.threads else None


def _some(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def core_use(
    recording: RunRecording, facts: RunFacts, trained: Sequence[RankRecording], times: tuple[int, int] | None
) -> CoreUse:
    """How the cores of this machine were used between these times. `trained` are all processes that train,
    with a rank of their own or not."""
    here = [r for r in trained if r.node == 0]
    on_cpu = all(r.header.get("device", {}).get("type", "cpu") == "cpu" for r in trained)
    if not here or times is None:
        return CoreUse(on_cpu=on_cpu)
    rows = _during(recording.gauges(0).process_rows, times)
    processes = {r.pid: r for r in here}
    busy, waited = (_means(rows, key, processes) for key in ("cpu_percent", "core_wait_percent"))
    run_busy = sum(busy.values()) if len(busy) == len(processes) else None
    return CoreUse(
        cores=facts.cores,
        processes=len(processes),
        threads=max(_threads(r) for r in processes.values()),
        workers=sum(_workers(r) for r in processes.values()),
        wait_share=max(waited.values(), default=0.0),
        run_busy=None if run_busy is None else min(run_busy, float(facts.cores)),
        others_busy=_others_busy(recording, facts, times, run_busy),
        throttled_share=_throttled(_during(recording.gauges(0).system_rows, times)),
        on_cpu=on_cpu,
        rank_waits={processes[pid].rank: share for pid, share in waited.items()},
    )


def _others_busy(
    recording: RunRecording, facts: RunFacts, times: tuple[int, int], run_busy: float | None
) -> float | None:
    """Cores that other work kept busy; unknown if the run may use only some of the machine's cores."""
    count = facts.environment.cpu_count
    rows = _during(recording.gauges(0).system_rows, times)
    if rows is None or run_busy is None or count != facts.cores:
        return None
    return max(0.0, float(np.nanmean(rows["cpu_percent"])) / 100 * count - run_busy)


def _throttled(rows: Rows | None) -> float:
    known = rows["cpu_throttled_percent"] if rows is not None else np.zeros(0)
    known = known[~np.isnan(known)]
    return float(known.mean()) / 100 if len(known) else 0.0


def _during(rows: Rows | None, times: tuple[int, int]) -> Rows | None:
    if rows is None:
        return None
    found: Rows = rows[(rows["time_ns"] >= times[0]) & (rows["time_ns"] <= times[1])]
    return found if len(found) else None


def _means(rows: Rows | None, key: str, pids: Container[int]) -> dict[int, float]:
    """The mean of a percentage for each of these processes, as a share; without those that have none."""
    if rows is None:
        return {}
    known = rows[~np.isnan(rows[key])]
    found, owner, counts = np.unique(known["pid"], return_inverse=True, return_counts=True)
    means = np.bincount(owner, weights=known[key], minlength=len(found)) / counts / 100
    return {pid: mean for pid, mean in zip(found.tolist(), means.tolist(), strict=True) if pid in pids}


def _threads(recorded: RankRecording) -> int:
    found = recorded.header.get("process", {}).get("threads")
    return found if isinstance(found, int) and found > 0 else 1


def _workers(recorded: RankRecording) -> int:
    return max((e.workers or 0 for e in recorded.events if e.kind == "epoch_start"), default=0)
