"""Where a step begins and ends, and which phase its time goes to, on real torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import traceml
from tests.capture.conftest import Recorder
from traceml.capture import session as sessions
from traceml.capture.switch import c_module
from traceml.recording.tail import Tail
from traceml.schema import catalog as c

Make = Callable[..., Any]
LOSS = nn.functional.mse_loss


def step(model: Any, optimizer: Any, x: Any, y: Any) -> None:
    optimizer.zero_grad()
    LOSS(model(x), y).backward()
    optimizer.step()


def test_each_step_is_one_row_whose_phases_add_up(recorder: Recorder, make_training: Make) -> None:
    """Each optimizer step is one row, and the slots of a row add up to its duration exactly."""
    model, optimizer, loader = make_training(12)
    for x, y in loader:
        step(model, optimizer, x, y)
    rows = recorder.rows()
    assert list(rows["step"]) == list(range(1, 13))
    slots = [name for name, _ in c.STEP_COLUMNS[3 : 3 + c.RECORDED_SLOTS]]
    total = np.sum([rows[name] for name in slots], axis=0)
    assert (total == rows["end_ns"] - rows["begin_ns"]).all()
    assert (rows["begin_ns"][1:] == rows["end_ns"][:-1]).all()
    assert (rows["samples"] == 4).all()
    for phase in ("input", "forward", "backward", "optimizer"):
        assert (rows[phase] > 0).all()


def test_the_recording_says_whether_the_c_switch_made_it(recorder: Recorder, make_training: Make) -> None:
    """The header holds the measured cost of the switch that is in use, and whether that is the C switch."""
    model, optimizer, loader = make_training(2)
    for x, y in loader:
        step(model, optimizer, x, y)
    overhead = Tail(recorder.folder).read().ranks[0].header["overhead"]
    assert overhead["in_c"] is (c_module is not None)
    assert overhead["switch_ns"] > 0


@pytest.mark.skipif(c_module is None, reason="only the C switch measures itself")
@pytest.mark.timed
@pytest.mark.parametrize("epochs", [1, 6], ids=["one epoch", "sampled steps begin an epoch"])
def test_recording_measures_its_own_cost_in_real_steps(
    recorder: Recorder, make_training: Make, epochs: int
) -> None:
    """Every 16th step, from the ninth on, adds up what recording took: more than nothing, less than the step.

    Submodules are counted too: their calls are wrapped, and only pass. A new epoch in such a step, whose
    `iter(loader)` Python times, ends the sum of none.
    """
    model, optimizer, loader = make_training(48 // epochs)
    for _ in range(epochs):
        for x, y in loader:
            step(nn.Sequential(model), optimizer, x, y)
    tail = Tail(recorder.folder)
    (rank,) = tail.read().ranks
    (live,) = (r.live for r in tail.local_ranks())
    assert live.own_steps == 3
    assert live.own_passes >= 3, "at least one submodule per step"
    reads = [time.perf_counter_ns() for _ in range(100)]
    clock_ns = min(after - before for before, after in pairwise(reads))
    assert live.own_ns > live.own_switches * clock_ns, "each timed call reads the clock twice"
    assert live.own_ns < live.own_steps * np.median(rank.rows["end_ns"] - rank.rows["begin_ns"])
    costs = rank.header["overhead"]
    expected_ns = live.own_switches * costs["switch_ns"] + live.own_steps * costs["row_ns"]
    assert rank.own_scale is not None
    assert rank.own_scale * expected_ns > live.own_ns


@pytest.mark.skipif(c_module is None, reason="only the C switch measures itself")
@pytest.mark.timed
def test_our_cost_in_sampled_steps_is_not_taken_for_that_of_others(
    recorder: Recorder, make_training: Make
) -> None:
    """A rollout every 16 steps, always in a sampled one: the other steps cost what their few calls cost."""
    model, optimizer, loader = make_training(48)
    for index, (x, y) in enumerate(loader):
        if index % 16 == 8:
            for _ in range(1000):
                with torch.no_grad():
                    model(x)
        step(model, optimizer, x, y)
    tail = Tail(recorder.folder)
    (rank,) = tail.read().ranks
    (live,) = (r.live for r in tail.local_ranks())
    assert live.own_switches > 3 * 1000
    assert rank.own_scale is not None
    costs = rank.header["overhead"]
    usual_ns = np.median(rank.rows["switches"]) * costs["switch_ns"] + costs["row_ns"]
    assert rank.own_scale * usual_ns < 0.25 * live.own_ns / live.own_steps


@pytest.mark.parametrize("busy", [True, False])
def test_memory_that_is_costly_to_read_is_read_less_often(
    recorder: Recorder, make_training: Make, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """A reading that takes 20 ms of CPU is not repeated soon; one that only waited, as for a core, is."""
    reads = []

    def slowly() -> int:
        until = time.thread_time() + 0.02
        while busy and time.thread_time() < until:
            pass
        time.sleep(0 if busy else 0.02)
        reads.append(1)
        return 1

    monkeypatch.setattr(sessions, "resident_bytes", slowly)
    model, optimizer, loader = make_training(12)
    for x, y in loader:
        time.sleep(0.06)
        step(model, optimizer, x, y)
    assert len(reads) == 1 if busy else len(reads) > 2


def test_trained_weights_are_bit_for_bit_the_same(recorder: Recorder, make_training: Make) -> None:
    """Training under capture gives exactly the weights of plain training."""
    model, optimizer, loader = make_training(10)
    for x, y in loader:
        step(model, optimizer, x, y)
    recorder.session.off()  # the same code, passing straight through
    plain, optimizer, loader = make_training(10)
    for x, y in loader:
        step(plain, optimizer, x, y)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


def test_evaluation_batches_are_validation_not_input(recorder: Recorder, make_training: Make) -> None:
    """Slow fetches of an evaluation loader never land in `input`, with or without no_grad around them."""

    class Slow(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.05)
            return torch.randn(8), torch.randn(1)

    model, optimizer, loader = make_training(8)
    for index, (x, y) in enumerate(loader):
        step(model, optimizer, x, y)
        if index == 3:
            model.eval()
            for vx, vy in torch.utils.data.DataLoader(Slow(), batch_size=2):
                with torch.no_grad():
                    LOSS(model(vx), vy)
            model.train()
        if index == 5:
            with torch.no_grad():
                for vx, vy in torch.utils.data.DataLoader(Slow(), batch_size=2):
                    LOSS(model(vx), vy)
    validation, inputs = recorder.ms("validation"), recorder.ms("input")
    assert [index for index, ms in enumerate(validation) if ms] == [4, 6]
    assert min(validation[4], validation[6]) > 195
    assert max(inputs) < min(validation[4], validation[6]) / 2


def test_batch_inspected_before_training_is_not_a_step(recorder: Recorder, make_training: Make) -> None:
    """An inspection of a loader, or a sanity check, before the first step is start-up, not input."""
    model, optimizer, loader = make_training(5)
    next(iter(loader))
    with torch.no_grad():
        model(next(iter(loader))[0])
    looked_ns = time.perf_counter_ns()
    for x, y in loader:
        step(model, optimizer, x, y)
    rows = recorder.rows()
    assert len(rows) == 5
    assert rows["begin_ns"][0] >= looked_ns
    assert rows["validation"][0] == 0


def test_end_of_a_loader_is_not_counted_as_a_batch(recorder: Recorder, make_training: Make) -> None:
    """StopIteration counts no micro-batch and no samples; epochs are marked with their workers."""
    model, optimizer, loader = make_training(3)
    for _ in range(3):
        for x, y in loader:
            step(model, optimizer, x, y)
    rows = recorder.rows()
    assert list(rows["micro_batches"]) == [1] * 9
    assert list(rows["samples"]) == [4] * 9
    starts = recorder.events("epoch_start")
    assert [e.step for e in starts] == [1, 4, 7]
    assert all(e.workers == 0 for e in starts)


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_start_up_is_input_and_workers_record_nothing(
    recorder: Recorder, make_training: Make, persistent: bool
) -> None:
    """With forked workers there is one rank; `iter(loader)` is PyTorch's; start-up lands in input."""
    model, optimizer, loader = make_training(4, num_workers=2, persistent_workers=persistent)
    for _ in range(2):
        iterator = iter(loader)
        assert type(iterator).__name__ == "_MultiProcessingDataLoaderIter"
        for x, y in iterator:
            step(model, optimizer, x, y)
    rows = recorder.rows()
    assert len(rows) == 8
    starts = recorder.events("epoch_start")
    assert [e.workers for e in starts] == [2, 2]
    assert rows["input"][0] >= starts[0].duration_ns
    assert len(list((recorder.folder / "recording").glob("rank-*.steps"))) == 1


