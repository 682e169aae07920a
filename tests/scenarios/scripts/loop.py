"""A plain training loop that knows nothing of TraceML; each flag injects one fault of a known size."""

import argparse
import gc
import io
import itertools
import json
import os

import torch
from naps import nap
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=80)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--worker-start", type=float, default=0.0, help="ms until a worker is ready")
parser.add_argument("--persistent", action="store_true", help="keep the workers between epochs")
parser.add_argument("--epochs", type=int, default=1, help="the steps in this many passes over the data")
parser.add_argument("--iterable", action="store_true")
parser.add_argument("--batch-sleep", type=float, default=0.0, help="ms per batch in the dataset")
parser.add_argument("--cold-batches", type=int, default=0, help="the first of the run take longer to load")
parser.add_argument("--cold-ms", type=float, default=0.0)
parser.add_argument("--skip-every", type=int, default=0, help="batches: one fails after its forward pass")
parser.add_argument("--skip-ms", type=float, default=0.0)
parser.add_argument("--forward-sleep", type=float, default=0.0)
parser.add_argument("--backward-sleep", type=float, default=0.0)
parser.add_argument("--optimizer-sleep", type=float, default=0.0)
parser.add_argument("--step-sleep", type=float, default=0.0, help="ms after the optimizer step")
parser.add_argument("--loss-sleep", type=float, default=0.0, help="ms between forward and backward")
parser.add_argument("--log-lines", type=int, default=0, help="lines written and synced to disk per step")
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--validate-every", type=int, default=0)
parser.add_argument("--validate-ms", type=float, default=0.0)
parser.add_argument("--jitter-every", type=int, default=0)
parser.add_argument("--jitter-ms", type=float, default=0.0)
parser.add_argument("--slow-from", type=int, default=0, help="from this step on, a slower forward")
parser.add_argument("--slow-ms", type=float, default=0.0)
parser.add_argument("--grow-ms", type=float, default=0.0, help="forward takes so much longer with each step")
parser.add_argument("--gc-objects", type=int, default=0)
parser.add_argument("--leak-kb", type=int, default=0)
parser.add_argument("--batch-leak-kb", type=int, default=0, help="what the dataset keeps of each batch")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--generator", action="store_true")
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--scaler", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--lbfgs", action="store_true")
parser.add_argument("--clip", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)


class Data(Dataset):
    """One sample is one batch, so that the sleep is per batch whatever the batch size."""

    def __init__(self, batches):
        self.batches = batches
        self.kept = []

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        nap(args.batch_sleep, "batch")
        nap(args.cold_ms if index < args.cold_batches else 0, "cold")
        self.kept.append(bytearray(args.batch_leak_kb * 1000))
        return torch.randn(args.batch, args.width), torch.randn(args.batch, 1)


class Stream(IterableDataset):
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return (Data(1)[0] for _ in range(self.batches))


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        nap(args.backward_sleep, "backward")
        return grad


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, 1))

    def forward(self, x):
        if not args.compile:
            nap(args.forward_sleep, "forward")
            nap(args.slow_ms if step >= args.slow_from else 0, "slow")
            nap(args.grow_ms * step, "grow")
        x = self.body(x)
        return SlowBackward.apply(x) if args.backward_sleep else x


class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        nap(args.optimizer_sleep, "optimizer")
        return super().step(closure)


def generator(batches):
    data = Data(batches)
    for index in range(batches):
        yield data[index]


def validate(model):
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(Data(4), batch_size=None):
            nap(args.validate_ms / 4, "validation")
            nn.functional.mse_loss(model(x), y)
    model.train()


model = Model()
trained = torch.compile(model, backend="eager", fullgraph=True) if args.compile else model
optimizer = SlowSGD(model.parameters(), lr=1e-3)
if args.lbfgs:
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=2)
scaler = torch.amp.GradScaler("cpu") if args.scaler else None
batches = args.steps * args.accumulate // args.epochs
if args.generator:
    loader = generator(batches)
else:
    source = Stream(batches) if args.iterable else Data(batches)
    loader = DataLoader(
        source,
        batch_size=None,
        num_workers=args.workers,
        persistent_workers=args.persistent,
        worker_init_fn=lambda worker: nap(args.worker_start, "worker start"),
    )
log = open("train.log", "w") if args.log_lines else None
kept, keep_alive = [], []
step = 0
if args.gc_objects:
    keep_alive = [[i] for i in range(args.gc_objects)]

for index, (x, y) in enumerate(itertools.chain.from_iterable(loader for _ in range(args.epochs))):
    step = index // args.accumulate
    if index % args.accumulate == 0:
        optimizer.zero_grad()
    if args.lbfgs:

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(trained(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        continue
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast):
        loss = nn.functional.mse_loss(trained(x), y)
    nap(args.loss_sleep, "loss")
    if args.skip_every and index % args.skip_every == args.skip_every - 1:
        try:
            nap(args.skip_ms, "skip")
            raise RuntimeError("this batch is bad")
        except RuntimeError:
            continue
    if scaler is not None:
        if step == 5:
            loss = loss * float("inf")  # the scaler skips this step
        scaler.scale(loss).backward()
    else:
        loss.backward()
    if (index + 1) % args.accumulate:
        continue
    if args.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    nap(args.step_sleep, "step")
    if args.jitter_every and step % args.jitter_every == args.jitter_every - 1:
        nap(args.jitter_ms, "jitter")
    if log is not None:
        for line in range(args.log_lines):
            log.write(json.dumps({"step": step, "line": line, "loss": loss.item()}) + "\n")
            log.flush()
            os.fsync(log.fileno())
    if args.checkpoint:
        torch.save(model.state_dict(), io.BytesIO())
        torch.save(model.state_dict(), "checkpoint.pt")
    if args.validate_every and step % args.validate_every == args.validate_every - 1:
        validate(model)
    if args.gc_objects:
        gc.collect()
    if args.leak_kb:
        kept.append(torch.zeros(args.leak_kb * 256).fill_(1.0))
print("done")
