"""`--report-to` and `traceml.summary()`: W&B (offline) and TensorBoard; MLflow is in test_mlflow.py."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.running.scripts import write
from tests.scenarios.preloaded import PreloadedTraceml
from tests.trackers import wandb_file
from traceml.capture import trackers
from traceml.capture.request import flat
from traceml.cli.main import main
from traceml.errors import CommandError
from traceml.export.tables import load
from traceml.settings import resolve

EXAMPLES = Path(__file__).parents[2] / "examples" / "trackers"
FILES = ["final_summary.json", "final_summary.txt"]
OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}


def scalars(folder: Path) -> EventAccumulator:
    """What TensorBoard reads from this folder."""
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory, preloaded: PreloadedTraceml) -> Path:
    """The folder of one training with a wandb run that it ends, and a SummaryWriter that it never closes."""
    folder = tmp_path_factory.mktemp("reported")
    write(
        folder,
        """
        import wandb
        from torch.utils.tensorboard import SummaryWriter
        seen = set()
        def noting(owner, name):
            plain = getattr(owner, name)
            def call(self, what, *more, **named):
                plain(self, what, *more, **named)
                if "traceml/steps" in what:
                    seen.add(owner)
            setattr(owner, name, call)
        noting(wandb.Run, "log")
        noting(SummaryWriter, "add_scalar")
        writer = SummaryWriter("tb")
        deadline = time.monotonic() + 120
        with wandb.init(project="p") as run:
            def each(step):
                time.sleep(0.005)
                if step == 60:
                    while len(seen) < 2:
                        assert time.monotonic() < deadline, f"live figures only in {seen}"
                        time.sleep(0.05)
                run.log({"loss": step})
            train(90, each)
        """,
    )
    words = ("--run-name", "r", "--report-to", "wandb,tensorboard", "--report-every", "0.2")
    done = preloaded("run", "train.py", *words, cwd=folder, env=OFFLINE)
    assert done.returncode == 0, done.stderr
    assert "traceml: reported to wandb: " in done.stderr
    assert "traceml: reported to tensorboard: " in done.stderr
    return folder


def verdict(folder: Path) -> dict[str, Any]:
    """The summary of the run in this folder."""
    found: dict[str, Any] = json.loads((folder / "logs" / "r" / "final_summary.json").read_text())
    return found


def test_wandb_gets_verdict_figures_and_files(reported: Path) -> None:
    """The run's summary has the verdict and key figures; an artifact has the summary as JSON and text."""
    found, end = wandb_file.summary_of(reported), verdict(reported)
    assert found["traceml/diagnosis"] == end["primary_diagnosis"]["status"]
    assert found["traceml/steps"] == 90
    assert found["traceml/step_time/step_ms"] > 5
    assert wandb_file.artifacts_of(reported) == {"traceml": FILES}


def test_wandb_history_keeps_the_scripts_own_steps(reported: Path) -> None:
    """Live figures come with the script's rows: one row per call of log, none of ours in between."""
    rows = wandb_file.history_of(reported)
    assert [row["loss"] for row in rows] == list(range(1, 91))
    assert [row["_step"] for row in rows] == list(range(90))
    live = [row for row in rows if "traceml/step_time/step_ms" in row]
    assert live
    assert all(0 < row["traceml/steps"] <= row["loss"] for row in live)


