"""Makes run folders, writes recordings as ranks do, reads what landed, waits for conditions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from traceml.monitor.relay.client import RelayClient
from traceml.monitor.relay.server import RelayServer
from traceml.recording import layout
from traceml.recording.reader import Live, RecordingReader, names_of
from traceml.recording.writer import RecordingWriter

COLUMNS = (("step", "q"), ("value", "q"), ("third", "d"))
DEADLINE_S = 120.0
ENVIRONMENT = {"TRACEML_KEY": "0123456789abcdef-of-a-test-run"}


def make_run(path: Path) -> Path:
    """A run folder as `traceml run` makes it."""
    (path / "recording").mkdir(parents=True)
    return path


class Rank:
    """A rank's recording with numbered rows."""

    def __init__(self, run_dir: Path, rank: int, pid: int = 42, ending: str = "steps") -> None:
        self.name = f"rank-{rank}.{pid}.{ending}"
        self.events = run_dir / "recording" / f"rank-{rank}.{pid}.events.jsonl"
        header = {"kind": ending, "identity": {"rank": rank, "pid": pid}}
        path = run_dir / "recording" / self.name
        self.writer = RecordingWriter(str(path), COLUMNS, header)

    def append(self, count: int) -> None:
        """Write this many more rows."""
        for _ in range(count):
            step = self.writer.count
            self.writer.append(step, step * 7, step / 2)

    def event(self, text: str) -> None:
        """One event line."""
        with self.events.open("a") as file:
            file.write(text + "\n")


def steps(run_dir: Path, name: str) -> list[int]:
    """The step numbers in a recording of this run folder, empty when it is not there."""
    path = run_dir / "recording" / name
    if not path.exists():
        return []
    rows = RecordingReader(path).rows()
    assert (rows["value"] == rows["step"] * 7).all(), "a torn row"
    return [int(step) for step in rows["step"]]


def live(path: Path) -> tuple[Live, str | None]:
    """What a recording's process said about itself, and the name of its first user phase."""
    data = path.read_bytes()
    (name,) = names_of(data[layout.LIVE_NAMES : layout.HEADER_SIZE], 1)
    return Live.parse(data[layout.LIVE_OFFSET :]), name


def until(condition: Callable[[], bool], work: Callable[[], object] = lambda: time.sleep(0.01)) -> None:
    """Work until the condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "did not happen before the deadline"
        work()


def pump_both(server: RelayServer, *clients: RelayClient) -> Callable[[], None]:
    """Work that runs both ends for a moment."""

    def work() -> None:
        server.pump(0.002)
        for client in clients:
            client.pump(0.002)

    return work
