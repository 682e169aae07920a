"""Ways to exchange with other ranks, and work that one rank does alone. exchanges.py WAY PHASE RANK

PHASE of RANK (input, forward, backward) takes 30 ms more in each step; every forward takes 40 ms.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from naps import nap
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

way, slow_phase, slow_rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
STEPS = 40


def fault(phase):
    if (phase, rank) == (slow_phase, slow_rank):
        nap(30, "fault")


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        fault("backward")
        return grad


class Data(Dataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        fault("input")
        return torch.randn(8, 32), torch.randn(8, 1)


class Model(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.first, self.between, self.last = nn.Linear(32, 64), between, nn.Linear(64, 1)

    def forward(self, x):
        nap(40, "base")
        fault("forward")
        return self.last(SlowBackward.apply(self.between(self.first(x))))


class OtherModel(Model):
    pass


def exchange(gradients):
    if way == "futures":
        for work in [dist.all_reduce(g, async_op=True).get_future() for g in gradients]:
            work.wait()
    elif way == "functional":
        for gradient in gradients:
            gradient.copy_(functional.all_reduce(gradient, "sum", dist.group.WORLD))


def alone(model, index):
    """What only rank 0 does."""
    if rank == 0 and way == "checkpoint":
        torch.save(torch.zeros(12_000_000), sys.argv[4])
    if rank == 0 and way == "evaluation" and index % 10 == 9:
        model.eval()
        with torch.no_grad():
            for _ in range(5):
                model(torch.randn(8, 32))
        model.train()


def train(*models):
    wrapped = [
        DistributedDataParallel(m) if way not in ("futures", "functional", "tensor") else m for m in models
    ]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01, foreach=False) for m in models]
    for index, (x, y) in enumerate(DataLoader(Data(), batch_size=None)):
        for model, optimizer in zip(wrapped, optimizers, strict=True):
            nn.functional.mse_loss(model(x), y).backward()
            exchange([p.grad for p in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
        alone(models[0], index)


torch.manual_seed(0)
if way == "buffers":
    train(Model(nn.BatchNorm1d(64)))
elif way == "two models":
    train(Model(nn.ReLU()), OtherModel(nn.ReLU()))
elif way == "two trainings":
    train(Model(nn.ReLU()))
    train(OtherModel(nn.Tanh()))
elif way == "tensor":
    model = Model(nn.ReLU())
    mesh = init_device_mesh("cpu", (world,))
    parallelize_module(model, mesh, {"first": ColwiseParallel(), "last": RowwiseParallel()})
    train(model)
else:
    train(Model(nn.ReLU()))
dist.barrier()
dist.destroy_process_group()
