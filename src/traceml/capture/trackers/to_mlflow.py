"""MLflow: figures become metrics and tags, the files artifacts in the folder `traceml`."""

import sys
import time
from typing import Any, Final

from traceml.capture.trackers.report import Reporter, Result, observe

MODULES: Final = ("mlflow.tracking.client",)
FOLDER: Final = "traceml"
LONGEST_TAG: Final = 5000


class MlflowRun:
    """A run of MLflow, known by its id: which run is active depends on the thread."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id = client, run_id

    def log_end(self, result: Result) -> None:
        """Numbers as metrics, texts as tags."""
        texts = {key: value for key, value in result.figures.items() if isinstance(value, str)}
        self._log(result.numbers, result.step, texts)
        for path in result.folder.iterdir():  # one by one: at exit no pool of threads can be used
            self._client.log_artifact(self._run_id, str(path), FOLDER)

    def log_live(self, figures: dict[str, float], step: int) -> None:
        """As metrics, at this step."""
        self._log(figures, step, {})

    def _log(self, figures: dict[str, float], step: int, texts: dict[str, str]) -> None:
        """In one request."""
        now_ms, entities = int(time.time() * 1000), sys.modules["mlflow.entities"]
        metrics = [entities.Metric(key, float(value), now_ms, step) for key, value in figures.items()]
        tags = [entities.RunTag(key.replace("/", "."), text[:LONGEST_TAG]) for key, text in texts.items()]
        self._client.log_batch(self._run_id, metrics=metrics, tags=tags)


def attach(reporter: Reporter, module: Any) -> None:
    """Wait for runs. All of MLflow's ways to begin and end one go through its client."""

    def begins(run: Any, client: Any, *_: Any, **__: Any) -> None:
        reporter.begins(run.info.run_id, MlflowRun(client, run.info.run_id))

    def ends(client: Any, run_id: str, *_: Any, **__: Any) -> None:
        reporter.ends(run_id, MlflowRun(client, run_id))

    observe(reporter, module.MlflowClient, "create_run", after=begins)
    observe(reporter, module.MlflowClient, "set_terminated", before=ends)
    mlflow = sys.modules["mlflow"]
    run = mlflow.active_run() if hasattr(mlflow, "active_run") else None
    if run is not None:  # torch was imported after it began
        begins(run, module.MlflowClient())
