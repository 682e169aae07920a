"""The sending side without a network: how much it asks, and for which files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from relay_nodes import Rank, live, steps

from traceml.monitor.relay.outbox import Outbox
from traceml.monitor.relay.protocol import FRAME_BYTES, MESSAGE_BYTES, Question, encode
from traceml.monitor.relay.store import Limits, NodeStore


def ask(outbox: Outbox, store: NodeStore, most_bytes: int = FRAME_BYTES) -> Question:
    """One question and its answer."""
    question = outbox.question(most_bytes)
    outbox.take(store.answer(question))
    return question


def test_a_question_is_bounded(node0: Path, node1: Path) -> None:
    """However long the backlog and however many files, a question fits into one frame."""
    for number in range(200):
        rank = Rank(node1, number)
        rank.append(300 if number else 50_000)
        rank.writer.set_name(60, "x")  # a long live half
        rank.event("e" * 300_000)
    outbox, store = Outbox(node1), NodeStore(node0 / "recording", 1, Limits())
    asked = 0
    while not outbox.is_empty():
        assert len(encode(ask(outbox, store))) <= MESSAGE_BYTES
        asked += 1
    assert asked > 10
    assert not outbox.given_up
    assert steps(node0, "rank-0.node1.42.steps") == list(range(50_000))
    for number in range(200):
        copy = node0 / "recording" / f"rank-{number}.node1.42.events.jsonl"
        assert copy.stat().st_size == 300_001


def test_files_take_turns(node0: Path, node1: Path) -> None:
    """A long backlog of one rank does not keep another rank's rows waiting."""
    long, late = Rank(node1, 0), Rank(node1, 1)
    long.append(100_000)
    outbox, store = Outbox(node1), NodeStore(node0 / "recording", 1, Limits())
    for _ in range(2):
        ask(outbox, store, 10_000)
    for count in range(1, 6):
        late.append(1)
        for _ in range(2):
            ask(outbox, store, 10_000)
        assert outbox.acknowledged(late.name) == count
    assert outbox.acknowledged(long.name) < 100_000


def test_a_file_that_vanishes(node0: Path, node1: Path) -> None:
    """A file that is removed under the relay is given up with a reason; the rest goes on."""
    gone, other = Rank(node1, 0), Rank(node1, 1)
    gone.append(10)
    outbox, store = Outbox(node1), NodeStore(node0 / "recording", 1, Limits())
    ask(outbox, store)
    Path(gone.writer.path).unlink()
    other.append(10)
    while not outbox.is_empty():
        ask(outbox, store)
    assert list(outbox.given_up) == [gone.name]
    assert steps(node0, "rank-1.node1.42.steps") == list(range(10))


def test_late_question_after_the_clock_was_set_back(
    node0: Path, node1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late question of a killed monitor with a faster clock does harm only until the next answer."""
    rank = Rank(node1, 0)
    store = NodeStore(node0 / "recording", 1, Limits())
    monkeypatch.setattr("time.time_ns", lambda: 1000)
    killed = Outbox(node1)
    for _ in range(2):
        ask(killed, store)
    rank.writer.set_name(0, "old")
    held_up = [killed.question() for _ in range(50)][-1]
    monkeypatch.setattr("time.time_ns", lambda: 900)
    rank.writer.set_name(0, "new")
    outbox = Outbox(node1)
    while not outbox.is_empty():
        ask(outbox, store)
    landed = node0 / "recording" / "rank-0.node1.42.steps"
    assert live(landed)[1] == "new"
    store.answer(held_up)
    assert live(landed)[1] == "old"
    ask(outbox, store)
    while not outbox.is_empty():
        ask(outbox, store)
    assert live(landed)[1] == "new"


def test_files_of_ended_processes_are_not_looked_at_for_ever(
    node0: Path, node1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a sweep of 600 short processes a question opens no file of theirs, and node 0 has every row."""
    for pid in range(1000, 1600):
        rank = Rank(node1, 0, pid)
        rank.append(3)
        rank.event("{}")
        rank.writer.close()
    store, outbox = NodeStore(node0 / "recording", 1, Limits(files=2000)), Outbox(node1)
    for _ in range(100):
        outbox.take(store.answer(outbox.question()))
    assert all(steps(node0, f"rank-0.node1.{pid}.steps") == [0, 1, 2] for pid in range(1000, 1600))
    opened: list[str] = []
    real = os.open

    def noted(path: Any, *more: Any) -> int:
        opened.append(str(path))
        return real(path, *more)

    monkeypatch.setattr(os, "open", noted)
    alive = Rank(node1, 1, 7)
    opened.clear()
    alive.append(10)
    deadline = time.monotonic() + 180
    while len(steps(node0, "rank-1.node1.7.steps")) < 10:  # a large folder is listed now and then only
        assert time.monotonic() < deadline, "the new process is never found"
        outbox.take(store.answer(outbox.question()))
    assert not [path for path in opened if "rank-0." in path]
    assert outbox.acknowledged("rank-0.1000.steps") == 3
