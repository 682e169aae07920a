"""Steps and phases of frameworks: whole evaluations and checkpoints, look-ahead, skips, one owner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks.recorded import Recorded
from tests.scenarios.preloaded import PreloadedTraceml

SCRIPTS = Path(__file__).parent / "scripts"
RAGGED = [4, 4, 2] * 3
pytestmark = [pytest.mark.framework, pytest.mark.timed]


@pytest.fixture(scope="module")
def loaded() -> Iterator[PreloadedTraceml]:
    """`traceml run` with the frameworks already loaded."""
    made = PreloadedTraceml(
        "transformers.models.bert", "transformers.trainer", "lightning.pytorch", "accelerate"
    )
    yield made
    made.close()


def run(folder: Path, command: PreloadedTraceml, script: str, *words: str) -> Recorded:
    """What rank 0 recorded of this script under `traceml run`."""
    name = f"run{len(list(folder.glob('logs/*')))}"
    done = command("run", str(SCRIPTS / script), "--run-name", name, "--", *words, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return Recorded(folder, name)


@pytest.mark.parametrize("words", [(), ("callback", "trace")])
def test_trainer_steps_are_optimizer_steps(
    tmp_path: Path, loaded: PreloadedTraceml, words: tuple[str, ...]
) -> None:
    """Groups of 4, 4 and 2 batches are one step each, with their own batches, although Accelerate fetches
    one ahead. The whole evaluation is validation, the whole saving is checkpoint, one event each. With the
    callback and trace_step around each micro-batch nothing changes: the Trainer's steps are the steps."""
    found = run(tmp_path, loaded, "hf_more.py", *words)
    assert found.column("micro_batches") == RAGGED
    assert found.column("samples") == [2 * batches for batches in RAGGED]
    found.check_phases("input", "forward", "validation", "checkpoint")
    assert found.waited_ms() < min(found.napped_ms(name) for name in ("validation", "checkpoint"))
    assert [e["step"] for e in found.events if e["kind"] == "checkpoint"] == [3, 5, 7, 9, 10]


def test_resumed_training_does_not_wait_for_what_it_skips(tmp_path: Path, loaded: PreloadedTraceml) -> None:
    """A stream can only be skipped by reading it: 16 samples of 40 ms are start-up, not input of step 1."""
    run(tmp_path, loaded, "hf_more.py", "stream")
    (tmp_path / "naps.jsonl").unlink()
    found = run(tmp_path, loaded, "hf_more.py", "stream", "resume")
    assert found.column("micro_batches") == [6, 4]  # 2 that were left of the first pass, and 4
    found.check_phases("input", "forward", "validation", "checkpoint")
    assert found.ms("input") < found.napped_ms("skipped") / 2


@pytest.mark.parametrize(
    ("package", "mode", "batches"),
    [("lightning", "ragged", RAGGED), ("pytorch_lightning", "manual", [2] * 15)],
)
def test_lightning_steps_are_optimizer_steps(
    tmp_path: Path, loaded: PreloadedTraceml, package: str, mode: str, batches: list[int]
) -> None:
    """By either name, with automatic and manual optimization, and with a loader of unknown length, where
    Lightning fetches one batch ahead. Hooks inside validation and saving belong to these."""
    found = run(tmp_path, loaded, "lightning_more.py", package, mode)
    assert found.column("micro_batches") == batches
    assert found.column("samples") == [2 * count for count in batches]
    found.check_phases("input", "forward", "validation", "checkpoint")
    assert found.waited_ms() < min(found.napped_ms(name) for name in ("validation", "checkpoint"))
    before = [e["kind"] for e in found.events if e["time_ns"] < found.rows["begin_ns"][0]]
    assert before == ["validation"]  # the sanity check


def test_accelerate_steps_are_optimizer_steps(tmp_path: Path, loaded: PreloadedTraceml) -> None:
    """Accumulation with a short last group; what `save_state` does besides writing is checkpoint, too."""
    found = run(tmp_path, loaded, "accelerate_loop.py")
    assert found.column("micro_batches") == RAGGED
    found.check_phases("input", "forward", "checkpoint")
    assert found.waited_ms() < found.napped_ms("checkpoint")


def test_checkpoint_saved_inside_validation_is_a_checkpoint(tmp_path: Path, loaded: PreloadedTraceml) -> None:
    """Lightning's default: the checkpoint is saved by a hook at the end of validation."""
    found = run(tmp_path, loaded, "lightning_more.py", "lightning", "saves-in-validation")
    found.check_phases("input", "forward", "validation", "checkpoint")
    assert len([e for e in found.events if e["kind"] == "checkpoint"]) == 3
