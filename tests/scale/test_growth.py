"""The monitor's work grows no faster than the number of ranks, and not with the length of the run."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from bench.synthetic import SyntheticRun, dtype_of, step_rows

from tests.unit.made import align
from traceml.analyze.summarize import LIVE_MEMBERS, summarize
from traceml.analyze.window import RankSeries, median_over_ranks
from traceml.monitor.result import encode
from traceml.recording import rows_tail
from traceml.recording.lines import MOST_EVENTS, EventsTail
from traceml.recording.tail import LIVE_STEPS, Tail, live_tail
from traceml.schema import catalog as c
from traceml.schema.recorded import RecordedEvent, RunFacts

FACTS = RunFacts("big", begin_ns=0, end_ns=10**12)


def made_run(folder: Path, ranks: int, steps: int) -> SyntheticRun:
    """A run folder in which rank 3 waits too long for its input."""
    run = SyntheticRun(folder, ranks, slow_rank=3)
    run.append(steps)
    run.sample(5)
    return run


def tick_cpu_s(folder: Path, ranks: int) -> float:
    """CPU time of one tick of a live view with ten new steps, the least of three."""
    run = made_run(folder, ranks, 250)
    tail = live_tail(folder)
    tail.read()
    took = []
    for _ in range(3):
        run.append(10)
        before = time.process_time()
        encode(summarize(tail.read(), FACTS, final=False))
        took.append(time.process_time() - before)
    return min(took)


def test_cost_of_a_tick_grows_no_faster_than_the_number_of_ranks(tmp_path: Path) -> None:
    """From 64 to 512 ranks a tick takes at most twice what is linear; a margin for a busy machine."""
    assert tick_cpu_s(tmp_path / "512", 512) < 16 * tick_cpu_s(tmp_path / "64", 64)


@pytest.mark.parametrize("ranks", [64, 600, pytest.param(2_100, marks=pytest.mark.long)])
def test_slow_rank_among_many_is_named(tmp_path: Path, ranks: int) -> None:
    """Whether all ranks or an even choice of them is the yardstick: the same verdict, the same rank.

    During the run only some ranks are listed, this one among them; at the end all are.
    """
    made_run(tmp_path, ranks, 60)
    found = summarize(live_tail(tmp_path).read(), FACTS, final=False)
    assert found.primary_diagnosis.kind == "INPUT_STRAGGLER"
    assert found.primary_diagnosis.ranks == [3]
    assert found.primary_diagnosis.evidence["excess_ms"] == pytest.approx(38, rel=0.1)
    assert {"3"} < set(found.step_time.ranks)
    assert len(found.step_time.ranks) <= max(LIVE_MEMBERS + 16, 64)
    final = summarize(live_tail(tmp_path).read(), FACTS)
    assert len(final.step_time.ranks) == len(final.process.ranks) == ranks


def test_a_tick_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes read in a tick depend on the new steps, not on the length of the run."""
    run = made_run(tmp_path, 8, 3_000)
    tail = live_tail(tmp_path)
    tail.read()
    read = [0]
    real = rows_tail._read_at

    def counted(fd: int, into: np.ndarray, offset: int) -> int:
        done = real(fd, into, offset)
        read[0] += done
        return done

    monkeypatch.setattr(rows_tail, "_read_at", counted)
    run.append(10)
    tail.read()
    once = read[0]
    assert once < 8 * 200 * dtype_of(c.STEP_COLUMNS).itemsize
    run.append(10)
    tail.read()
    assert read[0] <= 2.5 * once


def test_a_live_view_holds_bounded_rows_however_long_the_run(tmp_path: Path) -> None:
    """Of many ranks it holds a few hundred rows each; the steps before them are summed."""
    run = made_run(tmp_path, 16, 300)
    tail = Tail(tmp_path, most_cells=16 * 250)
    for _ in range(8):
        run.append(300)
        found = tail.read().ranks
        assert max(len(r.rows) for r in found) <= 250 + 96
        assert all(r.rows["step"][-1] == run.steps for r in found)
    window = align(found)
    assert 250 <= window.count <= 250 + 96
    assert window.total_steps == run.steps
    assert window.steps[-1] == run.steps


def test_bounded_tail_gives_the_same_newest_steps_as_an_unbounded_one(tmp_path: Path) -> None:
    """What a bounded tail gives of the newest steps is what an unbounded one gives."""
    run = made_run(tmp_path, 12, 500)
    bounded, whole = Tail(tmp_path, most_cells=1), Tail(tmp_path)
    for _ in range(5):
        run.append(77)
        a, b = align(bounded.read().ranks), align(whole.read().ranks)
        newest = slice(-a.count, None)
        assert LIVE_STEPS <= a.count < b.count
        assert (a.steps == b.steps[newest]).all()
        assert np.array_equal(a.phases, b.phases[:, newest], equal_nan=True)
        assert (a.step_ns == b.step_ns[:, newest]).all()
        assert (a.warmup, a.total_steps) == (b.warmup, b.total_steps)


def test_rows_returned_earlier_do_not_change_later(tmp_path: Path) -> None:
    """A summary may be made from an older look while newer ones go on."""
    run = made_run(tmp_path, 2, 300)
    tail = Tail(tmp_path, most_cells=1)
    old = tail.read().ranks[0].rows
    copy = old.copy()
    for _ in range(10):
        run.append(100)
        tail.read()
    assert (old == copy).all()


def test_the_summary_stays_compact(tmp_path: Path) -> None:
    """A rank's rows in final_summary.json take less than 3 kB, so that 4,096 ranks make a few MB."""
    sizes = []
    for ranks in (64, 128):
        made_run(tmp_path / f"{ranks}", ranks, 60)
        sizes.append(len(encode(summarize(Tail(tmp_path / f"{ranks}").read(), FACTS))))
    assert (sizes[1] - sizes[0]) / 64 < 3_000


def test_number_of_events_is_bounded_and_errors_are_kept(tmp_path: Path) -> None:
    """The newest and the longest stay, and what says why a rank ended."""
    path = tmp_path / "events.jsonl"
    lines = ['{"kind": "error", "message": "x"}', '{"kind": "gc", "duration_ns": 1000000}']
    path.write_text("\n".join(lines + ['{"kind": "gc", "duration_ns": 1}'] * 5 * MOST_EVENTS) + "\n")
    tail = EventsTail(str(path))
    found = tail.read()
    assert len(found) <= MOST_EVENTS
    assert [e.kind for e in found[:2]] == ["error", "gc"]
    with path.open("a") as file:
        file.write('{"kind": "checkpoint"}\n{"kind": "torn')
    assert tail.read()[-1] == RecordedEvent("checkpoint")


@pytest.mark.parametrize("ranks", [2, 3, 8, 9])
def test_median_without_one_rank_is_the_median_of_the_others(ranks: int) -> None:
    """One sort serves them all."""
    values = np.random.default_rng(ranks).integers(0, 5, (ranks, 40)).astype(float)
    series = RankSeries(values)
    for at in range(ranks):
        assert (series.medians_without(values[at]) == np.median(np.delete(values, at, axis=0), axis=0)).all()
    assert (median_over_ranks(values) == np.median(values, axis=0)).all()


def test_phases_of_synthetic_rows_add_up_to_the_step() -> None:
    """What the benchmark feeds in has the accounting of real rows."""
    rows = step_rows(5, 50, seed=1)
    parts = sum(rows[k] for k in ("input", "forward", "backward", "sync", "optimizer", "wait_forward"))
    assert (parts == rows["end_ns"] - rows["begin_ns"]).all()
