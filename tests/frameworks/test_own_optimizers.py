"""Frameworks whose optimizers are not torch's: Keras with the torch backend, and fastai."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.frameworks.recorded import SCRIPTS, Recorded
from tests.scenarios.scenario import traceml

pytestmark = [pytest.mark.framework, pytest.mark.timed]


@pytest.mark.parametrize("framework", ["keras", "fastai"])
def test_each_update_ends_a_step_and_is_optimizer(tmp_path: Path, framework: str) -> None:
    """40 batches are 40 steps. Two variables are updated in each, which takes 5 ms per variable."""
    if find_spec(framework) is None:
        pytest.skip(f"needs {framework}")
    done = traceml("run", str(SCRIPTS / f"{framework}_fit.py"), "--run-name", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "inferred" not in done.stderr
    found = Recorded(tmp_path, "r")
    assert found.column("step") == list(range(1, 41))
    assert min(found.column("optimizer")) > 9.8e6
    assert found.ms("validation") > 0
