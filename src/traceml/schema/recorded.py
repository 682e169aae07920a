"""What a run recorded, as the analysis sees it: rows in memory, no files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RankRecording:
    """One training process: who it is, its step rows, what it was doing when last seen."""

    header: dict[str, Any]
    rows: NDArray[np.void]
    device_rows: NDArray[np.void] | None = None
    user_names: list[str | None] = field(default_factory=list)
    live_phase: int = 0
    lost_rows: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)
    node: int = 0  # whose gauges cover it
    earlier: np.void | None = None
    """One block (catalog.STEP_BLOCK) of all steps before `rows`, when those are not in `rows`."""
    head: NDArray[np.void] | None = None
    """Then: step, begin_ns and end_ns of the first steps, which `earlier` holds as well."""
    identity: dict[str, Any] = field(init=False)
    rank: int = field(init=False)
    pid: int = field(init=False)

    def __post_init__(self) -> None:
        # Plain fields, because thousands of ranks are asked for them a dozen times a tick.
        found = self.header.get("identity")
        identity = found if isinstance(found, dict) else {}
        object.__setattr__(self, "identity", identity)
        object.__setattr__(self, "rank", int(identity.get("rank", 0)))
        object.__setattr__(self, "pid", int(identity.get("pid", 0)))

    @property
    def begin_ns(self) -> int | None:
        """When its first step began, on its machine's clock."""
        if self.earlier is not None:
            return int(self.earlier["begin_ns"])
        return int(self.rows["begin_ns"][0]) if len(self.rows) else None

    @property
    def end_ns(self) -> int | None:
        """When its last step ended."""
        if len(self.rows):
            return int(self.rows["end_ns"][-1])
        return int(self.earlier["end_ns"]) if self.earlier is not None else None


@dataclass(frozen=True, slots=True)
class NodeGauges:
    """What the monitor of another node sampled there, on that node's clock."""

    system_rows: NDArray[np.void] | None = None
    process_rows: NDArray[np.void] | None = None


@dataclass(frozen=True, slots=True)
class RunRecording:
    """What the analysis starts from."""

    ranks: list[RankRecording]
    system_rows: NDArray[np.void] | None = None
    process_rows: NDArray[np.void] | None = None
    seen: frozenset[str] = frozenset()
    problems: list[str] = field(default_factory=list)
    monitor_events: list[dict[str, Any]] = field(default_factory=list)
    other_nodes: dict[int, NodeGauges] = field(default_factory=dict)

    def gauges(self, node: int) -> NodeGauges:
        """The gauges of one node; node 0 is where the result is made."""
        if node == 0:
            return NodeGauges(self.system_rows, self.process_rows)
        return self.other_nodes.get(node, NodeGauges())
