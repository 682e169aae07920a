"""A monitor that is killed while it rolls up loses nothing and counts nothing twice."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scale.rolled import LongRank, check_totals, read_one
from traceml.recording import rollup
from traceml.recording.rollup import Roller, rolled_up_rows

KEEP = 1_000


class Killed(BaseException):
    """Stands for SIGKILL: no handler may catch it."""


def killed_before(monkeypatch: pytest.MonkeyPatch, operation: int) -> list[str]:
    """Let the process 'die' before its n-th operation on a file; returns the list of operations it did."""
    did: list[str] = []

    def watch(where: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(where, name)

        def step(*args: Any, **kwargs: Any) -> Any:
            if len(did) == operation:
                raise Killed
            did.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(where, name, step)

    for name in ("fsync", "replace", "unlink"):
        watch(os, name)
    watch(rollup, "free_space")
    return did


@pytest.mark.parametrize("rolled_before", [False, True])
def test_killed_between_any_two_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rolled_before: bool
) -> None:
    """Killed before any single sync, rename or free: readers are right then, and after the next try."""
    finished, operation = False, 0
    while not finished:
        folder = tmp_path / f"{operation}"
        rank = LongRank(folder)
        rank.append(3 * KEEP)
        if rolled_before:
            Roller(folder, KEEP, every_s=0).maybe_roll(0.0)
        rank.append(3 * KEEP)
        with monkeypatch.context() as patch:
            did = killed_before(patch, operation)
            try:
                Roller(folder, KEEP, every_s=0).maybe_roll(0.0)
                finished = True
            except Killed:
                assert len(did) == operation
        check_totals(read_one(folder), rank)
        rank.append(KEEP)
        Roller(folder, KEEP, every_s=0).maybe_roll(0.0)
        assert rolled_up_rows(rank.path) == 6 * KEEP
        check_totals(read_one(folder), rank)
        operation += 1
    assert operation > 4, did


def roll_forever(folder: str) -> None:
    """Roll up like a monitor, but without pauses."""
    at = 0.0
    while True:
        Roller(Path(folder), KEEP, every_s=0).maybe_roll(at)
        at += 1


@pytest.mark.long
def test_random_kills_never_change_the_totals(tmp_path: Path) -> None:
    """SIGKILL at forty random moments of a rolling process, while the recording grows."""
    chance = random.Random(3)
    rank = LongRank(tmp_path)
    rank.append(2 * KEEP)
    context = multiprocessing.get_context("fork")
    for _ in range(40):
        process = context.Process(target=roll_forever, args=(str(tmp_path),))
        process.start()
        until = time.monotonic() + chance.uniform(0.0, 0.03)
        while time.monotonic() < until:
            rank.append(chance.randrange(100, 1_500))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        check_totals(read_one(tmp_path), rank)
    Roller(tmp_path, KEEP, every_s=0).maybe_roll(0.0)
    assert rolled_up_rows(rank.path) > 10 * KEEP
    check_totals(read_one(tmp_path), rank)
