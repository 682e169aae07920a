"""Every phase, column and metric, once. Writers, readers, rules and presenters loop over these rows.

No other module spells a phase's key as a literal to decide what to record or to show; rules name the
phases they are about through the constants below.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

USER_SLOTS: Final = 6
"""How many different `traceml.phase(...)` names a rank can record; further names share the last slot."""


class Phase(NamedTuple):
    """One thing that the training thread can be doing."""

    key: str
    label: str
    group: str  # input | transfer | compute | no_grad | sync | other
    help: str


PHASES: Final[tuple[Phase, ...]] = (
    Phase("input", "Input", "input", "waiting for the next batch of the training loader"),
    Phase("h2d", "H2D copy", "transfer", "host-to-device copies of data"),
    Phase("forward", "Forward", "compute", "outermost module call with gradients on, loss included"),
    Phase(
        "no_grad",
        "No-grad",
        "no_grad",
        "forward without gradients: teacher, target, reference or rollout model",
    ),
    Phase("backward", "Backward", "compute", "local gradient work"),
    Phase("sync", "Sync", "sync", "waiting for other ranks and exposed gradient transfer"),
    Phase("optimizer", "Optimizer", "compute", "optimizer step, zero_grad, clipping, scheduler"),
    Phase("validation", "Validation", "other", "evaluation forward passes and their batches"),
    Phase("checkpoint", "Checkpoint", "other", "torch.save and other checkpoint writing"),
)
INPUT, H2D, FORWARD, NO_GRAD, BACKWARD, SYNC, OPTIMIZER, VALIDATION, CHECKPOINT = range(len(PHASES))
COMPUTE_PHASES: Final = tuple(i for i, p in enumerate(PHASES) if p.group == "compute")

FIRST_USER: Final = len(PHASES)
FIRST_WAIT: Final = FIRST_USER + USER_SLOTS


class WaitPlace(NamedTuple):
    """Where in the step unattributed time sits: `wait` is the sum of these."""

    key: str
    where: str


WAIT_PLACES: Final[tuple[WaitPlace, ...]] = (
    WaitPlace("wait_start", "right after the optimizer step"),
    WaitPlace("wait_input", "between fetching the batch and the forward pass"),
    WaitPlace("wait_forward", "after the forward pass"),
    WaitPlace("wait_no_grad", "after a forward pass without gradients"),
    WaitPlace("wait_backward", "after the backward pass"),
    WaitPlace("wait_other", "around validation, checkpoints or user phases"),
)
WAIT_START, WAIT_INPUT, WAIT_FORWARD, WAIT_NO_GRAD, WAIT_BACKWARD, WAIT_OTHER = range(
    FIRST_WAIT, FIRST_WAIT + len(WAIT_PLACES)
)
RECORDED_SLOTS: Final = FIRST_WAIT + len(WAIT_PLACES)
"""Slots of the phase switch that a step row holds: phases, user phases, wait places."""

FLAG_INPUT_INFERRED: Final = 1 << 16
FLAG_STEP_INFERRED: Final = 1 << 17
FLAG_RSS: Final = 1 << 19
FLAG_DEVICE_MEMORY: Final = 1 << 20
"""Bits 0..15 of a row's `flags` say which phases were measured; these say the rest."""

