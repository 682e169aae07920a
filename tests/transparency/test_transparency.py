"""A training under `traceml run` is the training without it: every second one of them, see cases.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.transparency.cases import CASES, check


@pytest.mark.scenario
@pytest.mark.parametrize("name", CASES[::2])
def test_traced_training_is_the_plain_training(tmp_path: Path, name: str) -> None:
    """Same exit code, standard output, traceback and files; and every step is on record."""
    check(tmp_path, name)
