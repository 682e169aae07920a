"""Short steps on data in memory; `whole` indexes a batch at once instead of sample by sample."""

import sys

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

data = TensorDataset(torch.randn(64 * 300, 32), torch.randn(64 * 300, 1))
model = nn.Linear(32, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(data, batch_size=64)
if sys.argv[1] == "whole":
    loader = DataLoader(data, batch_size=None, sampler=BatchSampler(SequentialSampler(data), 64, False))
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
