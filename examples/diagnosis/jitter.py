# What is wrong: every tenth step stops for a while, here to send metrics to a slow server.
# Run it:        traceml run examples/diagnosis/jitter.py
# TraceML says:  JITTER, wait
# The fix:       send them from a thread (`--fixed`)
import sys
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fixed = "--fixed" in sys.argv


class Model(nn.Module):
    """A small model on a slow device (the sleep)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x):
        time.sleep(0.02)
        return self.body(x)


def send(metrics):
    """The sleep stands for a request over the network."""
    time.sleep(0.2)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(800, 128))

for step, (x,) in enumerate(DataLoader(data, batch_size=8), start=1):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        metrics = {"step": step, "loss": loss.item()}
        if fixed:
            threading.Thread(target=send, args=(metrics,)).start()
        else:
            send(metrics)
