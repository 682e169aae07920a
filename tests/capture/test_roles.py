"""What a forward pass without gradients is for, and which loader feeds the training, on real torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import traceml
from tests.capture.conftest import Recorder
from traceml.schema import catalog as c

pytestmark = pytest.mark.timed
Make = Callable[..., Any]
LOSS = nn.functional.mse_loss
NAP_MS = 20.0


class Sleeper(nn.Module):
    """A model whose forward pass takes a while."""

    def __init__(self, width: int = 8, ms: float = NAP_MS) -> None:
        super().__init__()
        self.layer, self.ms = nn.Linear(width, 1), ms

    def forward(self, x: Any) -> Any:
        time.sleep(self.ms / 1000)
        return self.layer(x)


class SlowData(torch.utils.data.Dataset[Any]):
    """Samples that take `ms` each."""

    def __init__(self, count: int, ms: float) -> None:
        self.count, self.ms = count, ms

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.ms / 1000)
        return torch.randn(8), torch.randn(1)


def slow_loader(count: int, ms: float, batch_size: int = 2) -> Any:
    return torch.utils.data.DataLoader(SlowData(count, ms), batch_size=batch_size)


def spin(ms: float) -> None:
    """Keep the CPU busy in Python."""
    end = time.thread_time() + ms / 1000
    while time.thread_time() < end:
        pass


def train(model: Any, optimizer: Any, x: Any, y: Any) -> None:
    LOSS(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_teacher_is_no_validation_and_its_loader_feeds_the_training(recorder: Recorder) -> None:
    """Distillation: the slow loader is input from the first step on, the teacher is no_grad work."""
    teacher, model = Sleeper().eval(), nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, _ in slow_loader(16, NAP_MS / 2):
        with torch.no_grad():
            target = teacher(x)
        train(model, optimizer, x, target)
    assert min(recorder.ms("input")) > 0.95 * NAP_MS
    assert min(recorder.ms("no_grad")) > 0.95 * NAP_MS
    assert all(recorder.rows()["flags"] & (1 << c.NO_GRAD))  # measured, so that it counts
    assert not any(recorder.ms("validation"))
    assert list(recorder.rows()["samples"]) == [2] * 8


@pytest.mark.parametrize("mode", [True, False], ids=["train mode", "eval mode"])
def test_a_target_network_between_forward_and_backward_is_part_of_the_step(
    recorder: Recorder, make_training: Make, mode: bool
) -> None:
    """Target, reference and EMA models that run after the model's own pass are no_grad work."""
    target = Sleeper(ms=5).train(mode)
    model, optimizer, loader = make_training(8)
    for x, y in loader:
        out = model(x)
        with torch.no_grad():
            y = y + target(x)
        LOSS(out, y).backward()
        optimizer.step()
    assert min(recorder.ms("no_grad")) > 4.9
    assert not any(recorder.ms("validation"))


def test_generation_in_the_step_is_no_validation(recorder: Recorder, make_training: Make) -> None:
    """GRPO and the like: many passes in eval mode on the training batch, then one with gradients."""
    model, optimizer, loader = make_training(6)
    for x, y in loader:
        model.eval()
        with torch.inference_mode():
            for _ in range(5):
                model(x)
                time.sleep(0.002)
        model.train()
        train(model, optimizer, x, y)
    rows = recorder.rows()
    assert len(rows) == 6
    assert (rows["no_grad"] > 0).all()
    assert not rows["validation"].any()
    # The time between the passes belongs to whoever takes it, not to the model.
    assert min(recorder.ms("wait_no_grad")) > 9.5


