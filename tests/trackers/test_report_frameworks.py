"""Frameworks open a tracker's run themselves: `--report-to` finds it there too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.preloaded import PreloadedTraceml

SCRIPTS = Path(__file__).parent / "scripts"
VARIABLES = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
pytestmark = [pytest.mark.long, pytest.mark.framework, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", ["hf_trainer.py", "lightning_fit.py"])
def test_a_framework_with_three_trackers_is_reported_to_all(
    name: str, tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """Hugging Face Trainer and Lightning, each with W&B, MLflow and TensorBoard, need no code."""
    words = ("--run-name", "r", "--report-to", "wandb,mlflow,tensorboard", "--quiet")
    done = preloaded("run", str(SCRIPTS / name), *words, cwd=tmp_path, env=VARIABLES)
    assert done.returncode == 0, done.stderr
    for tracker in ("wandb", "mlflow", "tensorboard"):
        assert done.stderr.count(f"traceml: reported to {tracker}: ") == 1
    places = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("final_summary.json")}
    assert {"logs", "mlruns"} < places  # and the folder of the event files
