"""A training under `traceml run` is the training without it: see cases.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.preloaded import PreloadedTraceml
from tests.transparency.cases import CASES, COLD, check

pytestmark = pytest.mark.scenario


@pytest.mark.parametrize("name", CASES.values())
def test_traced_training_is_the_plain_training(
    tmp_path: Path, preloaded: PreloadedTraceml, name: str
) -> None:
    """Same exit code, standard output, traceback and files; and every step is on record."""
    check(tmp_path, preloaded, name, in_fork=name not in COLD)


@pytest.mark.long
@pytest.mark.parametrize("name", [case for name, case in CASES.items() if name not in COLD])
def test_traced_training_in_a_new_python_is_the_plain_training(
    tmp_path: Path, preloaded: PreloadedTraceml, name: str
) -> None:
    """The same where capture is there before torch is imported."""
    check(tmp_path, preloaded, name, in_fork=False)
