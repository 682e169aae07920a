# What is wrong: rank 0 validates alone, and the other ranks wait for it in the next exchange.
# Run it:        traceml run examples/distributed/wait_for_rank.py --nproc-per-node 2
# TraceML says:  WAIT FOR RANK, r0
# The fix:       share the validation batches between the ranks, or validate less often
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    """Two layers; the sleep stands for a device."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        time.sleep(0.015)
        return self.body(x)


def validate(model):
    """Mean error over 20 batches."""
    model.eval()
    with torch.no_grad():
        total = sum(model(torch.randn(16, 32)).square().mean().item() for _ in range(20))
    model.train()
    return total / 20


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 62):
    loss = parallel(torch.randn(16, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 and dist.get_rank() == 0:
        print(f"step {step}: validation error {validate(model):.3f}")
del parallel  # gloo can hang at the end if the model outlives the group
dist.destroy_process_group()
