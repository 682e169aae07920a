# What is wrong: the dataset needs 3 ms per sample, and the training loads its batches itself.
# Run it:        traceml run examples/diagnosis/input_bound.py
# TraceML says:  INPUT-BOUND, input
# The fix:       load batches in the background (`--fixed` does it with three loader workers)
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

fixed = "--fixed" in sys.argv


class Photos(Dataset):
    """Random tensors. The sleep stands for reading a file from slow storage."""

    def __len__(self):
        return 480

    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.randn(256), index % 10


class Model(nn.Module):
    """Two layers on a device that needs 25 ms for them (the sleep)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, x):
        time.sleep(0.025)
        return self.body(x)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Photos(), batch_size=8, shuffle=True, num_workers=3 if fixed else 0)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"last loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
