"""A recording session inside the test process, taken out again; a leaked patch fails the test."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from traceml.capture import install
from traceml.capture.patches import PATCHES
from traceml.capture.session import Session
from traceml.recording.tail import Tail
from traceml.schema.recorded import RecordedEvent

torch.set_num_threads(1)


class Recorder:
    """Capture that is on; `rows()` reads what it has written so far."""

    def __init__(self, session: Session, folder: Path) -> None:
        self.session = session
        self.folder = folder

    def rows(self) -> NDArray[np.void]:
        recording = Tail(self.folder).read()
        assert len(recording.ranks) == 1, "exactly one rank"
        return recording.ranks[0].rows

    def ms(self, column: str) -> list[float]:
        """A column of times, in milliseconds."""
        return [float(v) / 1e6 for v in self.rows()[column]]

    def events(self, kind: str) -> list[RecordedEvent]:
        return [e for r in Tail(self.folder).read().ranks for e in r.events if e.kind == kind]


def patched_attributes() -> dict[str, Any]:
    """Every attribute that we may patch, as it is now."""
    import torch.distributed.checkpoint

    found: dict[str, Any] = {"Module.__call__": torch.nn.Module.__call__, "gc": list(gc.callbacks)}
    for patch in PATCHES:
        if patch.module.startswith("safetensors"):
            continue
        owner: Any = __import__(patch.module, fromlist=["_"])
        for part in patch.attribute.split("."):
            owner = getattr(owner, part)
        found[f"{patch.module}.{patch.attribute}"] = owner
    for name in ("SGD", "Adam", "AdamW", "LBFGS"):
        found[name] = getattr(torch.optim, name).step
    return found


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    """Capture on for one test."""
    for cls in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.LBFGS):
        cls([torch.nn.Parameter(torch.zeros(1))])  # lets PyTorch prepare the class before we look
    before = patched_attributes()
    (tmp_path / "recording").mkdir()
    session = install.activate(run_dir=str(tmp_path))
    assert session is not None
    yield Recorder(session, tmp_path)
    install.deactivate()
    assert patched_attributes() == before, "a patch was left behind"


@pytest.fixture
def make_training() -> Callable[..., Any]:
    """A small model, optimizer and loader."""

    def make(steps: int = 6, width: int = 8, **loader: Any) -> tuple[Any, Any, Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(width, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = torch.utils.data.TensorDataset(torch.randn(4 * steps, width), torch.randn(4 * steps, 1))
        return model, optimizer, torch.utils.data.DataLoader(data, batch_size=4, **loader)

    return make
