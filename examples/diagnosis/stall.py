# What is wrong: one single step takes three seconds, because reading a batch hangs once.
# Run it:        traceml run examples/diagnosis/stall.py
# TraceML says:  STALL, input
# The fix:       find out what stopped the input path at that time: storage, network, a lock
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class RemoteFile(IterableDataset):
    """Batches from a file server that does not answer for three seconds in the middle of the run."""

    def __iter__(self):
        for number in range(80):
            if number == 50:
                time.sleep(3.0)
            yield torch.randn(32, 128), torch.randn(32, 1)


class Model(nn.Module):
    """A small model on a slow device (the sleep)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x):
        time.sleep(0.02)
        return self.body(x)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for x, y in DataLoader(RemoteFile(), batch_size=None):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
