# What is wrong: the script prepares its data anew in every run, before its first step.
# Run it:        traceml run examples/diagnosis/long_start.py
# TraceML says:  LONG START
# The fix:       prepare the data once and keep the result in a file
import time

import torch
from torch import nn


class Model(nn.Module):
    """A small model on a slow device (the sleep)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x):
        time.sleep(0.02)
        return self.body(x)


time.sleep(24.0)  # cleans and sorts the data set
torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for _ in range(60):
    x, y = torch.randn(32, 128), torch.randn(32, 1)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
