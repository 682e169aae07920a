"""Two processes train one shared model without ranks, each with as many threads as there are cores."""

import sys
import time

import torch
import torch.multiprocessing as mp
from torch import nn


def train(model, threads, seconds):
    torch.set_num_threads(threads)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        optimizer.zero_grad()
        model(torch.randn(64, 1024)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    threads, seconds = int(sys.argv[1]), float(sys.argv[2])
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)).share_memory()
    mp.set_start_method("spawn")
    both = [mp.Process(target=train, args=(model, threads, seconds)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
