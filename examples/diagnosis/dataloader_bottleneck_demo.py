"""The same training twice: once with a slow input path, once with a fast one.

    D=examples/diagnosis/dataloader_bottleneck_demo.py
    traceml run $D --run-name compare_slow --args --scenario slow
    traceml run $D --run-name compare_fast --args --scenario fast

Then compare them: traceml compare compare_slow compare_fast

The script does not use TraceML. In the slow scenario the dataset sleeps for each sample, like a slow decoder
or a remote read. In the fast scenario the samples are in memory.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    """Random samples; each one takes `sleep_ms` to load."""

    def __init__(self, count: int, width: int, sleep_ms: float) -> None:
        self.count = count
        self.sleep_s = sleep_ms / 1000
        self.features = torch.randn(256, width)
        self.labels = torch.randint(0, 10, (256,))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return self.features[index % 256], self.labels[index % 256]


def build_model(width: int, depth: int) -> nn.Module:
    """A plain stack of linear layers."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", choices=("slow", "fast"), default="slow")
    parser.add_argument("--sleep-ms", type=float, default=2.0, help="per sample, in the slow scenario")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--num-samples", type=int, default=15360)
    parser.add_argument("--hidden-dim", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--print-every", type=int, default=20)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    sleep_ms = args.sleep_ms if args.scenario == "slow" else 0.0
    data = Samples(args.num_samples, args.hidden_dim, sleep_ms)
    model = build_model(args.hidden_dim, args.depth).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    for step, (x, y) in enumerate(DataLoader(data, batch_size=args.batch_size), start=1):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
