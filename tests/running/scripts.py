"""Small training scripts that tests write to disk and run; they know nothing of TraceML."""

from __future__ import annotations

import textwrap
from pathlib import Path

LOOP = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(steps, each=lambda step: None):
    data = TensorDataset(torch.randn(4 * steps, 8), torch.randn(4 * steps, 1))
    for step, (x, y) in enumerate(DataLoader(data, batch_size=4), 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        each(step)
"""


def write(folder: Path, body: str, name: str = "train.py") -> Path:
    """A script with `train(steps, each)` defined above `body`."""
    path = folder / name
    path.write_text(LOOP + textwrap.dedent(body))
    return path
