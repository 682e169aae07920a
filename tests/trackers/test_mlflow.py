"""MLflow, with a real server and its SQLite database: reporting, logging by hand, comparing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.running.scripts import write
from tests.scenarios.preloaded import PreloadedTraceml
from tests.trackers.mlflow_server import QUIETLY, mlflow_server
from traceml.cli.main import main

pytestmark = pytest.mark.timeout(900)  # a server, and imports that take seconds of CPU time
EXAMPLE = Path(__file__).parents[2] / "examples" / "trackers" / "mlflow_by_hand.py"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as address:
        yield address


@pytest.fixture(scope="module")
def trained(server: str, tmp_path_factory: pytest.TempPathFactory, preloaded: PreloadedTraceml) -> Path:
    """The folder of a training that starts an MLflow run and leaves its end to MLflow."""
    folder = tmp_path_factory.mktemp("trained")
    write(
        folder,
        """
        import mlflow
        run = mlflow.start_run()
        print(run.info.run_id)
        train(60, lambda step: time.sleep(0.005))
        """,
    )
    done = preloaded(
        "run", "train.py", "--run-name", "r", "--report-to", "mlflow", cwd=folder, env=uses(server)
    )
    assert done.returncode == 0, done.stderr
    assert "traceml: reported to mlflow: " in done.stderr
    (folder / "run_id").write_text(done.stdout.split()[0])
    return folder


@pytest.fixture(scope="module")
def by_hand(server: str, tmp_path_factory: pytest.TempPathFactory, preloaded: PreloadedTraceml) -> str:
    """The id of the run that the example logs to."""
    folder = tmp_path_factory.mktemp("by_hand")
    done = preloaded("run", str(EXAMPLE), "--quiet", cwd=folder, env=uses(server))
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.split() if len(line) == 32)


def uses(server: str) -> dict[str, str]:
    """The environment of a script that logs to this server."""
    return {"MLFLOW_TRACKING_URI": server, **QUIETLY}


def data_of(server: str, run_id: str) -> Any:
    """What the server knows about a run."""
    from mlflow import MlflowClient

    return MlflowClient(server).get_run(run_id)


def test_mlflow_gets_verdict_figures_and_files(server: str, trained: Path) -> None:
    """Tags say the verdict, metrics have the figures, artifacts the summary; the run ends normally."""
    from mlflow import MlflowClient

    run_id = (trained / "run_id").read_text()
    end = json.loads((trained / "logs" / "r" / "final_summary.json").read_text())
    found, client = data_of(server, run_id), MlflowClient(server)
    assert found.info.status == "FINISHED"
    assert found.data.tags["traceml.diagnosis"] == end["primary_diagnosis"]["status"]
    assert found.data.metrics["traceml/step_time/step_ms"] > 5
    (steps,) = client.get_metric_history(run_id, "traceml/steps")
    assert (steps.step, steps.value) == (60, 60.0)
    files = [artifact.path for artifact in client.list_artifacts(run_id, "traceml")]
    assert files == ["traceml/final_summary.json", "traceml/final_summary.txt"]


def test_figures_can_be_logged_by_hand(server: str, by_hand: str) -> None:
    """`traceml.summary(numbers_only=True)` is what log_metrics takes."""
    assert data_of(server, by_hand).data.metrics["traceml/steps"] == 40


def test_compare_reads_summaries_from_mlflow(
    server: str,
    trained: Path,
    by_hand: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """`mlflow:<run id>` stands for the summary in that run's artifacts; mixed with a folder as well."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    run_id = (trained / "run_id").read_text()
    name = data_of(server, run_id).info.run_name
    words = [f"mlflow:{run_id}", f"mlflow:{by_hand}", "--output", str(tmp_path / "out")]
    assert main(["compare", *words]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert [found[side]["runs"][0]["name"] for side in "ab"] == [name, data_of(server, by_hand).info.run_name]
    assert name in capfd.readouterr().out
    words = [str(trained / "logs" / "r"), f"mlflow:{run_id}", "--output", str(tmp_path / "same")]
    assert main(["compare", *words]) == 0
    for wrong, message in (
        ("nonsense", "mlflow:nonsense: not found ("),
        (without_files(server), "has no artifact"),
    ):
        assert main(["compare", f"mlflow:{wrong}", f"mlflow:{by_hand}"]) == 2
        assert message in capfd.readouterr().err


def without_files(server: str) -> str:
    """The id of a run that TraceML knows nothing of."""
    from mlflow import MlflowClient

    run_id: str = MlflowClient(server).create_run("0").info.run_id
    return run_id


def test_a_missing_mlflow_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line says what to install."""
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert main(["compare", "mlflow:x", "mlflow:y"]) == 2
    assert capfd.readouterr().err == "traceml: mlflow:x needs mlflow: pip install mlflow\n"
