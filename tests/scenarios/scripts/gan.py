"""Two models, two optimizers, one iteration: a GAN that knows nothing of TraceML."""

import sys

import torch
from naps import nap
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps, sleep_ms = int(sys.argv[1]), float(sys.argv[2])


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 64))

    def forward(self, z):
        nap(sleep_ms / 2, "forward")  # called twice an iteration
        return self.body(z)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x):
        return self.body(x)


generator, critic = Generator(), Critic()
optimizer_g = torch.optim.Adam(generator.parameters())
optimizer_d = torch.optim.Adam(critic.parameters())
loss = nn.BCEWithLogitsLoss()
for (real,) in DataLoader(TensorDataset(torch.randn(steps * 32, 64)), batch_size=32):
    ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
    optimizer_d.zero_grad()
    fake = generator(torch.randn(len(real), 16))
    (loss(critic(real), ones) + loss(critic(fake.detach()), zeros)).backward()
    optimizer_d.step()
    optimizer_g.zero_grad()
    loss(critic(generator(torch.randn(len(real), 16))), ones).backward()
    optimizer_g.step()
