"""A training that evaluates before its first and after its last step; writes what that took to stdout."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(400, 8), torch.randn(400, 1))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def evaluate():
    began = time.perf_counter()
    model.eval()
    with torch.no_grad():
        for x, _ in DataLoader(data, batch_size=40):
            model(x)
            time.sleep(0.04)
    model.train()
    print(time.perf_counter() - began)


evaluate()
for x, y in DataLoader(data, batch_size=8):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
evaluate()
