"""A live view that looks again and again finds what a first look at the same rows finds."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from bench.synthetic import dtype_of, step_rows
from numpy.typing import NDArray

from traceml.analyze.align import align_ranks
from traceml.analyze.recordings import believed, find_attempts
from traceml.analyze.summarize import summarize
from traceml.analyze.window import Window
from traceml.analyze.window_arrays import Before, WindowArrays
from traceml.recording import layout
from traceml.recording.rollup import Roller
from traceml.recording.tail import Tail
from traceml.runs.folder import RECORDING
from traceml.schema import catalog as c
from traceml.schema.recorded import RunFacts, RunRecording

FACTS = RunFacts("live", begin_ns=0, end_ns=10**14)
STEPS, DEVICE = dtype_of(c.STEP_COLUMNS), dtype_of(c.DEVICE_COLUMNS)


class Process:
    """A training process whose recording grows piece by piece."""

    def __init__(self, run_dir: Path, rank: int, pid: int, on_device: bool, clock_ns: int = 1) -> None:
        folder = run_dir / RECORDING
        folder.mkdir(parents=True, exist_ok=True)
        self.rank, self.step, self.rows, self.timed, self.clock_ns = rank, 0, 0, 0, clock_ns
        self._path = folder / f"rank-{rank}.{pid}.steps"
        self._device = self._path.with_suffix(".device") if on_device else None
        header = {
            "identity": {"rank": rank, "local_rank": rank, "world_size": 4, "host": "box", "pid": pid},
            "process": {"clock_ns": clock_ns, "wall_ns": clock_ns},
            "overhead": {"switch_ns": 200, "row_ns": 1000},
        }
        self._path.write_bytes(layout.header_bytes(c.STEP_COLUMNS, header))
        if self._device is not None:
            self._device.write_bytes(layout.header_bytes(c.DEVICE_COLUMNS, header))

    def go_on(self, count: int, **columns: int) -> None:
        """Complete this many steps; `columns` are set to these values in all of them."""
        rows = step_rows(self.step + 1, count, seed=self.rank)
        rows["begin_ns"] += self.clock_ns
        rows["end_ns"] += self.clock_ns
        for name, value in columns.items():
            rows[name] = value
        self._write(rows)
        self.step += count

    def supersede(self) -> None:
        """One more row of the last step, which took longer than was thought."""
        self.step -= 1
        self.go_on(1, forward=77_000_000)

    def time_on_device(self, late: int) -> None:
        """Device times of all steps but the last `late` ones."""
        count = self.step - late - self.timed
        if self._device is None or count <= 0:
            return
        rows = np.zeros(count, dtype=DEVICE)
        rows["step"] = rows["sequence"] = np.arange(self.timed + 1, self.timed + count + 1)
        rows["forward"], rows["backward"] = 40_000_000 + rows["step"], 50_000_000
        self._append(self._device, rows, self.timed)
        self.timed += count

    def report(self, own_ns: int, name: str = "") -> None:
        """What it says about itself between two rows."""
        with self._path.open("r+b") as file:
            file.seek(layout.LIVE_OFFSET)
            file.write(layout.LIVE.pack(1, layout.STATE_RUNNING, 0, 0, own_ns, 10, 3, 0, 90))
            file.seek(layout.LIVE_NAMES)
            file.write(name.encode().ljust(layout.NAME_BYTES, b"\0"))

    def _write(self, rows: NDArray[np.void]) -> None:
        rows["sequence"] = np.arange(self.rows + 1, self.rows + 1 + len(rows))
        self._append(self._path, rows, self.rows)
        self.rows += len(rows)

    @staticmethod
    def _append(path: Path, rows: NDArray[np.void], before: int) -> None:
        with path.open("r+b") as file:
            file.seek(layout.HEADER_SIZE + before * rows.dtype.itemsize)
            file.write(rows.tobytes())


class Looks:
    """Two ways to look at the same rows, and how many steps the first one did not look at again."""

    def __init__(self, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tail, self.before = Tail(run_dir, most_cells=1_200), Before()
        self.known: list[int] = []
        real = WindowArrays.take_over

        def counted(arrays: WindowArrays, before: WindowArrays) -> int:
            self.known.append(real(arrays, before))
            return self.known[-1]

        monkeypatch.setattr(WindowArrays, "take_over", counted)

    def check(self) -> RunRecording:
        """Look once more; the summary must be the same to the last digit."""
        recording = self.tail.read()
        again = summarize(recording, FACTS, final=False, before=self.before)
        first = summarize(recording, FACTS, final=False)
        assert msgspec.json.encode(again) == msgspec.json.encode(first)
        ranks = find_attempts(believed(recording.ranks)[0]).chosen
        again_window, first_window = align_ranks(ranks, self.before), align_ranks(ranks)
        for name in Window.__dataclass_fields__:
            np.testing.assert_equal(getattr(again_window, name), getattr(first_window, name), name)
        return recording


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.thorough) for n in (3, 4, 5))])
def test_looking_again_finds_what_a_first_look_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Ranks appear late, lag behind, die, restart, name phases, write a step twice, get device times late."""
    chance, looks = random.Random(seed), Looks(tmp_path, monkeypatch)
    on_device = seed % 3 == 2
    processes = [Process(tmp_path, rank, 100 + rank, on_device) for rank in range(3)]
    for look in range(40):
        if look == 8:  # appears late
            processes.append(Process(tmp_path, 3, 103, on_device))
        if look == 30:  # all of them start again
            processes = [Process(tmp_path, r, 200 + r, on_device, 10**12) for r in range(4)]
        for process in processes:
            if look > 20 and process.rank == 2 and look < 30:
                continue  # died
            flags = {"flags": c.FLAG_INPUT_INFERRED} if look < 5 else {}
            process.go_on(chance.choice((0, 1, 10, 40) if process.rank == 1 else (9, 10, 11)), **flags)
            if chance.random() < 0.2 and process.step:
                process.supersede()
            process.time_on_device(late=chance.choice((0, 0, 2, 40)))
            process.report(chance.randrange(10**6), name="eval" if look > 12 + process.rank else "")
            if look > 14:
                process.go_on(1, samples=0, flags=0)
            if look > 6:
                process.go_on(1, user0=5_000_000 + look)
        looks.check()
    assert sum(known > 50 for known in looks.known) >= 10, "most looks went on from the one before"


def test_a_rank_with_an_impossible_row_is_set_aside_until_the_row_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only new rows are looked at, but what was once found is not forgotten while the row is held."""
    looks = Looks(tmp_path, monkeypatch)
    good, bad = (Process(tmp_path, rank, 100 + rank, on_device=False) for rank in range(2))
    used = []
    for look in range(40):
        good.go_on(20)
        bad.go_on(20, **({"forward": 2**62} if look == 5 else {}))
        found = looks.check()
        has_bad = any((r.rows["forward"] == 2**62).any() for r in found.ranks)
        used.append(len(looks.before.checked))
        assert used[-1] == (1 if has_bad else 2)
    assert set(used) == {1, 2}


def test_rows_that_are_rolled_up_before_they_were_read_start_a_new_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view that looks seldom misses rows; it must not join what lies before and after the gap."""
    looks, roller = Looks(tmp_path, monkeypatch), Roller(tmp_path, keep_rows=500, every_s=0)
    processes = [Process(tmp_path, rank, 100 + rank, on_device=False) for rank in range(2)]
    for look in range(8):
        for process in processes:
            process.go_on(4_000 if look in (3, 5) else 20)
        roller.maybe_roll(float(look))
        looks.check()
    assert looks.known.count(0) >= 2
    assert max(looks.known) > 50
