"""Which files travel, and under which name they land on node 0.

A name that a peer sends never becomes a path: it is taken apart by one of the patterns below and
a new name is put together from the pieces and the node that the peer proved to be. So a node can
reach its own files only, never those of node 0 or of another node.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

MOST_NODES: Final = 65_536


class Kind(enum.Enum):
    """How the bytes of a file grow, hence how they travel."""

    ROWS = "rows"  # a recording: offsets count rows
    LINES = "lines"  # appended text: offsets count bytes
    WHOLE = "whole"  # a small file that is replaced


@dataclass(frozen=True, slots=True)
class TravelName:
    """A name that may travel, and where it lands."""

    name: str
    kind: Kind
    rank: int | None
    _landing: str

    def on_node0(self, node_rank: int) -> str:
        """The file name in node 0's recording folder."""
        return self._landing.replace("<node>", f"node{node_rank}")


_RANK_FILE: Final = re.compile(r"rank-([0-9]{1,7})\.([0-9]{1,10})\.(steps|device|events\.jsonl)")
_GAUGES: Final = re.compile(r"(system|process)\.gauges")
_NOTICED: Final = "monitor.events.jsonl"
_MARK: Final = re.compile(r"seen-[a-z0-9_]{1,32}")
_MANIFEST: Final = "manifest.json"


def parse_name(name: str) -> TravelName | None:
    """The name taken apart, None when it is not one of ours."""
    if found := _RANK_FILE.fullmatch(name):
        rank, pid, ending = found.groups()
        kind = Kind.LINES if ending == "events.jsonl" else Kind.ROWS
        return TravelName(name, kind, int(rank), f"rank-{rank}.<node>.{pid}.{ending}")
    if found := _GAUGES.fullmatch(name):
        return TravelName(name, Kind.ROWS, None, f"{found.group(1)}.<node>.gauges")
    if name == _NOTICED:
        return TravelName(name, Kind.LINES, None, "monitor.<node>.events.jsonl")
    if _MARK.fullmatch(name):
        return TravelName(name, Kind.WHOLE, None, name)
    if name == _MANIFEST:
        return TravelName(name, Kind.WHOLE, None, "manifest.<node>.json")
    return None


def landed_pattern(node_rank: int) -> str:
    """A glob for what this node's relay wrote into node 0's recording folder."""
    return f"*.node{node_rank}.*"