def test_waiting_on_a_background_thread_is_not_input(recorder: Recorder, make_training: Make) -> None:
    """Only the training thread's own waiting is input."""
    model, optimizer, loader = make_training(6)
    batches = list(loader)
    done = threading.Event()
    waited_ms = 0.0

    class Slow(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.03)
            return torch.randn(8)

    def consume() -> None:
        nonlocal waited_ms
        began = time.perf_counter()
        for _ in torch.utils.data.DataLoader(Slow(), batch_size=1):
            pass
        waited_ms = (time.perf_counter() - began) * 1000
        done.set()

    thread = threading.Thread(target=consume)
    thread.start()
    for x, y in batches:
        step(model, optimizer, x, y)
        time.sleep(0.1)
    assert done.wait(30)
    assert sum(recorder.ms("input")) < waited_ms / 2


def test_loss_module_and_recomputation_are_not_a_second_forward(recorder: Recorder) -> None:
    """A loss module is forward; activation checkpointing re-runs forward inside backward: still backward."""
    from torch.utils.checkpoint import checkpoint

    slept_ms: list[float] = []

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 1)

        def forward(self, x: Any) -> Any:
            began = time.perf_counter()
            time.sleep(0.05)
            slept_ms.append((time.perf_counter() - began) * 1000)
            return self.linear(x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Slow()

        def forward(self, x: Any) -> Any:
            return checkpoint(self.part, x, use_reentrant=False)

    model, criterion = Model(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        criterion(model(torch.randn(4, 8)), torch.randn(4, 1)).backward()
        optimizer.step()
    for phase, slept in (("forward", slept_ms[0::2]), ("backward", slept_ms[1::2])):
        rest = np.subtract(recorder.ms(phase), slept)
        assert min(rest) >= 0
        assert np.median(rest) < 45, "the other phase's sleep is in it too"


def test_failed_step_that_the_user_skips_is_not_recorded(recorder: Recorder, make_training: Make) -> None:
    """An out-of-memory error that the user catches: no row, its time is a gap, the next step is whole."""
    model, optimizer, loader = make_training(6)
    for index, (x, y) in enumerate(loader):
        try:
            if index == 2:
                began_ns = time.perf_counter_ns()
                time.sleep(0.2)
                slept_ns = time.perf_counter_ns()
                model(torch.randn(3, 5))  # wrong shape
            step(model, optimizer, x, y)
        except RuntimeError:
            continue
    rows = recorder.rows()
    assert list(rows["step"]) == [1, 2, 3, 4, 5]
    assert rows["end_ns"][1] <= began_ns < slept_ns <= rows["begin_ns"][2]
    assert len(recorder.events("aborted_step")) == 1


def test_exception_is_attributed_to_the_innermost_phase(recorder: Recorder) -> None:
    """It passes through an exchange and the forward around it: the exchange is where it came from."""

    class Model(nn.Linear):
        def forward(self, x: Any) -> Any:
            if len(x) == 3:
                exchange: Any = torch._C._distributed_c10d._create_work_from_future(torch.futures.Future())
                exchange.wait("no timeout")
            if len(x) == 2:
                raise TypeError
            return super().forward(x)

    model = Model(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for rows, slot in ((3, c.SYNC), (2, c.FORWARD)):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        with pytest.raises(TypeError):
            model(torch.randn(rows, 8))
        assert recorder.session.failed.slot == slot


def test_each_of_several_skipped_batches_is_left_out(recorder: Recorder, make_training: Make) -> None:
    """One bad batch after the other: exceptions may live at the same address, and none joins a good step."""
    model, optimizer, loader = make_training(20)
    for index, (x, y) in enumerate(loader):
        try:
            if index in (5, 6, 7, 8, 12, 13, 17):
                time.sleep(0.02)
                model(torch.randn(3, 5))  # wrong shape
            step(model, optimizer, x, y)
        except RuntimeError:
            pass
    assert len(recorder.events("aborted_step")) == 7
    assert len(recorder.rows()) == 13


def test_trace_step_ends_the_step_and_an_aborted_block_is_not_recorded(recorder: Recorder) -> None:
    """With trace_step the block is the step; the gap before it is input; an exception passes unchanged."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def batches() -> Iterator[Any]:
        for _ in range(5):
            time.sleep(0.02)
            yield torch.randn(4, 4)

    def one(x: Any, fail: bool) -> None:
        with traceml.trace_step(model):
            model(x).sum().backward()
            optimizer.step()
            if fail:
                raise KeyError("mine")

    for index, x in enumerate(batches()):
        if index == 3:
            with pytest.raises(KeyError, match="mine"):
                one(x, fail=True)
        else:
            one(x, fail=False)
    assert len(recorder.rows()) == 4
    assert min(recorder.ms("input")[1:]) > 19.5
    assert recorder.rows()["flags"][-1] & c.FLAG_INPUT_INFERRED


def test_user_phases_are_exclusive_and_named(recorder: Recorder, make_training: Make) -> None:
    """`traceml.phase` takes its own time out of the phase around it, under the user's name."""
    model, optimizer, loader = make_training(5)
    for x, y in loader:
        with traceml.phase("augment"):
            time.sleep(0.01)
            with traceml.phase("inner"):
                time.sleep(0.06)
        step(model, optimizer, x, y)
    assert recorder.session.user_phases.slots == {"augment": c.FIRST_USER, "inner": c.FIRST_USER + 1}
    assert min(recorder.ms("user0")) > 9.5
    assert np.median(recorder.ms("user0")) < np.median(recorder.ms("user1"))  # without what is inside
    assert min(recorder.ms("user1")) > 59


def test_many_user_phases_share_the_last_slot(recorder: Recorder, make_training: Make) -> None:
    """More names than slots: nothing breaks, the later ones are counted together."""
    model, optimizer, loader = make_training(3)
    for x, y in loader:
        for index in range(c.USER_SLOTS + 5):
            with traceml.phase(f"phase {index}"):
                pass
        step(model, optimizer, x, y)
    assert len(recorder.rows()) == 3


def test_gradient_accumulation_counts_micro_batches(recorder: Recorder, make_training: Make) -> None:
    """A step is one optimizer step; its micro-batches and samples are counted, a ragged end included."""
    model, optimizer, loader = make_training(10)
    for index, (x, y) in enumerate(loader):
        LOSS(model(x), y).backward()
        if index % 4 == 3 or index == 9:
            optimizer.step()
            optimizer.zero_grad()
    rows = recorder.rows()
    assert list(rows["micro_batches"]) == [4, 4, 2]
    assert list(rows["samples"]) == [16, 16, 8]


def test_two_optimizers_are_one_step(recorder: Recorder, make_training: Make) -> None:
    """One optimizer for each part of a model: as many steps as iterations, from the first on."""
    model, _, loader = make_training(7)
    first = torch.optim.SGD(model[0].parameters(), lr=0.01)
    second = torch.optim.Adam(model[2].parameters(), lr=0.01)
    for x, y in loader:
        LOSS(model(x), y).backward()
        first.step()
        second.step()
        first.zero_grad()
        second.zero_grad()
    assert list(recorder.rows()["step"]) == list(range(1, 8))


def test_new_optimizer_takes_over_when_the_old_one_is_gone(recorder: Recorder, make_training: Make) -> None:
    """Training in stages: when the old optimizer is gone, the new one ends the steps at once."""
    model, optimizer, loader = make_training(6)
    for _ in range(2):
        for x, y in loader:
            step(model, optimizer, x, y)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    assert len(recorder.rows()) == 12


def test_optimizers_inside_backward_end_the_step_after_the_backward(recorder: Recorder) -> None:
    """One optimizer a parameter, stepping in backward hooks: one step a backward, optimizer time apart."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

    def hook(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    for _ in range(5):
        LOSS(model(torch.randn(4, 8)), torch.randn(4, 1)).backward()
    rows = recorder.rows()
    assert len(rows) == 5
    assert (rows["optimizer"] > 0).all()


def test_eval_mode_training_is_forward_not_validation(recorder: Recorder, make_training: Make) -> None:
    """Fine-tuning with model.eval() and gradients on: the backward that follows makes it forward."""
    model, optimizer, loader = make_training(5)
    model.eval()
    for x, y in loader:
        step(model, optimizer, x, y)
    rows = recorder.rows()
    assert (rows["forward"] > 0).all()
    assert (rows["validation"] == 0).all()


def test_training_on_another_thread_is_recorded(recorder: Recorder, make_training: Make) -> None:
    """A training loop in a worker thread is a training loop."""
    model, optimizer, loader = make_training(8)

    def train() -> None:
        for x, y in loader:
            step(model, optimizer, x, y)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert len(recorder.rows()) == 8


def test_gap_before_a_reused_batch_is_wait_and_not_input(recorder: Recorder, make_training: Make) -> None:
    """Without a loader, a loop over the same tensor waits; only new data makes the gap input."""
    model, optimizer, _ = make_training()
    x, y = torch.randn(4, 8), torch.randn(4, 1)
    for _ in range(6):
        step(model, optimizer, x, y)
        time.sleep(0.01)
    assert max(recorder.ms("input")) == 0
    assert min(recorder.ms("wait_start")[1:]) > 9.5


def test_functional_loss_is_forward_and_a_sleep_beside_it_is_wait(recorder: Recorder) -> None:
    """The CPU time of a costly loss counts as forward; a sleep between forward and backward stays wait."""
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(64, 64)
    loss_cpu_ms = []
    for index in range(60):
        optimizer.zero_grad()
        out = model(x)
        began = time.thread_time()
        for _ in range(40):
            out = torch.tanh(out @ out.T @ out / 64)
        loss = out.sum()
        loss_cpu_ms.append((time.thread_time() - began) * 1000)
        if index >= 30:
            time.sleep(0.01)
        loss.backward()
        optimizer.step()
    rows = recorder.rows()
    forward, wait = rows["forward"] / 1e6, rows["wait_forward"] / 1e6
    assert (forward[10:] >= loss_cpu_ms[10:]).all()
    assert np.median(forward[10:] - loss_cpu_ms[10:]) < 9.5, "the sleep is not forward"
    assert min(wait[30:]) > 9.5


def test_garbage_collection_is_timed(recorder: Recorder, make_training: Make) -> None:
    """A collection on the training thread shows as GC time, in wait where it happened in wait."""
    import gc

    keep = [[i] for i in range(200_000)]
    model, optimizer, loader = make_training(3)
    for x, y in loader:
        step(model, optimizer, x, y)
        gc.collect()
    rows = recorder.rows()
    assert (rows["gc_us"][1:] > 1e3).all()
    assert (rows["gc_wait_us"][1:] > 1e3).all()
    assert len(keep) == 200_000


@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.thorough)])
def test_every_one_of_thousands_of_tiny_steps_is_recorded(recorder: Recorder, count: int) -> None:
    """No queue, so nothing overflows: every step of a very fast loop is on record, in order."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(count):
        (weight * 2.0).backward()
        optimizer.step()
    rows = recorder.rows()
    assert list(rows["step"]) == list(range(1, count + 1))
    assert (rows["begin_ns"][1:] == rows["end_ns"][:-1]).all()


@pytest.mark.parametrize("count", [5, 40])
def test_steps_without_an_optimizer_are_inferred(recorder: Recorder, make_training: Make, count: int) -> None:
    """A hand-written update: each backward pass is a step, marked as inferred, without optimizer time."""
    model, _, loader = make_training(count)
    for x, y in loader:
        nn.functional.mse_loss(model(x), y).backward()
        model.zero_grad()
    recorder.session.close()
    rows = recorder.rows()
    assert list(rows["step"]) == list(range(1, count + 1))
    assert (rows["flags"] & c.FLAG_STEP_INFERRED != 0).all()
    assert (rows["flags"] & (1 << c.OPTIMIZER) == 0).all()


@pytest.mark.parametrize("has_optimizer", [False, True])
def test_functional_models_have_steps(recorder: Recorder, has_optimizer: bool) -> None:
    """Tensors instead of modules, no loader, an update by hand: a step ends with its backward pass. An
    optimizer takes that over, from the first step on.
    """
    weights = [torch.randn(8, 16, requires_grad=True), torch.randn(16, 1, requires_grad=True)]
    optimizer = torch.optim.SGD(weights, lr=0.01)
    for _ in range(40):
        loss = (torch.tanh(torch.randn(4, 8) @ weights[0]) @ weights[1]).pow(2).mean()
        loss.backward()
        if has_optimizer:
            optimizer.step()
        else:
            for weight in weights:
                weight.data -= 0.01 * weight.grad
    recorder.session.close()
    rows = recorder.rows()
    assert list(rows["step"]) == list(range(1, 41))
    assert list(rows["micro_batches"]) == [1] * 40
    assert ((rows["flags"] & c.FLAG_STEP_INFERRED != 0) != has_optimizer).all()


def test_micro_batches_of_the_first_step_are_not_steps(recorder: Recorder, make_training: Make) -> None:
    """Backward passes before the first optimizer step wait: if one comes, they are one step after all."""
    model, optimizer, loader = make_training(24)
    for index, (x, y) in enumerate(loader, 1):
        nn.functional.mse_loss(model(x), y).backward()
        if index % 8 == 0:
            optimizer.step()
            optimizer.zero_grad()
    rows = recorder.rows()
    assert list(rows["step"]) == [1, 2, 3]
    assert list(rows["micro_batches"]) == [8, 8, 8]
    assert (rows["flags"] & (1 << c.OPTIMIZER) != 0).all()
    assert (rows["flags"] & c.FLAG_STEP_INFERRED == 0).all()


def test_another_optimizer_that_takes_over_is_an_event(recorder: Recorder, make_training: Make) -> None:
    """So that longer steps of a new stage are not called a slowdown."""
    model, first, _ = make_training()
    x, y = torch.randn(4, 8), torch.randn(4, 1)
    for optimizer in (first, torch.optim.Adam(model.parameters())):
        for _ in range(10):
            step(model, optimizer, x, y)
    (event,) = recorder.events("new_optimizer")
    assert event.step == 12  # in its second step it is clear that the first one does not follow


def test_loader_that_another_thread_reads_is_an_event(recorder: Recorder, make_training: Make) -> None:
    """Input is inferred then, and the summary does not claim that there is no loader."""
    model, optimizer, loader = make_training(8)
    queue: Queue[Any] = Queue(2)

    def read(batches: Any) -> None:
        for batch in batches:
            queue.put(batch)
        queue.put(None)

    threading.Thread(target=read, args=(iter(loader),)).start()
    while (batch := queue.get(timeout=60)) is not None:
        step(model, optimizer, *batch)
    assert len(recorder.rows()) == 8
    assert recorder.events("loader_on_thread")


def test_forked_process_learns_its_last_gradient(recorder: Recorder, tmp_path: Path) -> None:
    """A forked process begins anew. Its DDP models must be known to what it watches, or every parameter keeps
    its hook and a rank that hangs in backward seems to wait for others.
    """
    recorder.session.begin()
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    model: Any = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        step(model, optimizer, torch.randn(4, 8), torch.zeros(4, 1))
    hooked = [p for p in model.parameters() if p._post_accumulate_grad_hooks]
    del model  # before its group
    torch.distributed.destroy_process_group()
    assert len(hooked) == 1
