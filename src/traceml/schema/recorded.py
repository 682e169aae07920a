"""What a run recorded, as the analysis sees it: rows in memory, no files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from traceml.schema.summary import Environment, Identity, Overhead

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """One line of an event file of a rank or a monitor. Times in ns. Most fields belong to certain kinds."""

    kind: str
    step: int | None = None
    time_ns: int = 0  # on the monotonic clock of its machine
    duration_ns: int = 0
    message: str | None = None  # error
    during: str | None = None  # error: the phase that the exception left
    raised_at: str | None = None  # error: the user's line
    workers: int | None = None  # epoch_start
    parameters: int | None = None  # model
    rank: int = -1  # if a monitor saw it: about this rank
    pid: int | None = None
    wall_ns: int = 0
    phase: str | None = None
    failed_in: str | None = None
    closed: bool | None = None
    exact: bool = False  # the kernel reported when the process ended
    together: bool = True
    oom_kills: int | None = None
    signal: str | None = None  # rank_ended: what killed the process, or
    exit_code: int | None = None  # the code that it exited with, if the kernel could still tell


@dataclass(frozen=True, slots=True)
class LayerSample:
    """One sampled step of deep mode: columns with a value for each layer, times in ns."""

    step: int
    every: int
    own_ns: int
    clock: str
    reads_saved: bool
    outside_ns: int  # backward of operations outside of modules
    outside_bytes: int  # what they keep for it
    paths: list[str]
    types: list[str]
    parameter_bytes: list[int]
    parameter_bytes_total: list[int]
    hidden: list[int]
    columns: dict[str, list[int]]  # of `catalog.LAYER_COLUMNS`; what is all zero is left out


@dataclass(frozen=True, slots=True)
class RankRecording:
    """One training process: who it is, its step rows, what it was doing when last seen."""

    header: dict[str, Any]
    rows: NDArray[np.void]
    device_rows: NDArray[np.void] | None = None
    user_names: list[str | None] = field(default_factory=list)
    live_phase: int = 0
    lost_rows: bool = False
    own_scale: float | None = None
    """What recording cost in steps that were sampled for it, in units of what the header expects of them."""
    other_steps: int = 0  # optimizer steps on threads that are not recorded
    events: list[RecordedEvent] = field(default_factory=list)
    layers: list[LayerSample] = field(default_factory=list)  # the newest sampled steps of deep mode
    node: int = 0  # the node that it runs on
    earlier: np.void | None = None  # one block (catalog.STEP_BLOCK) of all steps before `rows`
    head: NDArray[np.void] | None = None  # with it: step, begin_ns and end_ns of the first steps
    identity: Identity = Identity()  # noqa: RUF009 - frozen; read from the header if it is not given
    rank: int = field(init=False)
    pid: int = field(init=False)

    def __post_init__(self) -> None:
        # Plain fields, because each look at a run reads them a dozen times for each of thousands of ranks.
        if self.identity.rank is None:
            object.__setattr__(self, "identity", identity_of(self.header))
        object.__setattr__(self, "rank", self.identity.rank or 0)
        object.__setattr__(self, "pid", self.identity.pid or 0)

    @property
    def begin_ns(self) -> int | None:
        """When its first step began, on the clock of its machine."""
        if self.earlier is not None:
            return int(self.earlier["begin_ns"])
        return int(self.rows["begin_ns"][0]) if len(self.rows) else None

    @property
    def end_ns(self) -> int | None:
        """When its last step ended."""
        if len(self.rows):
            return int(self.rows["end_ns"][-1])
        return int(self.earlier["end_ns"]) if self.earlier is not None else None


MOST_RANKS: Final = 1_000_000
LARGEST: Final = {
    **dict.fromkeys(("rank", "local_rank", "node_rank"), MOST_RANKS - 1),
    "world_size": MOST_RANKS,
    "pid": 2**31 - 1,
}
"""No training has more ranks. Such a variable has another meaning, or is false."""


def identity_of(header: dict[str, Any]) -> Identity:
    """Which process wrote the recording. A missing or wrong field reads as in a run with one process."""
    found = header.get("identity")
    given = found if isinstance(found, dict) else {}
    numbers = {
        k: v if type(v := given.get(k)) is int and 0 <= v <= most else 0 for k, most in LARGEST.items()
    }
    numbers["world_size"] = max(numbers["world_size"], 1)
    host = given.get("host")
    return Identity(**numbers, host=host if isinstance(host, str) else None)


@dataclass(frozen=True, slots=True)
class NodeGauges:
    """What the monitor of a node sampled there, on that node's clock."""

    system_rows: NDArray[np.void] | None = None
    process_rows: NDArray[np.void] | None = None


@dataclass(frozen=True, slots=True)
class RunRecording:
    """What the analysis starts from."""

    ranks: list[RankRecording]
    nodes: dict[int, NodeGauges] = field(default_factory=dict)  # node 0 is where the result is made
    seen: frozenset[str] = frozenset()
    problems: list[str] = field(default_factory=list)
    monitor_events: list[RecordedEvent] = field(default_factory=list)
    early_events: list[RecordedEvent] = field(default_factory=list)
    """What processes left without a recording: exceptions that ended them, parts of capture that failed."""

    def gauges(self, node: int) -> NodeGauges:
        return self.nodes.get(node, NodeGauges())


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known about a run from outside, from the monitor or (for `traceml view`) the manifest."""

    name: str
    status: str = "running"
    exit_code: int | None = None
    reason: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    begin_ns: int | None = None  # on the monotonic clock that the ranks use
    end_ns: int | None = None
    command: list[str] = field(default_factory=list)
    mode: str = "summary"
    environment: Environment = field(default_factory=Environment)
    monitor: Overhead = field(default_factory=Overhead)
    cores: int = 1
    notes: list[str] = field(default_factory=list)  # what went wrong outside the training
