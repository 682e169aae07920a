# What is wrong: rank 1 is slow in its own backward pass, and the other ranks wait for it inside theirs.
# Run it:        traceml run examples/distributed/compute_straggler_demo.py --nproc-per-node 2
# TraceML says:  COMPUTE STRAGGLER, r1, backward
# The fix:       give all ranks the same work and the same hardware (`--args --sleep-ms 0`)
"""One rank is slow in its own backward pass, and the other ranks wait for it inside theirs."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class SlowGradient(torch.autograd.Function):
    """Returns its input; its backward takes `sleep_s` longer."""

    @staticmethod
    def forward(ctx, x, sleep_s):
        ctx.sleep_s = sleep_s
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.sleep_s)
        return gradient, None


class Model(nn.Module):
    """Two layers with a slow gradient between them."""

    def __init__(self, sleep_s: float) -> None:
        super().__init__()
        self.first, self.last, self.sleep_s = nn.Linear(64, 512), nn.Linear(512, 1), sleep_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(SlowGradient.apply(torch.relu(self.first(x)), self.sleep_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--straggler", type=int, default=1, help="the slow rank")
    parser.add_argument("--sleep-ms", type=float, default=30.0, help="extra time in its backward")
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    mine = dist.get_rank() == args.straggler
    model = DistributedDataParallel(Model(args.sleep_ms / 1000 if mine else 0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(args.steps):
        x, y = torch.randn(32, 64), torch.randn(32, 1)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    del model  # gloo can hang at the end if the model outlives the group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
