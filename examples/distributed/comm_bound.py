# What is wrong: 5 MB of gradients cross a slow network in every step, after only a few milliseconds of work.
# Run it:        traceml run examples/distributed/comm_bound.py --nproc-per-node 2
# TraceML says:  COMM-BOUND, sync
# The fix:       exchange less often (`--fixed` accumulates four batches with no_sync), or fewer bytes
import contextlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

accumulate = 4 if "--fixed" in sys.argv else 1
BYTES_PER_SECOND = 125e6  # 1 Gbit/s


def over_slow_network(group, bucket):
    """Average the gradients as DDP does; the sleep stands for the network."""
    gradients = bucket.buffer() / dist.get_world_size()

    def after(future):
        time.sleep(gradients.nbytes / BYTES_PER_SECOND)
        return future.value()[0]

    return dist.all_reduce(gradients, async_op=True).get_future().then(after)


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Embedding(20_000, 64), nn.Flatten(), nn.Linear(640, 1)))
model.register_comm_hook(None, over_slow_network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for step in range(40):
    optimizer.zero_grad()
    for part in range(1, accumulate + 1):
        words, y = torch.randint(20_000, (8, 10)), torch.randn(8, 1)
        with contextlib.nullcontext() if part == accumulate else model.no_sync():
            nn.functional.mse_loss(model(words), y).backward()
    optimizer.step()
del model  # gloo can hang at the end if the model outlives the group
dist.destroy_process_group()
