"""The Summary: every view is made from it. Times in ms, memory in bytes, shares 0..1, missing is None."""

from dataclasses import dataclass, field
from typing import Final

from traceml.schema.catalog import METRICS, Metric

SCHEMA: Final = "traceml.summary/1"
INFO, WARN, CRIT = "info", "warn", "crit"

EvidenceValue = bool | int | float | str | list[str] | None
Column = list[int | float | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one rule."""

    kind: str = "NO_DATA"
    status: str = "NO DATA"
    severity: str = INFO
    summary: str = ""
    action: str = ""
    score: float = 0.0
    phase: str | None = None
    ranks: list[int] = field(default_factory=list)
    evidence: dict[str, EvidenceValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Primary(Finding):
    """Why the run is slow or unstable, and what fixing that would gain."""

    section: str = "step_time"
    potential_speedup: float | None = None
    potential_how: str | None = None
    potential_is_bound: bool | None = None  # True: at most; False: the advice followed gives about that


@dataclass(frozen=True, slots=True)
class RankValue:
    """A number and the rank (or node) that it comes from."""

    value: float | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class MetricStat:
    """A metric: average over ranks, the median rank, the worst rank, and the spread over steps."""

    average: float | None = None
    median: RankValue = field(default_factory=RankValue)
    worst: RankValue = field(default_factory=RankValue)
    p5: float | None = None
    p95: float | None = None
    skew: float | None = None
    share: float | None = None  # of step time: median of per-rank shares
    total: float | None = None  # of rates: all ranks together


@dataclass(frozen=True, slots=True)
class Identity:
    """Which process it is, or in the system section which machine."""

    rank: int | None = None
    local_rank: int | None = None
    node_rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """The numbers of one rank, or of one node."""

    identity: Identity = field(default_factory=Identity)
    metrics: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SectionWindow:
    """What a section is based on: steps, or samples of gauges."""

    start_step: int | None = None
    end_step: int | None = None
    num_steps: int | None = None
    earlier_steps: int | None = None  # before start_step; only in the totals of the run
    warmup_steps: int | None = None
    first_step_ms: float | None = None
    clock: str | None = None  # host | device
    ranks: list[int] = field(default_factory=list)
    input_inferred: bool | None = None
    loader_workers: int | None = None
    memory: str | None = None  # device | rss
    capacity_bytes: float | None = None
    head_tail_delta_bytes: float | None = None
    samples: int | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the result: step time, step memory, system or process."""

    diagnosis: Finding = field(default_factory=Finding)
    issues: list[Finding] = field(default_factory=list)
    window: SectionWindow = field(default_factory=SectionWindow)
    metrics: dict[str, MetricStat] = field(default_factory=dict)
    ranks: dict[str, Member] = field(default_factory=dict)
    nodes: dict[str, Member] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndedFirst:
    """The first rank that ended when a run did not end normally."""

    rank: int
    step: int | None = None
    phase: str | None = None
    together: bool = False  # several ended at the same moment; which was first is unknown
    signal: str | None = None  # that killed it, if known
    raised_at: str | None = None  # the user's line, if it raised an error


@dataclass(frozen=True, slots=True)
class Attempt:
    """An earlier start of the same ranks, before a launcher restarted them."""

    steps: int = 0
    ended_first: EndedFirst | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Ranks:
    """Which ranks recorded steps, which are in the numbers, which are missing."""

    seen: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    ended_first: EndedFirst | None = None
    earlier_attempts: list[Attempt] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Completed steps of the run."""

    total: int | None = None
    analyzed: int | None = None
    warmup: int | None = None
    first_step_ms: float | None = None
    other_threads: int | None = None  # optimizer steps on threads that are not recorded


@dataclass(frozen=True, slots=True)
class RunPart:
    """A part of the run's duration, on its first rank."""

    label: str
    seconds: float
    share: float
    about: str = ""


@dataclass(frozen=True, slots=True)
class Training:
    """One of several processes that trained as the same rank, or without ranks."""

    pid: int
    rank: int = 0
    steps: int = 0
    step_ms: float | None = None
    input_share: float | None = None
    compute_share: float | None = None
    status: str = "NO DATA"
    severity: str = INFO
    summary: str = ""
    in_tables: bool = False  # the rest of the summary is about this one


@dataclass(frozen=True, slots=True)
class Run:
    """What ran, how it ended, and where its time went."""

    name: str = ""
    status: str = "unknown"
    exit_code: int | None = None
    reason: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    duration_s: float | None = None
    command: list[str] = field(default_factory=list)
    nodes: int = 1
    world_size: int = 1
    ranks: Ranks = field(default_factory=Ranks)
    steps: StepCounts = field(default_factory=StepCounts)
    mode: str = "summary"
    accounting: dict[str, float | None] = field(default_factory=dict)
    parts: list[RunPart] = field(default_factory=list)  # the seconds of `accounting` in order, with names
    trainings: list[Training] = field(default_factory=list)  # if several processes trained without ranks
    totals: dict[str, float | None] = field(default_factory=dict)
    """Seconds in each phase over the whole run, with warm-up, of the same rank as `accounting`."""
    notes: list[str] = field(default_factory=list)
    recorded_steps: int | None = None
    """Steps of all recordings together that this was made from; `view` looks whether there are more now."""


@dataclass(frozen=True, slots=True)
class Heatmap:
    """What each rank did itself, over bins of steps: its step time without waiting for other ranks.

    With many ranks a row stands for neighbours, and each value is the largest among them.
    """

    first_ranks: list[int] = field(default_factory=list)  # of each row, which ends before the next one
    worst_ranks: list[int] = field(default_factory=list)  # the slowest rank of each row over all steps
    steps: list[int] = field(default_factory=list)  # the first step of each bin
    own_ms: list[Column] = field(default_factory=list)  # for each row, the mean of each bin


@dataclass(frozen=True, slots=True)
class Series:
    """Columns for charts. Each part has its axis: `steps` or `seconds`. Gauges are of the first node."""

    step_time: dict[str, Column] = field(default_factory=dict)
    step_memory: dict[str, Column] = field(default_factory=dict)
    system: dict[str, Column] = field(default_factory=dict)
    process: dict[str, Column] = field(default_factory=dict)  # the highest of the ranks at each time
    heatmap: Heatmap = field(default_factory=Heatmap)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Means over consecutive blocks of steps, for statistics on autocorrelated steps."""

    steps_per_block: int = 0
    start_steps: list[int] = field(default_factory=list)
    metrics: dict[str, list[float | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """Something notable. The fields below `duration_ms` belong to certain kinds."""

    kind: str
    rank: int | None = None
    step: int | None = None
    time_s: float | None = None  # since the run began; None if it happened on another machine
    duration_ms: float = 0.0
    message: str | None = None
    during: str | None = None
    phase: str | None = None
    workers: int | None = None
    parameters: int | None = None
    together: bool | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine, the software, and what was trained."""

    host: str | None = None
    os: str | None = None
    cpu_count: int | None = None
    git_commit: str | None = None
    git_dirty: bool | None = None
    python: str | None = None
    torch: str | None = None
    torch_threads: int | None = None
    packages: dict[str, str] = field(default_factory=dict)
    device: str | None = None
    device_name: str | None = None
    device_memory_bytes: float | None = None
    batch_size: int | None = None
    micro_batches: int | None = None
    model_parameters: int | None = None
    world_size: int | None = None


@dataclass(frozen=True, slots=True)
class Overhead:
    """What TraceML itself cost on the training thread and in the monitor."""

    us_per_step: float | None = None
    share: float | None = None
    how: str | None = None
    monitor_cpu_s: float | None = None
    monitor_rss_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer per step, on the median rank: its own values, and (`_total`) with the layers that it
    calls."""

    path: str
    type: str = ""
    calls: float = 0.0
    forward_ms: float = 0.0
    forward_total_ms: float = 0.0
    forward_share: float | None = None  # of the forward time of all layers
    backward_ms: float = 0.0
    backward_total_ms: float = 0.0
    backward_share: float | None = None  # of backward, with recomputation and what is outside of layers
    recompute_ms: float = 0.0
    recompute_total_ms: float = 0.0
    share: float | None = None  # of forward and backward together
    parameter_bytes: float = 0.0
    parameter_total_bytes: float = 0.0
    gradient_bytes: float = 0.0
    activation_bytes: float | None = None
    activation_total_bytes: float | None = None
    hidden: int = 0  # modules inside a compiled one, which run as a part of it
    worst: RankValue = field(default_factory=RankValue)  # all passes of the layer itself, in ms


@dataclass(frozen=True, slots=True)
class Layers:
    """What deep mode found, the layers that take longest first."""

    samples: int = 0  # sampled steps of the rank that has most
    every: int | None = None  # at the end, one in this many steps was sampled
    start_step: int | None = None
    end_step: int | None = None
    clock: str | None = None
    ranks: list[int] = field(default_factory=list)
    forward_ms: float | None = None
    backward_ms: float | None = None
    recompute_ms: float | None = None
    outside_ms: float | None = None  # backward of operations outside of modules, such as a functional loss
    outside_share: float | None = None  # of backward
    parameter_bytes: float | None = None
    gradient_bytes: float | None = None
    activation_bytes: float | None = None  # with those outside of modules
    outside_bytes: float | None = None
    cost_share: float | None = None  # what sampling added, of step time
    count: int = 0  # layers in all
    notes: list[str] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Summary:
    """final_summary.json."""

    run: Run = field(default_factory=Run)
    primary_diagnosis: Primary = field(default_factory=Primary)
    step_time: Section = field(default_factory=Section)
    step_memory: Section = field(default_factory=Section)
    system: Section = field(default_factory=Section)
    process: Section = field(default_factory=Section)
    layers: Layers | None = None  # only in deep mode
    schema: str = SCHEMA
    final: bool = True
    series: Series = field(default_factory=Series)
    blocks: Blocks = field(default_factory=Blocks)
    events: list[Event] = field(default_factory=list)
    environment: Environment = field(default_factory=Environment)
    overhead: Overhead = field(default_factory=Overhead)
    catalog: list[Metric] = field(default_factory=lambda: list(METRICS))


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One line of `traceml runs`, from the summary of a run or, if there is none, from its manifest."""

    name: str
    path: str
    started_at: str | None = None
    status: str | None = None
    exit_code: int | None = None
    verdict: str | None = None
    severity: str | None = None
    step_ms: float | None = None
    steps: int | None = None
    world_size: int | None = None
    duration_s: float | None = None
    problem: str | None = None
