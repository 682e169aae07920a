"""Brings a node's recording into node 0's run folder if the relay could not."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from traceml.monitor.relay.outbox import Outbox
from traceml.monitor.relay.protocol import Limits
from traceml.monitor.relay.store import NodeStore
from traceml.runs.folder import RECORDING

_MOST_QUIET: Final = 100
"""Questions without new bytes before the disk counts as full; asking for all files takes fewer."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge did."""

    new_bytes: int
    """Rows and event lines that the target did not have."""
    complete: bool
    problems: dict[str, str]
    """File name and why it was left out."""


def merge_node_folder(source: Path, target: Path, node_rank: int | None) -> Merged:
    """Copy what run folder `source` of this node has and run folder `target` does not have.

    Can be repeated, interrupted, and mixed with a relay that carried a part, but not while one runs.
    """
    store = NodeStore(target / RECORDING, node_rank, Limits(keep_free_bytes=0))
    return catch_up(Outbox(source, node_rank, files_at_once=None), store)


def catch_up(outbox: Outbox, store: NodeStore) -> Merged:
    """Everything that the outbox has now goes to the store."""
    before = store.received_bytes
    new_bytes, quiet = before, 0
    while quiet < _MOST_QUIET and (question := outbox.question()).pieces:
        outbox.take(store.answer(question))
        quiet = 0 if store.received_bytes > new_bytes else quiet + 1
        new_bytes = store.received_bytes
    return Merged(new_bytes - before, outbox.is_empty() and not outbox.given_up, outbox.given_up)
