# What is wrong: the script writes a checkpoint after every step.
# Run it:        traceml run examples/diagnosis/wait_heavy.py
# TraceML says:  WAIT-HEAVY, checkpoint
# The fix:       save every 40 steps (`--fixed`), or in the background
import sys
import tempfile

import torch
from torch import nn

every = 40 if "--fixed" in sys.argv else 1

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
folder = tempfile.TemporaryDirectory()

for step in range(1, 81):
    x = torch.randn(16, 64)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % every == 0:
        torch.save({"model": model.state_dict(), "step": step}, f"{folder.name}/checkpoint.pt")

print(f"last loss {loss.item():.3f}")
