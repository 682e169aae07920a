"""Reads the summary that `--report-to mlflow`, or the user, kept as an artifact of an MLflow run."""

import logging
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from traceml.errors import CommandError, printable
from traceml.runs import summary_file
from traceml.runs.manifest import SUMMARY_JSON
from traceml.runs.summary_file import Reading

PREFIX: Final = "mlflow:"
PLACES: Final = (f"traceml/{SUMMARY_JSON}", SUMMARY_JSON)
"""Where in the artifacts of a run it may be."""


def read(given: str) -> Reading:
    """The summary of `mlflow:<run id>`, from the server of MLFLOW_TRACKING_URI."""
    run_id = given.removeprefix(PREFIX)
    # A server that cannot be reached is an error at once, not after minutes of new attempts.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    try:
        from mlflow import MlflowClient
        from mlflow.artifacts import download_artifacts
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise CommandError(f"{printable(given)} needs mlflow: pip install mlflow") from None
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    try:
        client = MlflowClient()
        name = client.get_run(run_id).info.run_name or run_id
        folders = ("traceml", None)
        there = {artifact.path for folder in folders for artifact in client.list_artifacts(run_id, folder)}
        place = next((place for place in PLACES if place in there), None)
        if place is None:
            raise CommandError(
                f"{printable(given)}: this run has no artifact {PLACES[0]}; see --report-to mlflow"
            )
        with tempfile.TemporaryDirectory(prefix="traceml-mlflow-") as folder:
            path = download_artifacts(run_id=run_id, artifact_path=place, dst_path=folder)
            found = summary_file.read(Path(path))
    except (MlflowException, OSError) as problem:
        reason = printable(str(problem).splitlines()[0])[:200]
        raise CommandError(
            f"{printable(given)}: not found ({reason}); is MLFLOW_TRACKING_URI right?"
        ) from None
    return replace(found, name=printable(name), path=given)
