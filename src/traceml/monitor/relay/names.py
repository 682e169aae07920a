"""Which files travel, and under which name they land on node 0.

A name that a peer sends is used only if one of these patterns matches all of it. It lands with the number of
the node that the peer proved to be, so a node never reaches files of node 0 or of another node.
"""

import re
from typing import Final, NamedTuple

_ROWS: Final = re.compile(r"rank-([0-9]{1,7})\.[0-9]{1,10}\.(?:steps|device)|(?:system|process)\.gauges")
_NODE: Final = re.compile(r"\.node[0-9]{1,7}(?=\.)")
_LINES: Final = re.compile(
    r"rank-[0-9]{1,7}\.[0-9]{1,10}\.layers\.jsonl|(?:rank-[0-9]{1,7}\.[0-9]{1,10}|monitor|early)\.events\.jsonl"
)
_MARK: Final = re.compile(r"seen-[a-z0-9_]{1,32}")


class Landing(NamedTuple):
    """Where a file of a node goes, and what it holds."""

    name: str
    has_rows: bool
    """A recording; else lines."""
    rank: int | None
    is_mark: bool
    """An empty file that all nodes share."""


def landing(name: str, node_rank: int | None) -> Landing | None:
    """The place on node 0 of this file of a node, None if it does not travel.

    Without a node rank both folders are of one machine: all names stay, also those of other nodes' files.
    """
    if _MARK.fullmatch(name):
        return Landing(name, False, None, True)
    plain = _NODE.sub("", name, count=1) if node_rank is None else name
    rows = _ROWS.fullmatch(plain)
    if rows is None and _LINES.fullmatch(plain) is None:
        return None
    stem, _, rest = name.partition(".")
    rank = int(rows[1]) if rows is not None and rows[1] else None
    place = name if node_rank is None else f"{stem}.node{node_rank}.{rest}"
    return Landing(place, rows is not None, rank, False)
