"""Which task of a Slurm job this process is, from its environment."""

from collections.abc import Mapping
from typing import Final, NamedTuple

MOST_DIGITS: Final = 10
MOST_TASKS: Final = 1_000_000
FIRST_SPECIAL_STEP: Final = 0xFFFF_FF00
"""Slurm gives the batch script and other special steps of a job numbers from here on."""


class Task(NamedTuple):
    """One of the processes that `srun` started together."""

    tasks: int
    task: int
    step: int
    job: int


def find_task(environment: Mapping[str, str]) -> Task | None:
    """The task, or None. A batch script has most of these variables too, but only `srun` starts tasks."""
    texts = [environment.get(f"SLURM_{k}", "") for k in ("NTASKS", "PROCID", "STEP_ID", "JOB_ID")]
    if not all(text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS for text in texts):
        return None
    found = Task(*map(int, texts))
    is_task = found.task < found.tasks <= MOST_TASKS and found.step < FIRST_SPECIAL_STEP
    return found if is_task else None