def test_tensorboard_gets_figures_and_report_at_exit(reported: Path) -> None:
    """A writer that is never closed gets scalars, the report as text, and the files beside it."""
    found = scalars(reported / "tb")
    at_end = found.Scalars("traceml/steps")[-1]
    assert (at_end.step, at_end.value) == (90, 90.0)
    assert len(found.Scalars("traceml/step_time/input_ms")) > 1  # and live ones before
    text = found.Tensors("traceml/summary/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "Verdict" in text
    assert [p.name for p in sorted((reported / "tb").glob("final_summary.*"))] == FILES


def test_only_rank_0_reports(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """Of two ranks that both open a writer, the first one gets the result of the whole run."""
    write(
        tmp_path,
        """
        import os
        import torch.distributed as dist
        from torch.utils.tensorboard import SummaryWriter
        dist.init_process_group("gloo")
        writer = SummaryWriter(f"tb{dist.get_rank()}")
        model = nn.parallel.DistributedDataParallel(model)
        train(12)
        writer.close()
        del model  # gloo can hang at the end if the model outlives the group
        dist.destroy_process_group()
        """,
    )
    words = ("--run-name", "r", "--nproc-per-node", "2", "--report-to", "tensorboard")
    done = preloaded("run", "train.py", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("reported to tensorboard") == 1
    assert [p.parent.name for p in tmp_path.glob("tb*/final_summary.json")] == ["tb0"]
    assert json.loads((tmp_path / "tb0" / FILES[0]).read_text())["run"]["ranks"]["used"] == [0, 1]


def test_reporting_in_the_middle_of_a_training_is_not_counted_as_a_slow_step(
    tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """A writer that is closed between two steps is reported to then; the time is not charged to the loop."""
    write(
        tmp_path,
        """
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter("tb")
        train(30, lambda step: writer.close() if step == 15 else None)
        """,
    )
    words = ("--run-name", "r", "--quiet", "--report-to", "tensorboard")
    done = preloaded("run", "train.py", *words, cwd=tmp_path)
    assert done.stderr.count("reported to tensorboard") == 1
    assert json.loads((tmp_path / "tb" / FILES[0]).read_text())["run"]["steps"]["total"] == 15
    steps = load(tmp_path / "logs" / "r").steps
    assert steps["validation_ms"][15] > steps["wait_ms"][15]
    assert (steps["validation_ms"] > 0).sum() == 1


def test_a_failing_tracker_costs_one_line(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """Whatever a tracker raises, the training ends as it would, and the line says what went wrong."""
    write(
        tmp_path,
        """
        import sys, types
        class Refused(Exception):
            pass
        tracker = types.ModuleType("wandb")
        class Run:
            id = "x"
            def finish(self): print("finished")
            def __exit__(self, *about): pass
            @property
            def summary(self): raise Refused("no such project")
        tracker.Run, tracker.run, tracker.init = Run, None, Run
        tracker.__spec__ = types.SimpleNamespace(_initializing=False)
        sys.modules["wandb"] = tracker
        import traceml.capture.install as install
        from traceml.capture import trackers
        trackers.attach_wandb(trackers.Reporter("wandb", install.active()), tracker)
        run = tracker.init()
        train(10)
        run.finish()
        sys.exit(3)
        """,
    )
    done = preloaded("run", "train.py", "--run-name", "r", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "finished\n")
    assert "traceml: reporting to wandb failed (Refused: no such project); training goes on\n" in done.stderr


class SlowRun:
    """A tracker that does not answer."""

    def __init__(self) -> None:
        self.asked = 0

    def log_end(self, result: trackers.Result) -> None:
        self.asked += 1
        time.sleep(600)

    def log_live(self, figures: dict[str, float], step: int) -> None:
        """Not used here."""


class RecordingSession:
    """As much of a session as a reporter needs."""

    torch = None
    writer = object()
    run_dir = ""
    switch = SimpleNamespace(thread=-1)


def test_a_tracker_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The end of a run waits a limited time, once, and then goes on."""
    answer = {"summary": empty_summary(), "text": "Verdict"}
    monkeypatch.setattr(trackers, "ask", lambda run_dir, timeout_s: answer)
    monkeypatch.setattr(trackers, "LOG_S", 0.2)
    reporter = trackers.Reporter("wandb", RecordingSession())  # type: ignore[arg-type]
    run = SlowRun()
    began = time.monotonic()
    reporter.ends("key", run)
    reporter.ends("key", run)
    assert time.monotonic() - began < 60
    assert run.asked == 1
    assert "reporting to wandb failed (TimeoutError: it does not answer" in capfd.readouterr().err


def empty_summary() -> dict[str, Any]:
    """A summary without steps, as the monitor sends it."""
    import msgspec

    from traceml.schema.summary import Summary

    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(Summary()))
    return found


def test_figures_have_names_that_every_tracker_accepts() -> None:
    """Letters, digits and _ . / - only, whatever a user phase is called; nothing is None."""
    full = empty_summary()
    full["step_time"]["metrics"] = {
        'user.say "hi" ü_ms': {"median": {"value": 1.5}},
        "h2d_ms": {"median": {"value": None}},
    }
    found = flat(full)
    assert found["traceml/step_time/user.say__hi____ms"] == 1.5
    assert "traceml/step_time/h2d_ms" not in found
    assert None not in found.values()


def test_nothing_is_loaded_unless_it_was_asked_for(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """Without --report-to, no module of ours about trackers is imported; with it, a missing run is named."""
    body = (
        "import sys\ntrain(8)\nprint([m for m in sys.modules if m.startswith('traceml.capture.trackers')])\n"
    )
    write(tmp_path, body)
    done = preloaded("run", "train.py", "--run-name", "a", "--quiet", cwd=tmp_path)
    assert done.stdout == "[]\n"
    asked = preloaded("run", "train.py", "--run-name", "b", "--quiet", "--report-to", "wandb", cwd=tmp_path)
    assert asked.returncode == 0
    line = "--report-to wandb: nothing was reported, because the script had no run of wandb"
    assert asked.stderr == f"traceml: {line}\n"


def test_a_wrong_tracker_is_one_clear_line() -> None:
    """The message lists what can be used."""
    assert resolve({"report_to": "wandb,mlflow"}, {}, environment={}).report_to == "wandb,mlflow"
    with pytest.raises(
        CommandError, match="use one or more of: wandb, mlflow, tensorboard, separated by commas"
    ):
        resolve({"report_to": "wandb,comet"}, {}, environment={})
    assert main(["run", "--report-to", "comet", "train.py"]) == 2


@pytest.mark.parametrize("name", ["wandb_by_hand.py", "tensorboard_by_hand.py"])
def test_examples_run(name: str, tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """The examples of logging by hand put the figures where the tracker shows them."""
    done = preloaded("run", str(EXAMPLES / name), cwd=tmp_path, env=OFFLINE)
    assert done.returncode == 0, done.stderr
    if name.startswith("wandb"):
        assert wandb_file.summary_of(tmp_path)["traceml/steps"] == 40
    else:
        assert scalars(tmp_path / "runs" / "example").Scalars("traceml/steps")[-1].value == 40