@pytest.mark.parametrize("mode", [True, False], ids=["train mode", "eval mode"])
def test_rollouts_between_steps_are_no_validation(recorder: Recorder, mode: bool) -> None:
    """PPO, SAC, DQN: single observations without gradients, environment steps between them, then updates."""
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        model.train(mode)
        for _ in range(6):
            with torch.no_grad():
                model(torch.randn(1, 4))
            time.sleep(0.004)  # the environment
        model.train()
        for _ in range(3):
            x = torch.randn(32, 4)
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
    rows = recorder.rows()
    assert len(rows) == 12
    rollouts = rows[3::3]  # the first one is start-up
    assert (rollouts["no_grad"] > 0).all()
    assert (rollouts["wait_no_grad"] > 19e6).all()
    assert not rows["validation"].any()
    assert np.median(rows["forward"]) < 10e6
    recorder.session.close()
    assert not recorder.events("validation")


def test_a_model_that_is_evaluated_in_every_step_is_part_of_the_step(
    recorder: Recorder, make_training: Make
) -> None:
    """An EMA model in eval mode after every optimizer step is no_grad work, not validation."""
    ema = Sleeper(ms=5).eval()
    model, optimizer, loader = make_training(8)
    for x, y in loader:
        train(model, optimizer, x, y)
        with torch.no_grad():
            ema(x)
    assert min(recorder.ms("no_grad")[2:]) > 4.9
    assert not any(recorder.ms("validation")[2:])


def test_a_teacher_before_the_forward_pass_without_a_loader_is_part_of_the_step(recorder: Recorder) -> None:
    """No loader and a teacher in eval mode: it runs in every step, so it is no validation."""
    teacher, model = Sleeper(ms=5).eval(), nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        x = torch.randn(4, 8)
        with torch.no_grad():
            target = teacher(x)
        train(model, optimizer, x, target)
    assert min(recorder.ms("no_grad")[2:]) > 4.9
    assert not any(recorder.ms("validation")[2:])


