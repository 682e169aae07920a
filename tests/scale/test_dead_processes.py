"""A sweep starts thousands of short trainings in one run: the monitor's work does not grow with the dead."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bench.synthetic import step_rows

from traceml.monitor import watchdog
from traceml.monitor.gauges import Gauges
from traceml.monitor.result import build
from traceml.monitor.watchdog import ExitTimes, Watchdog
from traceml.recording.rollup import Roller
from traceml.recording.tail import Tail, live_tail
from traceml.recording.writer import CHUNK_BYTES, RecordingWriter
from traceml.schema import catalog as c

FIRST_PID = 2**22 + 1
"""Above the largest process id that Linux hands out."""
ROWS = [row.tobytes()[:-8] for row in step_rows(1, 3, seed=0)]


def short_process(folder: Path, number: int, pid: int | None = None) -> RecordingWriter:
    """What a process that trained three steps leaves; every other one was killed."""
    pid = FIRST_PID + number if pid is None else pid
    identity = {"rank": 0, "local_rank": 0, "node_rank": 0, "world_size": 1, "pid": pid, "host": "h"}
    process = {"clock_ns": number * 10**9, "wall_ns": number * 10**9}
    path = folder / "recording" / f"rank-0.{pid}.steps"
    writer = RecordingWriter(str(path), c.STEP_COLUMNS, {"identity": identity, "process": process})
    for row in ROWS:
        writer.append_packed(row)
    if number % 2:
        writer.close()
    return writer


class Monitored:
    """The parts of a monitor that look again and again, and what they ask of the system."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "recording").mkdir(parents=True)
        self.folder = folder
        self.tail = live_tail(folder)
        self.watchdog = Watchdog(self.tail, 30.0)
        self.gauges = Gauges(folder / "recording", list)
        self.roller = Roller(folder, every_s=0.0, ended=self.tail.ended)
        self.calls: Counter[str] = Counter()
        for name in ("open", "stat", "pread", "preadv"):
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, real: Any) -> Any:
        def counted(*args: Any, **more: Any) -> Any:
            self.calls[name] += 1
            return real(*args, **more)

        return counted

    def tick(self) -> Counter[str]:
        """One round of the monitor's loop; the system calls that it took."""
        self.tail.list_again()
        self.calls.clear()
        self.watchdog.look()
        self.gauges.sample(self.tail.threads())
        self.roller.maybe_roll(time.monotonic())
        return Counter(self.calls)


def test_system_calls_of_a_tick_do_not_grow_with_dead_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 20 or 1,000 dead processes, a tick in which two more ended opens and reads the same files."""
    monitored = Monitored(tmp_path, monkeypatch)
    alive = short_process(tmp_path, 0, os.getpid())
    counts: dict[int, Counter[str]] = {}
    for number in range(1, 1_003):
        short_process(tmp_path, number)
        if number in (20, 1_000):
            monitored.tick()  # those so far end
            monitored.tick()  # and are rolled up for the last time
            short_process(tmp_path, 2_000 + number)
            short_process(tmp_path, 3_000 + number)
            counts[number] = monitored.tick()
    assert counts[20]["open"] > 0
    assert all(counts[1_000][call] <= counts[20][call] + 2 for call in counts[20] | counts[1_000])
    assert [rank.identity.pid for rank in monitored.tail.local_ranks() if rank.identity.pid == os.getpid()]
    assert not alive.failed


def test_memory_does_not_grow_with_dead_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a dead process only its file's name is kept."""
    monitored = Monitored(tmp_path, monkeypatch)
    for number in range(300):
        short_process(tmp_path, number)
        monitored.tick()
    assert monitored.tail._ranks == {}
    assert len(monitored.tail.ended) == 300
    assert monitored.gauges._processes == {}
    assert monitored.roller._waits_for == {}
    assert isinstance(monitored.watchdog._exit_times, ExitTimes)
    assert not monitored.watchdog._exit_times._known
    noted = (tmp_path / "recording" / watchdog.EVENTS).read_text().splitlines()
    assert len({json.loads(line)["pid"] for line in noted}) == 300


def test_the_summary_of_a_sweep_is_bounded(tmp_path: Path) -> None:
    """All processes count, the newest is analyzed, and the list of earlier ones is cut."""
    (tmp_path / "recording").mkdir()
    for number in range(500):
        short_process(tmp_path, number)
    found = build(tmp_path, {"name": "sweep", "status": "completed"}, final=True)
    assert found.run.recorded_steps == 1_500
    assert len(found.run.ranks.earlier_attempts) == 100
    assert any("were started 500 times" in note for note in found.run.notes)


def test_disk_space_of_a_short_process(tmp_path: Path) -> None:
    """The first chunk is small: a tenth of what a long training reserves at a time."""
    (tmp_path / "recording").mkdir()
    short_process(tmp_path, 1)
    (path,) = (tmp_path / "recording").iterdir()
    assert path.stat().st_blocks * 512 <= CHUNK_BYTES // 8


def test_a_costly_folder_is_listed_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing takes at most a 200th of the time, however many files there are; on request, at once."""
    (tmp_path / "recording").mkdir()
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "thread_time", lambda: clock[0])
    real = os.listdir
    listed = [0]

    def slow(path: Any) -> list[str]:
        listed[0] += 1
        clock[0] += 0.1
        return real(path)

    monkeypatch.setattr(os, "listdir", slow)
    tail = Tail(tmp_path)
    for _ in range(10_000):
        (tmp_path / "recording" / "x").touch()
        tail.names()
        clock[0] += 0.01
    assert 0 < listed[0] * 0.1 <= 0.0055 * (clock[0] - 100) + 0.1
    before = listed[0]
    tail.list_again()
    tail.names()
    assert listed[0] == before + 1
