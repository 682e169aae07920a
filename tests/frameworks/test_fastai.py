"""fastai, whose optimizers are not torch's."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.frameworks.recorded import SCRIPTS, Recorded
from tests.scenarios.scenario import traceml

pytestmark = [
    pytest.mark.framework,
    pytest.mark.timed,
    pytest.mark.skipif(find_spec("fastai") is None, reason="needs fastai"),
]


def test_each_update_of_fastai_ends_a_step_and_is_optimizer(tmp_path: Path) -> None:
    """40 batches are 40 steps, and an update that takes 10 ms is optimizer, not wait."""
    done = traceml("run", str(SCRIPTS / "fastai_fit.py"), "--run-name", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "inferred" not in done.stderr
    found = Recorded(tmp_path, "r")
    assert found.column("step") == list(range(1, 41))
    assert min(found.column("optimizer")) > 9.8e6
    assert found.ms("validation") > 0
