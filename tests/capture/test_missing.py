"""Another version of torch lacks something that we patch: training is the same, and the summary says so."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from traceml.capture import install
from traceml.capture.patches import PATCHES, Patch
from traceml.monitor.result import build
from traceml.schema import catalog as c
from traceml.schema.summary import Summary


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    """Loading takes most of a step."""

    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.001)
        return torch.full((8,), index / 120)


def train() -> list[float]:
    """A loop whose verdict is INPUT-BOUND; all losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for x in torch.utils.data.DataLoader(Slow(), batch_size=4):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@functools.cache
def plainly() -> list[float]:
    """The losses without capture."""
    return train()


@pytest.fixture(autouse=True)
def _taken_out() -> Iterator[None]:
    yield
    install.deactivate()


def traced(folder: Path, patches: tuple[Patch, ...], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Summary]:
    monkeypatch.setattr("traceml.capture.patches.PATCHES", patches)
    (folder / "recording").mkdir()
    assert install.activate(run_dir=str(folder)) is not None
    losses = train()
    install.deactivate()
    return losses, build(folder, {"name": "r", "status": "completed", "exit_code": 0}, final=True)


@pytest.mark.parametrize("missing", PATCHES, ids=lambda patch: f"{patch.module}.{patch.attribute}")
def test_whatever_torch_lacks_is_named(
    missing: Patch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every loss is that of the plain training, the summary names what is missing, and no rule takes what was
    not measured for zero."""
    if missing.module.startswith("safetensors"):
        pytest.skip("imported by few scripts")
    plain = plainly()
    __import__(missing.module)
    gone = dataclasses.replace(missing, attribute=f"{missing.attribute}_of_another_torch")
    patches = tuple(gone if patch is missing else patch for patch in PATCHES)
    losses, summary = traced(tmp_path, patches, monkeypatch)
    assert losses == plain
    name = f"{missing.module}.{gone.attribute}"
    assert [note for note in summary.run.notes if name in note]
    assert summary.primary_diagnosis.status != "BALANCED"
    if missing.measures is not None:
        phase = c.PHASES[missing.measures].key
        assert summary.step_time.metrics[f"{phase}_ms"].average is None, "not measured is null, not 0"
        assert phase not in [finding.phase for finding in summary.step_time.issues]


def test_a_module_that_torch_no_longer_has_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A phase whose module was never imported together with torch is missing too."""
    moved = {"torch.utils.data.dataloader": "torch.utils.data.moved_elsewhere"}
    patches = tuple(dataclasses.replace(p, module=moved.get(p.module, p.module)) for p in PATCHES)
    losses, summary = traced(tmp_path, patches, monkeypatch)
    assert losses == plainly()
    name = "torch.utils.data.moved_elsewhere._BaseDataLoaderIter.__next__"
    assert [note for note in summary.run.notes if name in note]
    assert summary.primary_diagnosis.status != "BALANCED"
