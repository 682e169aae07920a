"""Old steps are rolled up: disk and memory stay bounded, and whole-run totals stay exact."""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.synthetic import dtype_of, step_rows
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import examples
from tests.scale.rolled import ROW_BYTES, LongRank, check_totals, read_one
from traceml.analyze import recordings
from traceml.analyze.summarize import summarize
from traceml.monitor.relay.protocol import Piece
from traceml.monitor.relay.store import Limits, NodeStore
from traceml.recording import layout
from traceml.recording.fold import STEPS
from traceml.recording.reader import RecordingReader
from traceml.recording.rollup import HEAD_ROWS, Roller, free_space, rolled_up_rows, rollup_path
from traceml.recording.tail import Tail
from traceml.recording.writer import CHUNK_BYTES, RecordingWriter
from traceml.schema import catalog as c
from traceml.schema.recorded import RunFacts, RunRecording

KEEP = 5_000
FACTS = RunFacts("long", begin_ns=0, end_ns=10**15)


def can_free_space(folder: Path) -> bool:
    """Whether this disk can free a part of a file."""
    with (folder / "probe").open("w+b") as file:
        file.write(bytes(65536))
        file.flush()
        free_space(file.fileno(), 0, 65536)
        return os.fstat(file.fileno()).st_blocks == 0


@pytest.mark.thorough
def test_a_million_steps_take_bounded_disk_and_give_exact_totals(tmp_path: Path) -> None:
    """Disk use never exceeds the kept rows, the piece being written and the blocks; totals are exact."""
    rank, roller = LongRank(tmp_path), Roller(tmp_path, keep_rows=20_000, every_s=0)
    most = 0
    for at in range(50):
        rank.append(20_000)
        roller.maybe_roll(float(at))
        most = max(most, rank.disk_bytes())
    assert rank.steps == 1_000_000
    found = read_one(tmp_path)
    check_totals(found, rank)
    assert len(found.rows) < 25_000, "what a reader holds does not grow with the run"
    if can_free_space(tmp_path):
        assert most < 45_000 * ROW_BYTES + 2_000_000
        assert rank.disk_bytes() < 25_000 * ROW_BYTES + 2_000_000


def test_rolling_up_little_by_little_leaves_nothing_behind(tmp_path: Path) -> None:
    """Blocks end within pages, yet over hundreds of blocks no page stays on disk."""
    rank, roller = LongRank(tmp_path), Roller(tmp_path, KEEP, every_s=0)
    for at in range(400):
        rank.append(1_001)
        roller.maybe_roll(float(at))
    if can_free_space(tmp_path):
        assert rank.disk_bytes() < (KEEP + HEAD_ROWS + 2_100) * ROW_BYTES + 100_000
    check_totals(read_one(tmp_path), rank)


def test_the_summary_of_a_rolled_up_run(tmp_path: Path) -> None:
    """Steps, accounting and totals cover the whole run; the window covers the kept rows and says so."""
    rank, roller = LongRank(tmp_path), Roller(tmp_path, KEEP, every_s=0)
    for at in range(10):
        rank.append(3_000)
        roller.maybe_roll(float(at))
    found = summarize(Tail(tmp_path).read(), FACTS)
    assert found.run.steps.total == 30_000
    assert found.run.accounting["steps_s"] == rank.step_ns / 1e9
    assert found.run.accounting["startup_s"] == pytest.approx(0.1, abs=0.01)
    assert found.run.totals["step_s"] == rank.step_ns / 1e9
    assert found.run.totals["forward_s"] == rank.sums["forward"] / 1e9
    assert found.run.totals["h2d_s"] is None, "not measured is not 0"
    phases = [v for k, v in found.run.totals.items() if k not in ("rank", "steps", "step_s") and v]
    assert sum(phases) == pytest.approx(found.run.totals["step_s"])
    window = found.step_time.window
    assert window.end_step == 30_000
    assert window.num_steps is not None
    assert window.earlier_steps is not None
    assert window.num_steps + window.earlier_steps == 30_000
    assert found.run.steps.warmup == 1, "warm-up is recognized by the first steps, which are kept"
    assert any("earlier steps" in note for note in found.run.notes)


def test_totals_are_the_same_rolled_up_or_not(tmp_path: Path) -> None:
    """The totals do not depend on whether, or how often, old steps were rolled up."""
    ranks = [LongRank(tmp_path / name) for name in ("plain", "rolled")]
    roller = Roller(tmp_path / "rolled", KEEP, every_s=0)
    for at in range(6):
        for rank in ranks:
            rank.append(2_500)
        roller.maybe_roll(float(at))
    plain, rolled = (summarize(Tail(r.run_dir).read(), FACTS).run for r in ranks)
    assert rolled_up_rows(ranks[1].path) == 10_000
    assert (plain.totals, plain.accounting) == (rolled.totals, rolled.accounting)
    assert (plain.steps.total, plain.steps.first_step_ms) == (15_000, rolled.steps.first_step_ms)


