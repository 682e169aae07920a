"""Accelerate: `traceml run accelerate launch accelerate_loop.py`; `traceml.init()` also records without it."""

import torch
from accelerate import Accelerator
from torch import nn

import traceml

traceml.init()
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(240, 16), torch.randn(240, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    with accelerator.accumulate(model):
        accelerator.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
accelerator.save_state("checkpoints")
accelerator.end_training()
