# What is wrong: the dataset keeps every item that it has read, in the loader's worker processes.
# Run it:        traceml run examples/diagnosis/worker_memory_creep.py --interval 0.1
# TraceML says:  WORKER MEMORY CREEP, r0
# The fix:       keep nothing, or only the newest items (`--fixed`)
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

fixed = "--fixed" in sys.argv


class Files(Dataset):
    """Reads 100 kB for each item."""

    def __init__(self):
        self.read = {}

    def __len__(self):
        return 2400

    def __getitem__(self, index):
        item = bytearray(100_000)
        if not fixed:
            self.read[index] = item
        return torch.frombuffer(item, dtype=torch.uint8)[:64].float()


class Model(nn.Module):
    """A small model on a slow device (the sleep)."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 1)

    def forward(self, x):
        time.sleep(0.02)
        return self.last(x)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

for x in DataLoader(Files(), batch_size=8, num_workers=2):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