def test_old_gauges_are_dropped(tmp_path: Path) -> None:
    """Samples of a long run take bounded disk; old and new readers see the same newest samples."""
    (tmp_path / "recording").mkdir()
    writer = RecordingWriter(str(tmp_path / "recording" / "system.gauges"), c.SYSTEM_COLUMNS, {})
    roller, watching = Roller(tmp_path, keep_rows=1_000, every_s=0), Tail(tmp_path)
    rest = [0.0] * (len(c.SYSTEM_COLUMNS) - 2)
    most = 0
    for at in range(20):
        for number in range(at * 3_000, (at + 1) * 3_000):
            writer.append(number, float(number), *rest)
        roller.maybe_roll(float(at))
        seen = watching.read().gauges(0).system_rows
        most = max(most, os.stat(tmp_path / "recording" / "system.gauges").st_blocks * 512)
    assert rolled_up_rows(tmp_path / "recording" / "system.gauges") == 55_000
    fresh = Tail(tmp_path).read().gauges(0).system_rows
    assert seen is not None
    assert fresh is not None
    for rows in (seen[-5_000:], fresh):
        assert rows["time_ns"].tolist() == list(range(55_000, 60_000))
        assert rows[c.SYSTEM_COLUMNS[1][0]].tolist() == [float(n) for n in range(55_000, 60_000)]
    if can_free_space(tmp_path):
        assert most < 10_000 * dtype_of(c.SYSTEM_COLUMNS).itemsize + CHUNK_BYTES + 100_000


def test_a_superseded_row_is_left_out_even_at_the_end_of_a_block(tmp_path: Path) -> None:
    """Of a step that was written several times only the last row counts, wherever a block ends."""
    rank, roller = LongRank(tmp_path), Roller(tmp_path, KEEP, every_s=0)
    rows = step_rows(1, 9_000, seed=1)
    rows["step"] = np.repeat(np.arange(1, 3_001), 3)  # a block of 1,000 rows ends inside a step
    rank.write(rows)
    roller.maybe_roll(0.0)
    assert rolled_up_rows(rank.path) == 4_000
    check_totals(read_one(tmp_path), rank)


def test_device_times_are_rolled_up_as_well(tmp_path: Path) -> None:
    """Kept steps keep their device times, so the device's clock is still used."""
    rank, roller = LongRank(tmp_path), Roller(tmp_path, KEEP, every_s=0)
    device = LongRank(tmp_path, name="rank-0.7.device")
    device.path.write_bytes(layout.header_bytes(c.DEVICE_COLUMNS, {}))
    made = np.zeros(15_000, dtype=dtype_of(c.DEVICE_COLUMNS))
    made["step"] = made["sequence"] = np.arange(1, 15_001)
    made["forward"] = 1_000_000
    with device.path.open("ab") as file:
        file.write(made.tobytes())
    rank.append(15_000)
    roller.maybe_roll(0.0)
    assert rolled_up_rows(device.path) == 5_000
    found = summarize(Tail(tmp_path).read(), FACTS)
    assert found.step_time.window.clock == "device"
    assert found.run.steps.total == 15_000


def test_a_tail_that_is_behind_the_roller_catches_up(tmp_path: Path) -> None:
    """Rows that were rolled up before a live view read them count through their blocks."""
    rank, roller = LongRank(tmp_path), Roller(tmp_path, KEEP, every_s=0)
    tail = Tail(tmp_path, most_cells=1, most_rows=300)
    rank.append(1_000)
    tail.read()
    for at in range(4):
        rank.append(9_000)
        roller.maybe_roll(float(at))
    (found,) = tail.read().ranks
    check_totals(found, rank)
    assert len(found.rows) < 400


@pytest.mark.parametrize("most_rows", [200, 1_000, 100_000])
def test_what_is_held_is_bounded_and_the_rest_is_summed(tmp_path: Path, most_rows: int) -> None:
    """Even if nothing is rolled up, a reader holds a limited number of rows and sums the others."""
    rank = LongRank(tmp_path)
    tail = Tail(tmp_path, most_rows=most_rows)
    for _ in range(7):
        rank.append(1_700)
        (found,) = tail.read().ranks
        check_totals(found, rank)
        assert len(found.rows) <= most_rows * 9 // 8 + 96
    assert found.rows["step"][-1] == rank.steps


def test_a_damaged_row_ends_what_is_read(tmp_path: Path) -> None:
    """A bounded reader holds and sums the rows before it, and does not fail."""
    rank = LongRank(tmp_path)
    rank.append(9_000)
    with rank.path.open("r+b") as file:
        file.seek(layout.HEADER_SIZE + 8_000 * ROW_BYTES - layout.SEQUENCE.size)
        file.write(bytes(layout.SEQUENCE.size))
    found = read_one(tmp_path, most_rows=300)
    assert found.rows["step"][-1] == recordings.steps_of(found) == 7_999


