"""DeepSpeed on the CPU: an engine with accumulation over 2 micro-batches, ZeRO stage as the first word.

Two groups of parameters, so that a ZeRO optimizer steps twice inside one engine step. Naps: 5 ms per sample, 20 ms
per forward, 40 ms in each checkpoint.
"""

import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
    os.environ.setdefault(name, value)
os.environ.setdefault("MASTER_PORT", "0")
import deepspeed
import torch
from naps import nap
from torch import nn

# It would be compiled first, which takes minutes.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
stage, count = (int(word) for word in sys.argv[1:3])


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * count

    def __getitem__(self, index):
        nap(5, "input")
        return torch.randn(8), torch.randn(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        nap(20, "forward")
        return self.head(self.body(x))


model = Net()
groups = [{"params": model.body.parameters()}, {"params": model.head.parameters()}]
engine, optimizer, loader, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(groups, lr=0.01),
    training_data=Data(),
    config={
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": stage > 0},
    },
)
dtype = next(engine.module.parameters()).dtype
for number, (x, y) in enumerate(loader, 1):
    loss = nn.functional.mse_loss(engine(x.to(dtype)), y.to(dtype))
    engine.backward(loss)
    engine.step()
    if number == count:
        nap(40, "checkpoint hook")
        engine.save_checkpoint("out", tag=f"{number}")
print("global steps", engine.global_steps)
