# What is wrong: the machine of rank 1 is slow in everything: its batches come late and its model runs slowly.
# Run it:        traceml run examples/distributed/straggler.py --nproc-per-node 2
# TraceML says:  STRAGGLER, r1
# The fix:       look at that machine: other jobs, clocks, its disk
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
slow = dist.get_rank() == 1


class Batches(Dataset):
    """Random batches; the sleep stands for reading them."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        time.sleep(0.03 if slow else 0.002)
        return torch.randn(16, 32), torch.randn(16, 1)


class Model(nn.Module):
    """Two layers; the sleep stands for a device."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        time.sleep(0.045 if slow else 0.015)
        return self.body(x)


model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(Batches(), batch_size=None):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
del model  # gloo can hang at the end if the model outlives the group
dist.destroy_process_group()
