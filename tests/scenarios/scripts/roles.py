"""Trainings whose forward passes and batches are not where a plain loop has them."""

import sys

import torch
from naps import burn, nap
from torch import nn

kind, steps = sys.argv[1], 60
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


class Sleeper(nn.Module):
    def __init__(self, ms, name):
        super().__init__()
        self.layer, self.ms, self.name = nn.Linear(32, 8), ms, name

    def forward(self, x):
        nap(self.ms, self.name)
        return self.layer(x)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * steps

    def __getitem__(self, index):
        nap(5 if kind == "teacher" else 0, "input")
        return torch.randn(32), torch.randn(8)


def train(x, y):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def teacher():
    """Distillation: a slow loader and a teacher in eval mode."""
    frozen = Sleeper(4, "teacher").eval()
    for x, _ in torch.utils.data.DataLoader(Data(), batch_size=4):
        with torch.no_grad():
            y = frozen(x)
        train(x, y)


def generate():
    """Several passes without gradients per batch, then one with gradients."""
    sampler = Sleeper(10, "sample")
    for x, y in torch.utils.data.DataLoader(Data(), batch_size=4):
        sampler.eval()
        with torch.inference_mode():
            for _ in range(4):
                sampler(x)
        train(x, y)


def rollout():
    """Observations one by one, an environment between them, then an update."""
    for _ in range(steps):
        for _ in range(5):
            with torch.no_grad():
                model(torch.randn(1, 32))
            nap(4, "environment")
        train(torch.randn(64, 32), torch.randn(64, 8))


def early():
    """The next batch is made between the forward and the backward pass."""

    def get_batch():
        burn(20, "input")
        return torch.randn(4, 32), torch.randn(4, 8)

    x, y = get_batch()
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(x), y)
        x, y = get_batch()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def metrics():
    """Python work between the forward and the backward pass."""
    for x, y in torch.utils.data.DataLoader(Data(), batch_size=4):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        burn(20, "metrics")
        loss.backward()
        optimizer.step()


def functional():
    """No module call: the model is a function."""
    w = torch.randn(512, 512, requires_grad=True)
    adam = torch.optim.SGD([w], lr=1e-9)
    x = torch.randn(256, 512)
    for _ in torch.utils.data.DataLoader(Data(), batch_size=4):
        h = x
        for _ in range(6):
            h = torch.tanh(h @ w / 30)
        h.pow(2).mean().backward()
        adam.step()
        adam.zero_grad()


globals()[kind]()
