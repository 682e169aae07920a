"""The documented one-liners in scripts that are started directly, and without their framework."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.frameworks.recorded import EXAMPLES, SCRIPTS, Recorded, only_summary, python
from tests.scenarios.scenario import SRC

pytestmark = pytest.mark.framework


@pytest.mark.parametrize(("script", "steps"), [("huggingface.py", 30), ("lightning_fit.py", 30)])
def test_one_liner_records_without_traceml_run(tmp_path: Path, script: str, steps: int) -> None:
    """`python train.py` with TraceMLTrainer or TraceMLCallback prints and writes the verdict at the end."""
    done = python(tmp_path, str(EXAMPLES / script))
    assert done.returncode == 0, done.stderr[-3000:]
    found = only_summary(tmp_path)
    assert (found["run"]["status"], found["run"]["steps"]["total"]) == ("completed", steps)
    assert done.stderr.count("\nVerdict ") == 1
    assert {"checkpoint", "validation"} <= {e["kind"] for e in found["events"]}


@pytest.mark.parametrize("how", ["callback", "traceml run"])
def test_lightning_ddp_is_one_run_of_two_ranks(tmp_path: Path, how: str) -> None:
    """Lightning starts its second process itself; both record in one run, with the callback or no code."""
    words = [str(SCRIPTS / "lightning_more.py"), "lightning", "ddp"]
    words = [*words, "callback"] if how == "callback" else ["-m", *how.split(), *words]
    done = python(tmp_path, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    found = only_summary(tmp_path)
    assert (found["run"]["world_size"], found["run"]["ranks"]["seen"]) == (2, [0, 1])
    assert found["run"]["steps"]["total"] == 15
    (run,) = (tmp_path / "logs").iterdir()
    for rank in (0, 1):
        assert Recorded(tmp_path, run.name, rank).column("micro_batches") == [1] * 15


TOO_OLD = "needs transformers 5 or newer: pip install 'transformers>=5' (version 4.57.1 is installed)"
MISSING = "needs transformers 5 or newer: pip install 'transformers>=5' (No module named 'transformers')"


@pytest.mark.parametrize(("version", "line"), [("4.57.1", TOO_OLD), (None, MISSING)])
def test_missing_or_old_framework_gives_one_line(tmp_path: Path, version: str | None, line: str) -> None:
    """The import fails with one line that says what to install."""
    words = ["-c", "from traceml.hf_decorators import TraceMLTrainer"]
    if version is None:
        words.insert(0, "-S")  # no site-packages
    else:
        (tmp_path / "transformers.py").write_text(f"__version__ = {version!r}\n")
    path = f"{tmp_path}{os.pathsep}{SRC}"
    done = python(tmp_path, *words, PYTHONPATH=path)
    assert done.stderr.strip().splitlines()[-1] == f"ImportError: TraceMLTrainer {line}"


def test_callback_without_lightning_gives_one_line(tmp_path: Path) -> None:
    """Lightning is needed only when the callback is made."""
    code = "from traceml.utils.lightning import TraceMLCallback; TraceMLCallback()"
    done = python(tmp_path, "-S", "-c", code)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: TraceMLCallback needs lightning 2 or newer: pip install")


SWITCHED_OFF = """
from torch import nn
from transformers import TrainingArguments
from traceml.hf_decorators import TraceMLTrainer

arguments = TrainingArguments(output_dir="out", report_to=[], use_cpu=True)
TraceMLTrainer(model=nn.Linear(2, 2), args=arguments, traceml_enabled=False)
"""


def test_trainer_that_is_not_enabled_records_nothing(tmp_path: Path) -> None:
    """`traceml_enabled=False` is a plain Trainer."""
    done = python(tmp_path, "-c", SWITCHED_OFF)
    assert (done.returncode, "traceml" in done.stderr) == (0, False), done.stderr[-3000:]
    assert not (tmp_path / "logs").exists()


PICKLED = """
import pickle
import pytorch_lightning
from traceml.utils.lightning import TraceMLCallback

class Own(TraceMLCallback):
    def __init__(self, word):
        super().__init__()
        self.word = word

copy = pickle.loads(pickle.dumps(Own("kept")))
print(isinstance(copy, pytorch_lightning.Callback), isinstance(copy, Own), copy.word)
"""


def test_lightning_callback_can_be_subclassed_and_pickled(tmp_path: Path) -> None:
    """Strategies that spawn processes pickle the callbacks. It is one of the Lightning that is loaded."""
    done = python(tmp_path, "-c", PICKLED, TRACEML_DISABLED="1")
    assert (done.returncode, done.stdout) == (0, "True True kept\n"), done.stderr[-3000:]
