"""DDP on gloo that knows nothing of TraceML; one rank gets one fault of a known size (they sleep)."""

import argparse
import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from naps import nap
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--rank", type=int, default=1, help="the rank with the fault")
parser.add_argument("--input", type=float, default=0.0, help="extra ms a step")
parser.add_argument("--forward", type=float, default=0.0)
parser.add_argument("--backward", type=float, default=0.0)
parser.add_argument("--optimizer", type=float, default=0.0)
parser.add_argument("--base", type=float, default=15.0, help="ms of forward on every rank")
parser.add_argument("--extra-steps", type=int, default=0)
parser.add_argument("--late", action="append", default=[], help="RANK:PLACE:MS, extra ms a step there")
parser.add_argument("--kill-at", type=int, default=0)
parser.add_argument("--kill-in", default="end", help="the place after that step")
parser.add_argument("--stall-at", type=int, default=0, help="after this step, one long nap")
parser.add_argument("--stall-in", default="start")
parser.add_argument("--stall-ms", type=float, default=0.0)
parser.add_argument("--kill-all-at", type=int, default=0)
parser.add_argument("--starve", default="", help="join this memory cgroup (and a rank's number), then leak")
parser.add_argument("--raise-at", type=int, default=0)
parser.add_argument("--hang-at", type=int, default=0)
parser.add_argument("--timeout-s", type=float, default=1800.0, help="of every exchange")
parser.add_argument("--validate-every", type=int, default=0, help="on one rank; the others wait for it")
parser.add_argument("--validate-ms", type=float, default=0.0)
parser.add_argument("--memory-mb", type=int, default=0)
parser.add_argument("--all-reduce", type=int, default=0, help="explicit all-reduces a step")
parser.add_argument("--all-reduce-mb", type=int, default=1)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--no-ddp", action="store_true")
parser.add_argument("--buffers", action="store_true", help="exchanged in each forward, as BatchNorm's")
parser.add_argument("--rotate", action="store_true", help="the fault moves from rank to rank")
parser.add_argument("--moves-at", type=int, default=0, help="at this step the fault moves to rank 0")
parser.add_argument("--every", type=int, default=1, help="the fault comes in every n-th step only")
parser.add_argument("--average-every", type=int, default=0, help="local SGD: no DDP, parameters averaged")
parser.add_argument("--exit-code", type=int, default=0, help="of the rank with the fault, after all is done")
args = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=args.timeout_s))
rank, world = dist.get_rank(), dist.get_world_size()
step = 0
leaked = []
if args.starve:
    with open(f"{args.starve}{rank}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))


late = dict(words.rsplit(":", 1) for words in args.late)


def fault(place):
    """Every place of a step calls this: input, start, forward, backward, optimizer, end."""
    culprit = 0 if args.moves_at and step >= args.moves_at else args.rank
    if rank == (step % world if args.rotate else culprit) and step % args.every == 0:
        nap(getattr(args, place, 0.0), "fault")
    nap(float(late.get(f"{rank}:{place}", 0)), f"late{rank}")
    if rank == args.rank and (step, place) == (args.stall_at, args.stall_in):
        nap(args.stall_ms, "stall")
    if rank == args.rank and (step, place) == (args.kill_at, args.kill_in):
        os.kill(os.getpid(), signal.SIGKILL)


class Data(Dataset):
    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        fault("input")
        return torch.randn(8, 32), torch.randn(8, 1)


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        fault("backward")
        return grad


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 1)
        if args.buffers:
            self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        nap(args.base, "base")
        fault("forward")
        return self.last(SlowBackward.apply(torch.relu(self.first(x))))


class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        fault("optimizer")
        return super().step(closure)


def validate():
    model.eval()
    with torch.no_grad():
        for x, _ in DataLoader(Data(4), batch_size=None):
            nap(args.validate_ms / 4, "validation")
            model(x)
    model.train()


torch.manual_seed(0)
model = Model()
trained = model if args.no_ddp or args.average_every else DistributedDataParallel(model)
optimizer = SlowSGD(model.parameters(), lr=0.01)
exchanged = torch.zeros(args.all_reduce_mb * 2**18)
kept = [torch.ones(args.memory_mb * 2**18)] if args.memory_mb and rank == args.rank else []
steps = args.steps + (args.extra_steps if rank == args.rank else 0)
for index, (x, y) in enumerate(DataLoader(Data(steps * args.accumulate), batch_size=None)):
    fault("start")
    if (index + 1) % args.accumulate:
        with trained.no_sync():
            nn.functional.mse_loss(trained(x), y).backward()
        continue
    nn.functional.mse_loss(trained(x), y).backward()
    for _ in range(args.all_reduce):
        dist.all_reduce(exchanged)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if args.starve and step >= 20:
        leaked.append(torch.ones(2**22))
    if step == args.kill_all_at:
        os.kill(os.getpid(), signal.SIGKILL)
    if args.average_every and step % args.average_every == 0:
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= world
    fault("end")
    if rank == args.rank and args.validate_every and step % args.validate_every == 0:
        validate()
    if rank == args.rank:
        if step == args.raise_at:
            raise RuntimeError("this rank has had enough")
        if step == args.hang_at:
            time.sleep(3600)
if not args.extra_steps:
    dist.barrier()
del trained  # torch 2.13 can deadlock otherwise
dist.destroy_process_group()
if rank == args.rank:
    sys.exit(args.exit_code)
