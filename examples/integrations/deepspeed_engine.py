"""DeepSpeed: `traceml run torchrun --nproc-per-node=1 deepspeed_engine.py`, or with the `deepspeed` launcher."""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # remove this on a machine with GPUs
import deepspeed
import torch
from torch import nn

import traceml

# On the CPU, exchange through gloo: DeepSpeed's own operation would have to be compiled first.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
traceml.init()  # only needed without `traceml run`
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
engine, _, loader, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.Adam(model.parameters()),
    training_data=torch.utils.data.TensorDataset(torch.randn(240, 16), torch.randn(240, 1)),
    config={"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
)
for x, y in loader:
    engine.backward(nn.functional.mse_loss(engine(x), y))
    engine.step()
engine.save_checkpoint("checkpoints")
