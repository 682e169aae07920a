"""Weights & Biases: figures go to the run's summary, the files become an artifact."""

from typing import Any, Final

from traceml.capture.trackers.report import Reporter, Result, observe

MODULES: Final = ("wandb",)


class WandbRun:
    """A run of wandb."""

    def __init__(self, wandb: Any, run: Any) -> None:
        self._wandb, self._run = wandb, run
        self._has_axis = False

    def log_end(self, result: Result) -> None:
        """Into the summary, where they change neither the run's history nor its steps."""
        self._run.summary.update(result.figures)
        artifact = self._wandb.Artifact(f"traceml-{self._run.id}", type="traceml")
        for path in result.folder.iterdir():
            artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def log_live(self, figures: dict[str, float], step: int) -> None:
        """With the row that the script writes next: a row of our own would shift the script's steps."""
        if not self._has_axis:
            self._run.define_metric("traceml/steps")
            self._run.define_metric("traceml/*", step_metric="traceml/steps")
            self._has_axis = True
        self._run.log(figures, commit=False)


def attach(reporter: Reporter, wandb: Any) -> None:
    """Wait for runs."""

    def begins(run: Any, *_: Any, **__: Any) -> None:
        reporter.begins(run.id, WandbRun(wandb, run))

    def ends(run: Any, *_: Any, **__: Any) -> None:
        reporter.ends(run.id, WandbRun(wandb, run))

    observe(reporter, wandb, "init", after=begins)
    observe(reporter, wandb.Run, "finish", before=ends)
    observe(reporter, wandb.Run, "__exit__", before=ends)
    if wandb.run is not None:  # torch was imported after it began
        begins(wandb.run)
