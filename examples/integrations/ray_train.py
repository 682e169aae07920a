"""Ray Train: `python ray_train.py`. With `traceml run ray_train.py` it needs no `trace_workers`."""

import os

import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn

from traceml.integrations.ray import trace_workers


def train_loop():
    model = prepare_model(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(240, 16), torch.randn(240, 1))
    for x, y in prepare_data_loader(torch.utils.data.DataLoader(data, batch_size=4)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


TorchTrainer(
    trace_workers(train_loop),
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=os.path.abspath("ray_results")),
).fit()
