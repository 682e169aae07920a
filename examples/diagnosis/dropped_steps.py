# What is wrong: every fifth batch is too large, and the script catches the error and goes on.
# Run it:        traceml run examples/diagnosis/dropped_steps.py
# TraceML says:  DROPPED STEPS
# The fix:       filter such batches out before they reach the model (`--fixed`)
import sys
import time

import torch
import traceml
from torch import nn

fixed = "--fixed" in sys.argv


class Model(nn.Module):
    """Runs out of memory on long inputs, after having worked on them for a while (the sleep)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x):
        time.sleep(0.02)
        if len(x) > 512:
            raise torch.OutOfMemoryError("not enough memory for this batch")
        return self.body(x)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for step in range(100):
    x = torch.randn(1024 if step % 5 == 4 else 32, 64)
    if fixed and len(x) > 512:
        continue
    try:
        with traceml.trace_step(model):  # says where a step begins: one that fails is then not completed
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    except torch.OutOfMemoryError:
        print(f"step {step}: skipped")
