"""User code cannot tell that capture is on: types, copies, compilation, other tools' patches."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn

import traceml
from tests.capture.conftest import Recorder, patched_attributes
from traceml.capture import install

Make = Callable[..., Any]
SENDS_ITS_OPTIMIZER = """
import cloudpickle, torch
class Own(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)
model = torch.nn.Linear(4, 4)
optimizer = Own(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
with open("class.pickle", "wb") as file:
    cloudpickle.dump(Own, file)
"""


class Net(nn.Module):
    """A model at module level, so that it pickles."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Any) -> Any:
        return self.body(x).sum()


def train(model: Any, steps: int = 5) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).backward()
        optimizer.step()


def test_models_pickle_copy_and_save_as_before(recorder: Recorder) -> None:
    """Nothing of ours sits on an instance: copies, pickles and whole-model saves work and carry nothing."""
    model = Net()
    train(model)
    assert b"traceml." not in pickle.dumps(model).replace(b"tests.capture", b"")
    assert type(copy.deepcopy(model)) is Net
    buffer = io.BytesIO()
    torch.save(model, buffer)
    assert not any("traceml" in key for key in vars(model))
    assert isinstance(model, nn.Module)


def test_what_is_wrapped_copies_like_a_function(recorder: Recorder) -> None:
    """`copy` and `deepcopy` of a function return the function, and so they do for what wraps one."""
    for wrapped in (nn.Module.__call__, torch.optim.Optimizer.zero_grad, torch.optim.SGD.step):
        assert copy.copy(wrapped) is wrapped
        assert copy.deepcopy({"kept": wrapped})["kept"] is wrapped
    assert pickle.loads(pickle.dumps(torch.optim.Optimizer.zero_grad)) is torch.optim.Optimizer.zero_grad


def test_a_loader_keeps_its_fast_attributes(recorder: Recorder) -> None:
    """Python keeps an object's attributes without a dict until somebody asks for one, and reading them takes
    longer from then on. We never ask."""

    def has_dict(iterator: Any) -> bool:
        return any(isinstance(part, dict) and "_num_yielded" in part for part in gc.get_referents(iterator))

    loader = torch.utils.data.DataLoader(torch.ones(20, 8), batch_size=4)
    untouched, batches = torch.utils.data.dataloader._SingleProcessDataLoaderIter(loader), iter(loader)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in batches:
        model(x).backward()
        optimizer.step()
    assert len(recorder.rows()["step"]) == 5
    assert has_dict(batches) == has_dict(untouched)


def test_no_class_of_the_users_is_changed(recorder: Recorder) -> None:
    """Module calls are timed in one place: the class of a model has nothing new in it."""
    train(Net())
    assert "__call__" not in Net.__dict__
    assert "__call__" not in nn.Linear.__dict__


@pytest.mark.parametrize("how", ["module", "in place", "function"])
def test_compiled_models_get_no_graph_break_from_us(recorder: Recorder, how: str) -> None:
    """fullgraph=True compiles inside trace_step: one graph, no break, no recompilation by us."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model = Net()
    run: Any = model
    if how == "module":
        run = torch.compile(model, fullgraph=True, backend="eager")
    elif how == "in place":
        model.compile(fullgraph=True, backend="eager")
    else:
        run = torch.compile(lambda x: model(x) * 2, fullgraph=True, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        with traceml.trace_step(model):
            optimizer.zero_grad()
            run(torch.randn(4, 8)).backward()
            optimizer.step()
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert len(recorder.rows()) == 8
    assert (recorder.rows()["forward"][2:] > 0).all()  # a compiled function is noticed after two steps


def test_second_installation_changes_nothing(recorder: Recorder) -> None:
    """A second installation changes nothing."""
    before = patched_attributes()
    assert install.activate() is recorder.session
    assert patched_attributes() == before


def test_patch_of_another_tool_on_top_of_ours_keeps_working(recorder: Recorder, make_training: Make) -> None:
    """A wrapper that another tool put around ours keeps working after we are gone."""
    calls = []
    ours = torch.save

    def theirs(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return ours(*args, **kwargs)

    torch.save = theirs
    try:
        install.deactivate()
        torch.save({}, io.BytesIO())
        assert torch.save is theirs
        assert calls == [1]
    finally:
        torch.save = ours._traceml_original


def test_functions_keep_their_names_and_documentation(recorder: Recorder) -> None:
    """Wrapped functions look like the originals to help() and to introspection."""
    assert torch.save.__name__ == "save"
    assert "Saves an object" in (torch.save.__doc__ or "")
    assert torch.autograd.backward.__module__ == "torch.autograd"


def test_our_own_error_is_reported_once_and_training_goes_on(
    recorder: Recorder, make_training: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """If TraceML breaks, it says so in one line and the training does not notice."""

    def broken(*_: Any) -> None:
        raise RuntimeError("our own bug")

    model, optimizer, loader = make_training(20)
    for index, (x, y) in enumerate(loader):
        if index == 5:
            recorder.session.switch.reading_due = 0
            recorder.session._read_memory = broken  # type: ignore[method-assign, assignment]
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("traceml:")]
    assert len(said) == 1
    assert "our own bug" in said[0]
    assert "training goes on" in said[0]
    assert len(recorder.rows()) == 5


def test_a_compiled_step_breaks_no_more_graphs_than_before_anything_was_compiled(recorder: Recorder) -> None:
    """`step` is C until torch.compile is asked for something; then the compiler looks through it."""
    model = Net()
    train(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    update = torch.compile(lambda: optimizer.step(), backend="eager")
    torch._dynamo.utils.counters.clear()
    for _ in range(3):
        model(torch.randn(4, 8)).backward()
        update()
    breaks = torch._dynamo.utils.counters["graph_break"]
    assert not [reason for reason in breaks if "Seam" in reason or "traceml" in reason]
    assert isinstance(vars(torch.optim.SGD)["step"], FunctionType)
    assert len(recorder.rows()) == 5 + 3


def test_an_optimizer_class_of_the_script_is_sent_by_value_without_traceml(tmp_path: Path) -> None:
    """cloudpickle sends what a script defines itself (Ray, joblib) to processes that may not have TraceML."""
    (tmp_path / "train.py").write_text(SENDS_ITS_OPTIMIZER)
    recording = Path(traceml.__file__).parents[1]
    command = [sys.executable, "-m", "traceml", "run", "--quiet", "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(recording)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    loads = "import pickle, sys; print(pickle.load(sys.stdin.buffer).step.__name__, 'traceml' in sys.modules)"
    with (tmp_path / "class.pickle").open("rb") as pickled:
        plain = subprocess.run([sys.executable, "-c", loads], stdin=pickled, check=True, capture_output=True)
    assert plain.stdout.split() == [b"step", b"False"]
