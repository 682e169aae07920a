# What is wrong: rank 1 keeps a cache of 500 MB that the other rank does not have.
# Run it:        traceml run examples/distributed/imbalance.py --nproc-per-node 2
# TraceML says:  IMBALANCE, r1
# The fix:       share the cache between the ranks, or keep it on disk
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
cache = torch.ones(125_000_000 if dist.get_rank() == 1 else 1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    loss = model(torch.randn(16, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)  # the rest of the step
print(f"rank {dist.get_rank()} keeps {cache.nbytes / 1e6:.0f} MB")
del model  # gloo can hang at the end if the model outlives the group
dist.destroy_process_group()
