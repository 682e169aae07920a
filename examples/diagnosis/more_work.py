# What is wrong: nothing. From step 41 on, each step takes longer because it has three times the micro-batches.
# Run it:        traceml run examples/diagnosis/more_work.py
# TraceML says:  MORE WORK
# The fix:       none; compare the time per sample, not per step
import time

import torch
from torch import nn


class Model(nn.Module):
    """A small model on a slow device (the sleep)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, x):
        time.sleep(0.01)
        return self.body(x)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for step in range(1, 81):
    micro_batches = 2 if step <= 40 else 6  # a larger batch for the second half of the training
    for _ in range(micro_batches):
        loss = model(torch.randn(8, 64)).square().mean() / micro_batches
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()

print(f"last loss {loss.item():.3f}")
