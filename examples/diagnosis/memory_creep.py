# What is wrong: the script collects the outputs of every batch, with the graphs that they came from.
# Run it:        traceml run examples/diagnosis/memory_creep.py
# TraceML says:  MEMORY CREEP
# The fix:       store numbers, not tensors with a graph (`--fixed`)
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fixed = "--fixed" in sys.argv


class Model(nn.Module):
    """Two wide layers on a slow device (the sleep)."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 4096), nn.Linear(4096, 1)

    def forward(self, x):
        time.sleep(0.01)
        return self.last(self.first(x).relu())


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
data = TensorDataset(torch.randn(7680, 64), torch.randn(7680, 1))
history = []

for x, y in DataLoader(data, batch_size=64):
    output = model(x)
    loss = nn.functional.mse_loss(output, y)
    optimizer.zero_grad()
    loss.backward(retain_graph=not fixed)
    optimizer.step()
    history.append(loss.item() if fixed else output)

print(f"{len(history)} batches")
