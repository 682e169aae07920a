"""What each training of scripts/trainings.py completes, and how it is run plainly and traced, and compared.

Adding a case is adding a function there and a row here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.preloaded import ENVIRONMENT, PreloadedTraceml

TRAININGS = Path(__file__).parent / "scripts" / "trainings.py"
LAST = 2
"""Every training ends with this many steps more, whose result is printed."""

STEPS = {
    "plain_loop": 20,
    "lazy_module_moves": 6,
    "cloudpickle_of_a_script_class": 6,
    "functions_pickle": 6,
    "compiled_all_reduce": 6,
    "compiled_model": 6,
    "scripted_grad": 6,
    "deep_nesting": 6,
    "flop_counter": 6,
    "symbolic_trace": 6,
    "module_call_patched_by_the_user": 6,
    "odd_batches": 6,
    "odd_iterators": 6,
    "optimizer_with_an_argument_of_its_own": 5,
    "closures": 10,
    "compiled_optimizer": 20,
    "hand_written_update": 20,
    "datasets_are_freed": 6,
    "torch_s_loader_has_get_data": 6,
    "folds": 96,
    "replaced_by_exec": 32,
    "folds_without_a_loader": 96,
    "stages_without_a_loader": 60,
    "training_moves_to_another_thread": 60,
    "two_training_threads": 40,
    "optimizers_replaced_while_the_old_one_lives": 100,
    "descriptors_closed_by_the_script": 1104,
    "mixed_precision_and_clipping": 10,
}
"""Each training and the steps that it completes."""
WITHOUT_COUNT = {
    "exit_code_of_the_script": 6,
    "error_of_the_script": 6,
}
"""The same where the number is at least this: steps are interrupted, overlap, or are another attempt's."""


COLD = ("plain_loop", "compiled_model", "replaced_by_exec", "exit_code_of_the_script", "error_of_the_script")
"""`make test` traces these in a new Python, the others in forks; for those, `make test-long` does it."""


PRINTS_FRAMES = ("error_of_the_script", "compiled_optimizer")
"""A traceback or a warning with a path, which the server's forks print differently from a new Python."""


def cold(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A new Python with these words."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def without_numbers(text: str) -> str:
    """Warnings of torch carry the time and the process id."""
    return re.sub(r"\d+", "0", text)


def files_of(folder: Path) -> dict[str, bytes]:
    ours = ("stdout.txt", "stderr.txt")  # of `preloaded`
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and p.name not in ours}


needs_trackfd = pytest.mark.skipif(
    sys.version_info < (3, 13), reason="before 3.13 a mapping of Python's keeps a descriptor"
)
CASES = {
    name: pytest.param(name, marks=needs_trackfd if name == "descriptors_closed_by_the_script" else ())
    for name in (*STEPS, *WITHOUT_COUNT)
}


def check(tmp_path: Path, preloaded: PreloadedTraceml, name: str, in_fork: bool) -> None:
    """Same exit code, standard output, traceback and files; and every step is on record."""
    folders = tmp_path / "plain", tmp_path / "traced"
    for folder in folders:
        folder.mkdir()
    # A busy machine may import torch for minutes.
    words = ("run", "--quiet", "--run-name", "run", "--stall-after=600", str(TRAININGS), name)
    if name in PRINTS_FRAMES and not in_fork:
        plain = cold(folders[0], str(TRAININGS), name)
    else:
        plain = preloaded.python(str(TRAININGS), name, cwd=folders[0])
    traced = preloaded(*words, cwd=folders[1]) if in_fork else cold(folders[1], "-m", "traceml", *words)
    assert traced.returncode == plain.returncode, traced.stderr
    assert traced.stdout == plain.stdout
    assert [line for line in traced.stderr.splitlines() if line.startswith("traceml:")] == [], traced.stderr
    assert without_numbers(traced.stderr) == without_numbers(plain.stderr)
    assert files_of(tmp_path / "traced") == files_of(tmp_path / "plain")
    summary = tmp_path / "traced" / "logs" / "run" / "final_summary.json"
    total = json.loads(summary.read_text())["run"]["steps"]["total"]
    if name in STEPS:
        assert total == STEPS[name] + LAST
    else:
        assert total >= WITHOUT_COUNT[name]
