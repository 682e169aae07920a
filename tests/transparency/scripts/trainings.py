"""Small trainings that look at what a tool could change. Run as `python trainings.py NAME`; knows no TraceML.

Each prints what must be the same plainly and traced: results, types, counts, weights and random state. A case
is a function; its row in test_transparency.py says how many steps it completes.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import io
import os
import pickle
import sys
import threading
import weakref
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.body(x)))


def train(steps: int = 6, model: Any = None, optimizer: Any = None) -> Any:
    model = model if model is not None else Net()
    optimizer = optimizer if optimizer is not None else torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(4 * steps, 8)), batch_size=4, shuffle=True):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    return model


def plain_loop() -> None:
    train(20)


def lazy_module_moves() -> None:
    print(nn.LazyLinear(4).to("cpu"))
    train()


def cloudpickle_of_a_script_class() -> None:
    import cloudpickle

    class Mine(Net):
        pass

    model = train(model=Mine())
    again = cloudpickle.loads(cloudpickle.dumps(model))
    print((again(torch.ones(1, 8)) - model(torch.ones(1, 8))).tolist())


def functions_pickle() -> None:
    import torch.distributed as dist

    train()
    for function in (
        *(torch.save, nn.utils.clip_grad_norm_, dist.all_reduce, dist.barrier),
        *(torch.autograd.grad, torch.autograd.backward),
    ):
        print(pickle.loads(pickle.dumps(function)) is function)


def compiled_all_reduce() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    @torch.compile(fullgraph=True, backend="eager")
    def doubled(x: Any) -> Any:
        y = x * 2
        dist.all_reduce(y)
        return y

    train()
    print(doubled(torch.ones(2)))
    dist.destroy_process_group()


def compiled_model() -> None:
    model = Net()
    print(train(model=torch.compile(model, fullgraph=True, backend="eager")) is not None)


def scripted_grad() -> None:
    train()

    @torch.jit.script
    def slope(x: torch.Tensor):
        return torch.autograd.grad([(x * x).sum()], [x])

    print(slope(torch.ones(2, requires_grad=True)))


def deep_nesting() -> None:
    model: Any = nn.Identity()
    for _ in range(200):
        model = nn.Sequential(model)
    print(model(torch.ones(1)))
    train()
    print(model(torch.ones(1)))


def flop_counter() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        train()
    print(counter.get_total_flops())


def symbolic_trace() -> None:
    train(model=nn.Linear(8, 1))
    print(torch.fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8), nn.ReLU())).graph)


def module_call_patched_by_the_user() -> None:
    before, calls = nn.Module.__call__, []

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(type(self).__name__)
        return before(self, *args, **kwargs)

    nn.Module.__call__ = counted
    train(3)
    nn.Module.__call__ = before
    train(3)
    print(len(calls))


def odd_batches() -> None:
    class Numbers(Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, at: int) -> int:
            return at

    class Shapeless:
        shape = None

    for collate in (lambda _: [], lambda _: Shapeless(), lambda rows: {"rows": rows}):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in DataLoader(Numbers(), batch_size=4, collate_fn=collate):
            print(type(batch).__name__)
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()


def odd_iterators() -> None:
    class Lists(DataLoader):
        def _get_iterator(self) -> Any:
            return iter([torch.ones(2, 8)] * 3)

    class Generators(DataLoader):
        def _get_iterator(self) -> Any:
            return (torch.ones(2, 8) for _ in range(3))

    for loader in (Lists([1]), Generators([1])):
        print(type(iter(loader)).__name__, len(list(loader)))
    train()


def optimizer_with_an_argument_of_its_own() -> None:
    class Mine(torch.optim.SGD):
        def step(self, model: Any = None) -> Any:
            print(model.tag)
            return super().step()

    model = Net()
    model.tag = "mine"
    optimizer = Mine(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step(model)


def closures() -> None:
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).pow(2).sum()
        loss.backward()
        return loss

    print(sum(optimizer.step(closure).item() > 0 for _ in range(10)))


def compiled_optimizer() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    for (x,) in DataLoader(TensorDataset(torch.randn(80, 8)), batch_size=4):
        model(x).sum().backward()
        step()


def hand_written_update() -> None:
    model = Net()
    for _ in range(20):
        model(torch.randn(4, 8)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None


def datasets_are_freed() -> None:
    data = TensorDataset(torch.randn(8, 8))
    alive = weakref.ref(data)
    looked_into = iter(DataLoader(data, batch_size=4))
    next(looked_into)
    del data, looked_into
    gc.collect()
    print(alive())
    train()


def torch_s_loader_has_get_data() -> None:
    spec = importlib.util.find_spec("torch")
    print(hasattr(spec.loader, "get_data"), type(spec.loader).__name__)
    train()


def folds() -> None:
    for _ in range(4):
        train(24)


def optimizers_replaced_while_the_old_one_lives() -> None:
    model, kept = Net(), []
    for _ in range(4):
        kept.append(torch.optim.Adam(model.parameters()))
        train(25, model, kept[-1])


def folds_without_a_loader() -> None:
    kept = []
    for _ in range(4):
        model = Net()
        kept.append(torch.optim.Adam(model.parameters()))
        for _ in range(24):
            kept[-1].zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            kept[-1].step()


def stages_without_a_loader() -> None:
    models = [Net() for _ in range(3)]
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()


def training_moves_to_another_thread() -> None:
    for _ in range(3):
        thread = threading.Thread(target=train, args=(20,))
        thread.start()
        thread.join()


def two_training_threads() -> None:
    threads = [threading.Thread(target=train, args=(20,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.manual_seed(0)


def descriptors_closed_by_the_script() -> None:
    train(4)
    os.closerange(3, 256)
    with open("mine.txt", "w") as file:
        train(1100)
        torch.save({}, io.BytesIO())
        file.write("mine")


def replaced_by_exec() -> None:
    train(16)
    if "again" not in sys.argv:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, sys.argv[0], sys.argv[1], "again"])


def mixed_precision_and_clipping() -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for (x,) in DataLoader(TensorDataset(torch.randn(40, 8)), batch_size=4):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().mean()
        loss.backward()
        print(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        scheduler.step()


def exit_code_of_the_script() -> None:
    train()
    sys.exit(7)


def error_of_the_script() -> None:
    train()
    Net()(torch.ones(1, 9))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    state = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
    print("random state", state[:16], train(2)(torch.ones(1, 8)).tolist())
