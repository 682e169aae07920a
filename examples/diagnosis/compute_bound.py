# What is wrong: nothing, in most trainings. The model itself fills the step; here its forward pass.
# Run it:        traceml run examples/diagnosis/compute_bound.py
# TraceML says:  COMPUTE-BOUND, forward
# The fix:       if the step must be faster: a smaller model, torch.compile, lower precision, a faster device
import time

import torch
from torch import nn


class Model(nn.Module):
    """Two layers and a tree search. The sleep stands for the search, which takes most of the step."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x):
        time.sleep(0.03)
        return self.body(x)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for step in range(60):
    x, y = torch.randn(32, 64), torch.randn(32, 1)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print(f"last loss {loss.item():.3f}")