def test_reading_while_rolling_up_sees_every_row_once(tmp_path: Path) -> None:
    """A reader in another thread gets consistent sums at any moment of the roller's work."""
    rank, roller = LongRank(tmp_path), Roller(tmp_path, 2_000, every_s=0)
    done = threading.Event()
    wrong: list[str] = []

    def read_on() -> None:
        while not done.is_set():
            before = rank.steps
            found = read_one(tmp_path)
            count = len(found.rows) + (int(found.earlier["steps"]) if found.earlier is not None else 0)
            newest = int(found.rows["step"][-1]) if len(found.rows) else 0
            if count != newest or count < before:
                wrong.append(f"{count} steps up to {newest}, {before} were there")

    reader = threading.Thread(target=read_on)
    rank.append(3_000)
    reader.start()
    for at in range(60):
        rank.append(1_000)
        roller.maybe_roll(float(at))
    done.set()
    reader.join()
    assert wrong == []
    check_totals(read_one(tmp_path), rank)


def test_rolling_up_is_cheap_when_there_is_nothing_to_do(tmp_path: Path) -> None:
    """It looks at the folder only every few seconds, and leaves short recordings alone."""
    rank, roller = LongRank(tmp_path), Roller(tmp_path, KEEP, every_s=10)
    rank.append(KEEP)
    assert roller.maybe_roll(100.0) == 0
    assert not rollup_path(rank.path).exists()
    rank.append(5_000)
    assert roller.maybe_roll(109.9) == 0
    assert roller.maybe_roll(110.0) == 5_000


def test_a_relay_continues_after_rows_rolled_up_on_node_0(tmp_path: Path) -> None:
    """Node 0 counts rolled-up rows of another node as received, also after a restart."""
    source = LongRank(tmp_path / "node1")
    source.append(12_000)
    data = source.path.read_bytes()
    node0 = tmp_path / "node0"
    (node0 / "recording").mkdir(parents=True)
    cut = layout.HEADER_SIZE + 9_000 * ROW_BYTES
    store = NodeStore(node0 / "recording", 1, Limits())
    store.take(Piece(source.name))
    assert store.take(Piece(source.name, 0, data=data[:cut])).offset == cut
    assert Roller(node0, KEEP, every_s=0).maybe_roll(0.0) == 4_000
    again = NodeStore(node0 / "recording", 1, Limits())
    assert again.take(Piece(source.name)).offset == cut
    assert again.take(Piece(source.name, cut, data=data[cut:])).offset == len(data)
    check_totals(read_one(node0), source)


def test_a_reader_skips_the_rows_that_are_gone(tmp_path: Path) -> None:
    """Given their number, it returns the rows after them; otherwise it stops at the first that is gone."""
    rank = LongRank(tmp_path)
    rank.append(12_000)
    Roller(tmp_path, KEEP, every_s=0).maybe_roll(0.0)
    reader = RecordingReader(rank.path, rolled_up_rows(rank.path))
    assert reader.rows()["step"].tolist() == list(range(7_001, 12_001))
    assert reader.count == 12_000
    if can_free_space(tmp_path):
        assert len(RecordingReader(rank.path).rows()) == HEAD_ROWS


def test_a_rank_that_stopped_long_ago_does_not_empty_the_window(tmp_path: Path) -> None:
    """If the old rows of the others are gone, they are judged without it, and it is reported as lost."""
    stopped, going = LongRank(tmp_path / "a"), LongRank(tmp_path / "b")
    stopped.append(50)
    going.append(15_000)
    Roller(tmp_path / "b", KEEP, every_s=0).maybe_roll(0.0)
    first, second = read_one(tmp_path / "a"), read_one(tmp_path / "b")
    second = replace(second, identity=replace(second.identity, rank=1, world_size=2))
    found = summarize(RunRecording([first, second]), FACTS)
    assert found.run.ranks.used == [1]
    assert found.run.ranks.lost == [0]
    assert found.step_time.window.num_steps == 5_000


@given(cuts=st.lists(st.integers(1, 299), max_size=8), seed=st.integers(0, 1_000))
@examples(50)
def test_folding_in_pieces_equals_folding_at_once(cuts: list[int], seed: int) -> None:
    """Whatever the pieces, their blocks fold to the same block, to the last nanosecond."""
    rows = step_rows(1, 300, seed)
    rows["flags"] = np.random.default_rng(seed).integers(0, 1 << 20, 300)
    borders = [0, *sorted(set(cuts)), 300]
    pieces = [STEPS.rows(rows[a:b], b) for a, b in itertools.pairwise(borders)]
    assert STEPS.blocks(*pieces) == STEPS.rows(rows, 300)