_SLOTS: Final = (*(p.key for p in PHASES), *(f"user{i}" for i in range(USER_SLOTS)))
_WAITS: Final = tuple(w.key for w in WAIT_PLACES)
_MEMORY: Final = ("rss_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
_COUNTS: Final = (
    *("samples", "tokens", "flags", "micro_batches", "switches"),
    *("busy_wait_us", "gc_us", "gc_wait_us"),
)
STEP_COLUMNS: Final[tuple[tuple[str, str], ...]] = (
    *((name, "q") for name in ("step", "begin_ns", "end_ns", *_SLOTS, *_WAITS, *_MEMORY)),
    *((name, "I") for name in _COUNTS),
)
DEVICE_COLUMNS: Final = tuple((name, "q") for name in ("step", *_SLOTS, "wait"))
LAYER_COLUMNS: Final = (
    "calls",
    *("forward", "forward_total", "backward", "backward_total", "recompute", "recompute_total"),
    *("activation_bytes", "activation_bytes_total", "gradient_bytes"),
)
"""What a sampled step says about each layer: its own values, and (`_total`) with the layers that it calls."""


class Folded(NamedTuple):
    """One column of a block, i.e. of many rows rolled up into one: from which column, and how."""

    name: str
    source: str
    how: str  # first | last | sum | min | max | and


_NOT_SUMMED: Final = ("step", "begin_ns", "end_ns", "flags", *_MEMORY)
STEP_BLOCK: Final[tuple[Folded, ...]] = (
    Folded("end_row", "end_row", "last"),  # rows of the recording before the end of this block
    Folded("steps", "one", "sum"),
    Folded("first_step", "step", "first"),
    Folded("last_step", "step", "last"),
    Folded("begin_ns", "begin_ns", "first"),
    Folded("end_ns", "end_ns", "last"),
    Folded("step_ns", "took_ns", "sum"),
    Folded("step_min_ns", "took_ns", "min"),
    Folded("step_max_ns", "took_ns", "max"),
    Folded("rss_bytes", "rss_bytes", "last"),
    Folded("rss_max_bytes", "rss_bytes", "max"),
    Folded("peak_allocated_bytes", "peak_allocated_bytes", "max"),
    Folded("peak_reserved_bytes", "peak_reserved_bytes", "max"),
    Folded("flags", "flags", "and"),
    *(Folded(name, name, "sum") for name, _ in STEP_COLUMNS if name not in _NOT_SUMMED),
)
DROPPED_BLOCK: Final[tuple[Folded, ...]] = (Folded("end_row", "end_row", "last"),)
"""Of old device times and samples, nothing is kept but how many there were.

`end_row`, `one` and `took_ns` are no columns of a row: `recording.fold` knows them.
"""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of the summary: what it is called, in which unit, what it means."""

    key: str
    label: str
    unit: str  # ms | bytes | percent | per_s | c | w | count
    section: str
    help: str


STEP_TIME_METRICS: Final[tuple[Metric, ...]] = (
    Metric("step_ms", "Step", "ms", "step_time", "end of the previous step to the end of this one"),
    *(Metric(f"{p.key}_ms", p.label, "ms", "step_time", p.help) for p in PHASES),
    Metric("wait_ms", "Wait*", "ms", "step_time", "the rest: step time minus all phases"),
    Metric("compute_ms", "Compute", "ms", "step_time", "forward + backward + optimizer"),
    Metric("gc_ms", "GC", "ms", "step_time", "Python garbage collection; part of other phases"),
    Metric("samples_per_s", "Samples/s", "per_s", "step_time", "samples per second of step time"),
    Metric("tokens_per_s", "Tokens/s", "per_s", "step_time", "tokens per second of step time"),
)
STEP_MEMORY_METRICS: Final[tuple[Metric, ...]] = (
    Metric("peak_allocated_bytes", "Peak allocated", "bytes", "step_memory", "highest device memory in use"),
    Metric("peak_reserved_bytes", "Peak reserved", "bytes", "step_memory", "highest device memory held"),
    Metric("rss_bytes", "RSS", "bytes", "step_memory", "resident memory of the process"),
)
SYSTEM_METRICS: Final[tuple[Metric, ...]] = (
    Metric("cpu_percent", "CPU", "percent", "system", "share of all cores in use"),
    Metric("ram_bytes", "RAM", "bytes", "system", "memory in use, of the machine or the container"),
    Metric("ram_percent", "RAM share", "percent", "system", "share of memory in use"),
    Metric("cpu_throttled_percent", "Throttled", "percent", "system", "time lost to the CPU quota"),
    Metric("gpu_util_percent", "GPU util", "percent", "system", "mean of the job's GPUs"),
    Metric("gpu_util_spread_percent", "GPU spread", "percent", "system", "busiest minus least busy GPU"),
    Metric("gpu_mem_bytes", "GPU mem", "bytes", "system", "memory in use on the fullest GPU"),
    Metric("gpu_mem_percent", "GPU mem share", "percent", "system", "share of memory in use, fullest GPU"),
    Metric("gpu_temp_c", "GPU temp", "c", "system", "temperature of the hottest GPU"),
    Metric("gpu_power_w", "GPU power", "w", "system", "power of the job's GPUs together"),
    Metric("gpu_power_percent", "GPU power share", "percent", "system", "share of the power limit"),
)
PROCESS_METRICS: Final[tuple[Metric, ...]] = (
    Metric("cpu_percent", "CPU", "percent", "process", "100 % is one core; includes loader workers"),
    Metric("rss_bytes", "RSS", "bytes", "process", "resident memory of the rank"),
    Metric("gpu_mem_used_bytes", "GPU used", "bytes", "process", "device memory in use"),
    Metric("cpu_delay_percent", "CPU delay", "percent", "process", "kept from a core by other processes"),
    Metric(
        "core_wait_percent", "Core wait", "percent", "process", "ready to run without a core, for any reason"
    ),
    Metric(
        "workers_bytes", "Workers", "bytes", "process", "memory of loader workers, without files and shared"
    ),
    Metric("gpu_mem_reserved_bytes", "GPU reserved", "bytes", "process", "device memory held"),
)
GUIDE_LABELS: Final = {
    "input_ms": "Dataloader Fetch",
    "h2d_ms": "H2D",
    "forward_ms": "Forward",
    "backward_ms": "Backward",
    "sync_ms": "Sync",
    "optimizer_ms": "Optimizer Step",
    "wait_ms": "Wait*",
    "step_ms": "Step Time",
    "gpu_util_percent": "GPU utilization",
    "gpu_mem_bytes": "GPU memory",
    "gpu_temp_c": "GPU temperature",
}
"""What the live views call these metrics, as in the reading guide (docs/live.md)."""
METRICS: Final = STEP_TIME_METRICS + STEP_MEMORY_METRICS + SYSTEM_METRICS + PROCESS_METRICS

SYSTEM_COLUMNS: Final = (("time_ns", "q"), *((m.key, "d") for m in SYSTEM_METRICS))
PROCESS_COLUMNS: Final[tuple[tuple[str, str], ...]] = (
    ("time_ns", "q"),
    ("pid", "q"),
    *((m.key, "d") for m in PROCESS_METRICS[:-1]),
)
"""`gpu_mem_reserved_bytes` comes from the rank's own rows: only its allocator knows."""

PHASE_COLOURS: Final = {
    "input": "#E69F00",
    "h2d": "#F0E442",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "sync": "#CC79A7",
    "optimizer": "#009E73",
    "validation": "#999999",
    "checkpoint": "#8C6D31",
    "no_grad": "#6A51A3",
    "wait": "#D55E00",
}
"""The same in every view. Colour-blind people can tell them apart, and no view relies on them alone."""
USER_COLOURS: Final = ("#44AA99", "#882255", "#DDCC77")
"""Phases that the user names take these in turn."""
WHITE_TEXT_ON: Final = frozenset({"#0072B2", "#8C6D31", "#6A51A3", "#882255"})
"""Black text is readable on the others."""


def colour_of(key: str, user_keys: Sequence[str] = ()) -> str:
    """The colour of a phase, by its key or the key of its metric; `user_keys` are the run's, in order."""
    phase = key.removesuffix("_ms")
    if phase in PHASE_COLOURS:
        return PHASE_COLOURS[phase]
    return USER_COLOURS[user_keys.index(key) % len(USER_COLOURS) if key in user_keys else 0]
