"""A command that runs without capture (`traceml watch train.py`): its process is sampled all the same."""

from __future__ import annotations

import socket
from pathlib import Path

from traceml.recording import layout
from traceml.schema import catalog as c


def note_process(folder: Path, pid: int) -> None:
    """A recording without steps in the name of the command, so that its samples belong to somebody."""
    one = {"rank": 0, "local_rank": 0, "node_rank": 0, "world_size": 1}
    header = {"identity": {**one, "host": socket.gethostname(), "pid": pid}, "process": {"thread": pid}}
    path = folder / layout.FOLDER / f"rank-0.{pid}.steps"
    path.write_bytes(layout.header_bytes(c.STEP_COLUMNS, header))
