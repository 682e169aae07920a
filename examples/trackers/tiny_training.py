"""A small model and a loop, for the examples beside it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(steps, on_loss):
    data = TensorDataset(torch.randn(8 * steps, 16), torch.randn(8 * steps, 1))
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(DataLoader(data, batch_size=8)):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        on_loss(step, loss.item())
