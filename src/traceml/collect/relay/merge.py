"""Brings a node's recording into node 0's run folder when the relay could not."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

from traceml.collect.relay.inbox import Inbox
from traceml.collect.relay.outbox import Outbox
from traceml.collect.relay.protocol import PROTOCOL, Hello, Limits
from traceml.collect.rundir import RECORDING


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge did."""

    new_bytes: int
    """Rows and event lines that the target did not have."""
    complete: bool
    problems: dict[str, str] = field(default_factory=dict)
    """File name and why it was left out."""


def merge_node_folder(source: Path, target: Path, node_rank: int) -> Merged:
    """Copy what run folder `source` of this node has and run folder `target` has not.

    Can be repeated, interrupted, and mixed with a relay that carried a part; not while one runs.
    """
    inbox = Inbox(target / RECORDING, Limits(keep_free_bytes=0), lambda: 0.0)
    inbox.handle(node_rank, Hello(client=0, connection=0, protocol=PROTOCOL, node_rank=node_rank))
    outbox = Outbox(source, client=0)
    outbox.look()
    # Steps of time that let every pause of the outbox pass; bounded, should a disk be full.
    for now_s in itertools.count(0.0, 60.0):
        before = inbox.nodes()[node_rank].received_bytes
        sent = 0
        for request in outbox.messages(now_s):
            outbox.take(inbox.handle(node_rank, request), now_s)
            sent += 1
        if not sent or (now_s > 600 and inbox.nodes()[node_rank].received_bytes == before):
            break
    return Merged(
        new_bytes=inbox.nodes()[node_rank].received_bytes,
        complete=outbox.all_there() and not outbox.given_up,
        problems=dict(outbox.given_up),
    )