def test_a_block_in_eval_mode_now_and_then_is_validation(recorder: Recorder) -> None:
    """nanoGPT's estimate_loss: no loader, a model in eval mode, batches of the training's size."""
    model = Sleeper(ms=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for index in range(12):
        if index in (5, 10):
            model.eval()
            with torch.no_grad():
                for _ in range(5):
                    model(torch.randn(4, 8))
                    time.sleep(0.002)
            model.train()
        train(model, optimizer, torch.randn(4, 8), torch.randn(4, 1))
    validation = recorder.ms("validation")
    assert [index for index, ms in enumerate(validation) if ms > 5] == [5, 10]
    assert not any(recorder.ms("no_grad"))


def test_the_trained_model_in_eval_mode_after_every_step_is_validation(recorder: Recorder) -> None:
    """Full-batch training that evaluates in every epoch: the model itself is switched to eval mode."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(32, 8), torch.randn(32, 1)
    for _ in range(8):
        model.train()
        train(model, optimizer, x, y)
        model.eval()
        with torch.no_grad():
            model(x)
            time.sleep(0.002)
            model(x)
    assert min(recorder.ms("validation")[2:]) > 1.9
    assert not any(recorder.ms("no_grad"))


@pytest.mark.timed
@pytest.mark.parametrize("loaded", [False, True], ids=["one tensor", "loader"])
def test_the_trained_model_evaluated_with_gradients_on_is_validation(
    recorder: Recorder, make_training: Make, loaded: bool
) -> None:
    """Scripts that forget no_grad: the pass before the step feeds no backward pass, so it is not forward."""
    _, _, loader = make_training(8)
    model = Sleeper()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(4, 8), torch.randn(4, 1)
    for batch in loader if loaded else [(x, y)] * 8:
        model.train()
        train(model, optimizer, *batch)
        model.eval()
        model(x)
    assert min(recorder.ms("validation")[1:]) > 0.95 * NAP_MS
    assert max(recorder.ms("forward")) < 1.9 * NAP_MS


def test_a_model_that_trains_in_eval_mode_is_forward(recorder: Recorder, make_training: Make) -> None:
    """Frozen batch norm: after an epoch in training mode the same model trains in eval mode."""
    _, _, loader = make_training(6)
    model = Sleeper()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for mode in (True, False):
        model.train(mode)
        for x, y in loader:
            train(model, optimizer, x, y)
    assert min(recorder.ms("forward")) > 0.95 * NAP_MS
    assert not any(recorder.ms("validation"))


def test_time_after_a_loop_is_not_between_a_batch_and_its_forward_pass(
    recorder: Recorder, make_training: Make
) -> None:
    """Work at the end of an epoch follows the last step; after an evaluation it is around that."""
    model, optimizer, loader = make_training(6)
    for _ in range(3):
        for x, y in loader:
            train(model, optimizer, x, y)
        time.sleep(NAP_MS / 1000)
        for x, _ in loader:
            with torch.no_grad():
                model(x)
        time.sleep(2 * NAP_MS / 1000)
    epochs = recorder.rows()[6::6]
    assert (epochs["wait_start"] > 0.95e6 * NAP_MS).all()
    assert (epochs["wait_other"] > 1.95e6 * NAP_MS).all()
    assert (epochs["wait_input"] < 0.9e6 * NAP_MS).all()


class OwnBatch:
    """What iterators outside of PyTorch give: a batch that is no tensor, tuple or mapping."""

    def __init__(self) -> None:
        time.sleep(NAP_MS / 1000)
        self.x = torch.randn(4, 8)


class TakesBatch(nn.Linear):
    """A model that gets the whole batch."""

    def forward(self, batch: Any) -> Any:
        return super().forward(batch.x)


def test_a_batch_of_a_class_of_its_own_is_input(recorder: Recorder) -> None:
    """Without a loader, a new batch is new data, whatever its class; the same one again is not."""
    model = TakesBatch(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        batch = OwnBatch()
        train(model, optimizer, batch, torch.zeros(4, 1))
    for _ in range(3):
        time.sleep(NAP_MS / 1000)
        train(model, optimizer, batch, torch.zeros(4, 1))
    assert min(recorder.ms("input")[1:4]) > 0.95 * NAP_MS
    assert not any(recorder.ms("input")[4:])


def test_a_loss_module_in_an_evaluation_without_a_loader_is_validation(recorder: Recorder) -> None:
    """Nobody puts a loss into eval mode: fetching the next batch after it still belongs to the evaluation."""
    model, loss = nn.Linear(8, 1), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(8):
        if step == 5:
            model.eval()
            with torch.no_grad():
                for _ in range(4):
                    loss(model(torch.randn(4, 8)), torch.zeros(4, 1))
                    time.sleep(NAP_MS / 1000)
            model.train()
        train(model, optimizer, torch.randn(4, 8), torch.zeros(4, 1))
    took = recorder.ms("validation")
    assert took[5] > 2.9 * NAP_MS
    assert not any(took[:5] + took[6:])
    assert not any(recorder.ms("no_grad"))


def test_evaluation_after_hand_written_updates_is_validation(recorder: Recorder, make_training: Make) -> None:
    """No optimizer is known, so the step is still open when the evaluation begins; its loader is no input."""
    model, _, loader = make_training(20)
    for _ in range(2):
        model.train()
        for x, y in loader:
            LOSS(model(x), y).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(0.01 * parameter.grad)
                    parameter.grad = None
        model.eval()
        for vx, _ in slow_loader(4, 10):
            with torch.no_grad():
                model(vx)
        with torch.no_grad():
            model(torch.randn(4, 8))
    validation = recorder.ms("validation")
    assert max(validation) > 38
    assert sum(ms > 5 for ms in validation) == 1  # the other one is after the last step
    assert not any(recorder.ms("no_grad"))


def _whole(loader: Any) -> Iterator[Any]:
    yield from loader


def _one_ahead(loader: Any) -> Iterator[Any]:
    """As Accelerate does: the next batch is fetched before the last one is handed out."""
    batches = iter(loader)
    batch = next(batches, None)
    while batch is not None:
        following = next(batches, None)
        yield batch
        batch = following


def _broken_off(loader: Any) -> Iterator[Any]:
    for index, batch in enumerate(loader):
        if index == 3:
            return
        yield batch


@pytest.mark.parametrize("walk", [_whole, _one_ahead, _broken_off])
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad inside", "eval mode only"])
def test_another_loader_that_feeds_no_backward_is_validation(
    recorder: Recorder, make_training: Make, walk: Callable[[Any], Iterator[Any]], grad: bool
) -> None:
    """Fetched with gradients on, used without or in eval mode only: its batches and passes are validation."""
    model, optimizer, loader = make_training(8)
    for index, (x, y) in enumerate(loader):
        train(model, optimizer, x, y)
        if index == 3:
            model.eval()
            for vx, vy in walk(slow_loader(8, 10)):
                with torch.set_grad_enabled(grad):
                    LOSS(model(vx), vy)
            model.train()
    validation, inputs = recorder.ms("validation"), recorder.ms("input")
    assert [index for index, ms in enumerate(validation) if ms] == [4]
    assert validation[4] > 55
    assert max(inputs[1:]) < validation[4] / 3
    assert not any(recorder.ms("no_grad"))
    assert list(recorder.rows()["samples"]) == [4] * 8


def test_evaluation_before_the_first_and_after_the_last_step_is_an_event(
    recorder: Recorder, make_training: Make
) -> None:
    """What belongs to no step is not lost: it is on record as a validation event with its duration."""
    model, optimizer, loader = make_training(4)

    def evaluate() -> None:
        for vx, _ in slow_loader(4, 10):
            with torch.no_grad():
                model(vx)

    evaluate()
    for x, y in loader:
        train(model, optimizer, x, y)
    evaluate()
    recorder.session.close()
    assert not any(recorder.ms("validation"))
    before, after = recorder.events("validation")
    assert (before.step, after.step) == (0, 4)
    assert min(before.duration_ns, after.duration_ns) > 38e6


def test_a_loader_without_a_length_feeds_the_training(recorder: Recorder) -> None:
    """Iterators of iterable data sets have no `len()`: asking for their truth value would raise."""

    class Endless(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            while True:
                yield torch.randn(8), torch.randn(1)

    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(torch.utils.data.DataLoader(Endless(), batch_size=4))
    for _ in range(5):
        train(model, optimizer, *next(batches))
    assert list(recorder.rows()["samples"]) == [4] * 5


def test_two_loaders_for_one_step_are_both_input(recorder: Recorder, make_training: Make) -> None:
    """Semi-supervised training: one batch of each loader per step, a teacher on one of them."""
    teacher = Sleeper(ms=1).eval()
    model, optimizer, loader = make_training(6)
    for (x, y), (u, _) in zip(loader, slow_loader(24, 5, batch_size=4), strict=True):
        with torch.no_grad():
            target = teacher(u)
        (LOSS(model(x), y) + LOSS(model(u), target)).backward()
        optimizer.step()
    assert min(recorder.ms("input")) > 19
    assert not any(recorder.ms("validation"))
    assert list(recorder.rows()["micro_batches"][1:]) == [2] * 5


def test_a_batch_made_between_forward_and_backward_is_input(recorder: Recorder) -> None:
    """nanoGPT fetches the next batch there: once that is seen it is input, and never forward."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def get_batch() -> tuple[Any, Any]:
        spin(NAP_MS)
        return torch.randn(4, 8), torch.randn(4, 1)

    x, y = get_batch()
    for _ in range(16):
        loss = LOSS(model(x), y) / 2
        x, y = get_batch()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert np.median(recorder.ms("forward")[-6:]) < NAP_MS / 2
    assert np.median(recorder.ms("input")[-6:]) > 0.9 * NAP_MS
    assert all(recorder.rows()["flags"][-6:] & c.FLAG_INPUT_INFERRED)
    assert len(recorder.events("early_batch")) == 1


def test_work_between_forward_and_backward_that_makes_no_batch_is_wait(recorder: Recorder) -> None:
    """Metrics or an environment there: neither forward nor input, and the row says that the CPU was busy."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(16):
        loss = LOSS(model(torch.randn(4, 8)), torch.zeros(4, 1))
        spin(NAP_MS)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert np.median(recorder.ms("wait_forward")[-6:]) > 0.9 * NAP_MS
    assert np.median(recorder.ms("forward")[-6:]) < NAP_MS / 2
    assert np.median(recorder.rows()["busy_wait_us"][-6:]) > 900 * NAP_MS


def test_environment_steps_between_forward_passes_are_not_the_models(recorder: Recorder) -> None:
    """Actor-critic: a pass with gradients per environment step, one update per episode."""
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        chosen = []
        for _ in range(5):
            chosen.append(model(torch.randn(4)).log_softmax(-1)[0])
            spin(4)
        torch.stack(chosen).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    step = np.median(recorder.ms("wait_forward")[-4:])
    assert step > 0.8 * 20
    assert np.median(recorder.ms("forward")[-4:]) < 0.3 * step


def busy_wait_ms(recorder: Recorder) -> float:
    """The thread's CPU time in wait, in a late step. Wait itself has what a busy machine takes away, too."""
    return float(np.median(recorder.rows()["busy_wait_us"][-8:])) / 1e3


def heavy(x: Any, w: Any) -> Any:
    for _ in range(4):
        x = torch.tanh(x @ w)
    return x


def test_a_functional_model_is_forward(recorder: Recorder, make_training: Make) -> None:
    """No module call at all: tensor work before the backward pass is the forward pass, not wait."""
    _, _, loader = make_training(16)
    w = torch.randn(600, 600, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1e-6)
    base = torch.randn(64, 600)
    for x, _ in loader:
        heavy(base + x.mean(), w / 30).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert np.median(recorder.ms("forward")[-8:]) > 3 * busy_wait_ms(recorder)


def test_a_model_whose_forward_is_called_directly_is_forward(recorder: Recorder, make_training: Make) -> None:
    """`model.forward(x)`: the work between its layers belongs to the forward pass too."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(600, 600), nn.Linear(600, 600)

        def forward(self, x: Any) -> Any:
            return self.last(heavy(self.first(x), self.first.weight))

    _, _, loader = make_training(16)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    base = torch.randn(64, 600)
    for x, _ in loader:
        model.forward(base + x.mean()).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert np.median(recorder.ms("forward")[-8:]) > 3 * busy_wait_ms(recorder)


def test_features_of_an_observation_are_no_samples(recorder: Recorder) -> None:
    """Samples are the batch dimension of loader batches; without a loader they are not known."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        model(torch.randn(4)).sum().backward()
        optimizer.step()
    assert not recorder.rows()["samples"].any()


def test_blocks_with_a_teacher_and_validation_between_them(recorder: Recorder, make_training: Make) -> None:
    """A pass without gradients in a `trace_step` block is no_grad work; in eval mode between, validation."""
    teacher = Sleeper(ms=2).eval()
    model, optimizer, loader = make_training(12)
    for index, (x, _) in enumerate(loader):
        with traceml.trace_step(model):
            with torch.no_grad():
                target = teacher(x)
            train(model, optimizer, x, target)
        if index == 6:
            with torch.no_grad():
                teacher(x)
    rows = recorder.rows()
    assert len(rows) == 12
    assert min(recorder.ms("no_grad")) > 1.9
    assert [index for index, ms in enumerate(recorder.ms("validation")) if ms] == [7]


def test_workers_of_a_loader_with_its_own_iter_are_seen(recorder: Recorder) -> None:
    """A resumable loader makes its iterator itself: without its workers, the advice would be to add some."""

    class Resumable(DataLoader[Any]):
        def __iter__(self) -> Any:
            return self._get_iterator()

    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = Resumable(TensorDataset(torch.randn(32, 8), torch.randn(32, 1)), batch_size=8, num_workers=2)
    for _ in range(2):
        for x, y in loader:
            LOSS(model(x), y).backward()
            optimizer.step()
    assert [event.workers for event in recorder.events("epoch_start")] == [2, 2]
    assert list(recorder.rows()["samples"]) == [8] * 8
