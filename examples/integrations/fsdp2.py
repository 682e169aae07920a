"""FSDP2: `traceml run torchrun --nproc-per-node=2 fsdp2.py`; `traceml.init()` also records without it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import traceml

traceml.init()
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)), nn.Linear(64, 1))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(480, 64), torch.randn(480, 1))
sampler = torch.utils.data.DistributedSampler(data)
for x, y in torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler):
    nn.functional.mse_loss(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()  # without it gloo can abort at the end
dist.destroy_process_group()
