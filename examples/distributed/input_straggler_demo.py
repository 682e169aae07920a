# What is wrong: rank 0 loads its data slowly, and all other ranks wait for it.
# Run it:        traceml run examples/distributed/input_straggler_demo.py --nproc-per-node 2
# TraceML says:  INPUT STRAGGLER, r0, input
# The fix:       look at the shard, the storage and the loader workers of that rank (`--args --sleep-ms 0`)
"""One rank loads its data slowly, and all other ranks wait for it. Runs on CPU with gloo."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    """Random batches; each one takes `sleep_ms` longer on the slow rank."""

    def __init__(self, steps: int, sleep_ms: float) -> None:
        self.steps, self.sleep_s = steps, sleep_ms / 1000

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.sleep_s)
        return torch.randn(32, 64), torch.randn(32, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--straggler", type=int, default=0, help="the slow rank")
    parser.add_argument("--sleep-ms", type=float, default=35.0, help="extra time per batch on that rank")
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    mine = dist.get_rank() == args.straggler
    loader = DataLoader(Samples(args.steps, args.sleep_ms if mine else 0.0), batch_size=None)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    del model  # gloo can hang at the end if the model outlives the group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
