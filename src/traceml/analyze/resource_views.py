"""What the rules about memory and gauges look at."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from traceml.analyze import window as w
from traceml.analyze.window import Floats


@dataclass(frozen=True)
class MemoryView:
    """Peak memory per step: of the device if every rank has it, otherwise of the processes."""

    ranks: tuple[int, ...]
    steps: NDArray[np.int64]
    memory: str  # device | rss
    values: dict[str, Floats]  # by metric, (rank, step); NaN where it was not read
    capacities: Floats | None = None  # of each rank's device or machine; None unless all are known
    workers: dict[int, Floats] = field(default_factory=dict)  # bytes of each rank's loader workers, by sample

    @property
    def peak(self) -> Floats:
        return self.values["peak_allocated_bytes" if self.memory == "device" else "rss_bytes"]

    @property
    def reserved(self) -> Floats:
        """What is taken from the capacity."""
        return self.values["peak_reserved_bytes"] if self.memory == "device" else self.peak

    @cached_property
    def typical_peak(self) -> Floats:
        """For each step the median over ranks."""
        return w.median_over_ranks(self.peak)

    @property
    def noun(self) -> str:
        return "device memory" if self.memory == "device" else "resident memory of the process"


@dataclass(frozen=True, slots=True)
class GaugeView:
    """Mean and peak of each gauge while the ranks trained, and what they are compared with."""

    mean: dict[str, float | None]
    peak: dict[str, float | None]
    gpu_used_by_rank: dict[int, float] = field(default_factory=dict)
    cores: int = 1
    ram_total: float | None = None
    gpu_capacity: float | None = None
    on_cpu: bool = True  # the model trains on the CPU
    samples: int = 0
