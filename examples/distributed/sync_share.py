# What is wrong: batches are padded to their longest text, so in each step another rank is the last one.
# Run it:        traceml run examples/distributed/sync_share.py --nproc-per-node 4
# TraceML says:  SYNC SHARE
# The fix:       sort texts by length, so that all ranks get batches of about the same length (`--fixed`)
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

fixed = "--fixed" in sys.argv


class Model(nn.Module):
    """A layer that takes as long as the text is (the sleep)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(32, 1)

    def forward(self, x, length):
        time.sleep(length / 1000)
        return self.body(x)


torch.set_num_threads(1)
dist.init_process_group("gloo")
lengths = random.Random(dist.get_rank())
model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    longest = max(lengths.uniform(5, 80) for _ in range(3))
    loss = model(torch.randn(3, 32), 60.0 if fixed else longest).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
del model  # gloo can hang at the end if the model outlives the group
dist.destroy_process_group()
