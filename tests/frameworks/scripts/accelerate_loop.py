"""Accelerate: accumulation over 10 batches per epoch in groups of 4, 4 and 2, a checkpoint per epoch.

Word: `init` to call traceml.init(). Naps: 5 ms per sample, 20 ms per forward, 150 ms in each checkpoint.
"""

import sys

import torch
from accelerate import Accelerator
from naps import nap
from torch import nn

if "init" in sys.argv:
    import traceml

    assert traceml.init(run_name="direct")


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 20 * accelerator.num_processes

    def __getitem__(self, index):
        nap(5, "input")
        return torch.randn(8), torch.randn(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 1)

    def forward(self, x):
        nap(20, "forward")
        return self.body(x)


accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, loader = accelerator.prepare(
    model, optimizer, torch.utils.data.DataLoader(Data(), batch_size=2)
)
accelerator.register_save_state_pre_hook(lambda models, weights, folder: nap(150, "checkpoint"))
for epoch in range(3):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state(f"out/{epoch}")
accelerator.end_training()
