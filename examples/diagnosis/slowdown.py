# What is wrong: from step 60 on, every step takes longer: the script compares with a history that has grown.
# Run it:        traceml run examples/diagnosis/slowdown.py
# TraceML says:  SLOWDOWN, forward
# The fix:       keep a bounded history (`--fixed`)
import sys
import time

import torch
from torch import nn

fixed = "--fixed" in sys.argv


class MemoryBank(nn.Module):
    """Looks up old features. Beyond 60 of them the index no longer fits into the cache (the sleep)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(128, 128)
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        time.sleep(0.06 if self.seen > 60 and not fixed else 0.02)
        return self.body(x)


torch.manual_seed(0)
torch.set_num_threads(1)
model = MemoryBank()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for step in range(110):
    x = torch.randn(32, 128)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print(f"last loss {loss.item():.3f}")
