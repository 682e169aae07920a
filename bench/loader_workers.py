"""What a loader worker costs per batch: `analyze/rules/time.py` takes its figure from here.

    python bench/loader_workers.py

The dataset is free (it returns the same tensor again), so all that is measured is the hand-over: the CPU time
of the training thread for each batch, and the time until a batch is there that the workers had time to make.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch.utils.data import DataLoader, Dataset

BATCHES = 200
PAUSE_S = 0.005
"""What the consumer does between two batches."""


class Free(Dataset[torch.Tensor]):
    """Batches that cost nothing."""

    def __init__(self, kilobytes: int) -> None:
        self._batch = torch.zeros(256 * kilobytes)

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._batch


def measure(kilobytes: int, workers: int) -> tuple[float, float, float]:
    """(CPU ms of the training thread per batch, median ms of a fetch, ms of start-up)."""
    began = time.perf_counter()
    batches = iter(DataLoader(Free(kilobytes), batch_size=None, num_workers=workers))
    next(batches)
    start_s = time.perf_counter() - began
    cpu_s, fetches = 0.0, []
    for _ in range(BATCHES - 1):
        time.sleep(PAUSE_S)
        cpu, clock = time.thread_time(), time.perf_counter()
        next(batches)
        cpu_s += time.thread_time() - cpu
        fetches.append(time.perf_counter() - clock)
    return 1e3 * cpu_s / len(fetches), 1e3 * statistics.median(fetches), 1e3 * start_s


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(f"{'batch':>10}{'workers':>9}{'CPU per batch':>15}{'fetch':>10}{'start-up':>11}")
    for kilobytes in (1, 16, 256, 4096):
        for workers in (0, 1, 2):
            cpu_ms, fetch_ms, start_ms = measure(kilobytes, workers)
            print(f"{kilobytes:>7} kB{workers:>9}{cpu_ms:>12.2f} ms{fetch_ms:>7.2f} ms{start_ms:>8.0f} ms")


if __name__ == "__main__":
    main()
