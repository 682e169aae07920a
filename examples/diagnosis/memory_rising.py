# What is wrong: the predictions of every step are kept for a plot at the end. So far that is little.
# Run it:        traceml run examples/diagnosis/memory_rising.py
# TraceML says:  MEMORY RISING
# The fix:       keep a sample of them, or write them to disk; watch whether memory goes on rising
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    """Two layers on a slow device (the sleep)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1000))

    def forward(self, x):
        time.sleep(0.01)
        return self.body(x)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
predictions = []

for (x,) in DataLoader(TensorDataset(torch.randn(12_000, 64)), batch_size=100):
    y = model(x)
    loss = y.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    predictions.append(y.detach())  # 0.4 MB

print(f"{len(predictions)} predictions kept")
