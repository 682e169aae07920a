"""A minimal DDP training: one GPU per rank, or CPU and gloo without GPUs.

    traceml run examples/distributed/ddp_minimal.py --nproc-per-node 2

The script does not use TraceML.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if not on_gpu:
        torch.set_num_threads(1)
    count = 32 * args.steps * dist.get_world_size()
    data = TensorDataset(torch.randn(count, 64), torch.randn(count, 1))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    model = nn.Sequential(nn.Linear(64, args.width), nn.ReLU(), nn.Linear(args.width, 1)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"last loss {loss.item():.4f}")
    del model  # gloo can hang at the end if the model outlives the group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
