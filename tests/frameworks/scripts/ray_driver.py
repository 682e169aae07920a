"""Ray Train with two workers on the cluster of RAY_ADDRESS, 2 ms per sample. Word: `trace` to use trace_workers."""

import os
import sys

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def loop():
    import time

    import ray.train.torch as ray_torch
    from torch import nn

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 160

        def __getitem__(self, index):
            time.sleep(0.002)
            return torch.randn(16), torch.randn(1)

    model = ray_torch.prepare_model(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in ray_torch.prepare_data_loader(torch.utils.data.DataLoader(Data(), batch_size=4)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


if "trace" in sys.argv:
    from traceml.integrations.ray import trace_workers

    loop = trace_workers(loop)
ray.init()
TorchTrainer(
    loop,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=os.path.abspath("results")),
).fit()
if "trace" in sys.argv:
    import traceml

    print("steps so far:", traceml.final_summary()["run"]["steps"]["total"])
