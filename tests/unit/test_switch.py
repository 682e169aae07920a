"""The phase switch on a fake clock: the sum always closes, and C and Python are one switch."""

from __future__ import annotations

import os
import sysconfig
from threading import get_ident
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import examples
from traceml.capture.slots import (
    AFTER_PENDING,
    AFTER_VALIDATION,
    FIRST_SLOT,
    NODE_FACTORS,
    PASS,
    PENDING_EVAL,
    PENDING_FETCH,
    PENDING_NO_GRAD,
    ROW,
    SHORT_GAP_NS,
    SLOTS,
    is_wait,
)
from traceml.capture.switch import PythonSwitch, Switch, c_module
from traceml.recording.layout import SEQUENCE, padded_row_size
from traceml.schema import catalog as c

PURE = os.environ.get("TRACEML_PURE_PYTHON", "0") not in ("", "0")
ROW_SIZE = padded_row_size(ROW.size)
COLUMNS = [name for name, _ in c.STEP_COLUMNS]
BOTH = pytest.mark.parametrize("kind", [PythonSwitch, Switch], ids=["python", "fast"])


class Clock:
    """Advances when told, and by one nanosecond a reading, so that an extra reading shows."""

    def __init__(self, start: int = 1_000) -> None:
        self.now = start

    def __call__(self) -> int:
        self.now += 1
        return self.now


class Driver:
    """Plays one sequence of operations on one switch and keeps everything that it answered."""

    def __init__(self, kind: type[PythonSwitch]) -> None:
        self.clock, self.cpu = Clock(), Clock()
        self.blocked = 0
        self.switch = kind(clock=self.clock, thread_clock=lambda: (self.cpu(), self.blocked))
        self.switch.thread = get_ident()
        self.marks: list[int] = []
        self.switch.mark = self.marks.append
        self.nodes = 0
        self.switch.count_nodes = lambda: self.nodes
        self.live = bytearray(4)
        self.switch.show_in(self.live, 2)
        self.open: list[int] = []
        self.rows: list[bytes] = []
        self.answers: list[Any] = []

    def play(self, operations: list[tuple[Any, ...]]) -> None:
        for name, *arguments in operations:
            self.answers.append(getattr(self, "do_" + name)(*arguments))
            self.answers.append(self.state())

    def state(self) -> tuple[Any, ...]:
        s = self.switch
        counts = (s.fetches, s.forwards, s.backwards, s.samples, s.tokens, s.gc_ns, s.gc_wait_ns)
        more = (s.busy_wait_ns, s.watching, s.step_flags)
        return (*self.totals(), s.current, s.since, s.begin, s.switches, *counts, *more, self.live[2])

    def totals(self) -> list[int]:
        return [self.switch.charged(slot) for slot in range(SLOTS)]

    def do_tick(self, wall: int, cpu: int, blocks: bool = True) -> None:
        self.clock.now += wall
        self.cpu.now += cpu
        self.blocked += blocks

    def do_nodes(self, count: int) -> None:
        """Autograd records this many operations."""
        self.nodes += count

    def _entered(self, outer: int) -> int:
        if outer != PASS:
            self.open.append(outer)
        return outer

    def do_enter(self, slot: int) -> int:
        return self._entered(self.switch.enter(slot))

    def do_enter_inside(self, slot: int) -> int:
        return self._entered(self.switch.enter_inside(slot))

    def do_enter_compute(self, slot: int) -> int:
        return self._entered(self.switch.enter_compute(slot))

    def do_enter_optimizer(self) -> int:
        return self._entered(self.switch.enter_optimizer())

    def do_enter_validation(self) -> int:
        return self._entered(self.switch.enter_validation())

    def do_enter_pending(self) -> int:
        return self._entered(self.switch.enter_pending())

    def do_leave(self) -> int | None:
        return self.switch.leave(self.open.pop()) if self.open else None

    def do_return_to(self) -> int | None:
        return self.switch.return_to(self.open.pop()) if self.open else None

    def do_flush(self) -> None:
        self.switch.flush(self.clock())

    def do_move(self, source: int, target: int) -> None:
        self.switch.move(source, target)

    def do_fetched(self, samples: int, tokens: int) -> None:
        self.switch.fetched(samples, tokens)

    def do_collected(self, pause: int) -> None:
        self.switch.gc_ns += pause
        self.switch.gc_wait_ns += pause // 2

    def do_restart(self) -> None:
        self.switch.restart(self.clock())

    def do_publish(self, at_last_switch: bool) -> bytes:
        now = self.switch.since if at_last_switch else self.clock()
        row = self._row_target()
        self.switch.publish(now, 0b1000)
        self.rows.append(bytes(row))
        return bytes(row)

    def _row_target(self) -> bytearray:
        """Room for one more row; the columns that the session fills in."""
        row = bytearray(ROW_SIZE)
        s = self.switch
        s.rows_into(row, 0, ROW_SIZE, ROW_SIZE, len(self.rows))
        s.rss, s.allocated, s.reserved, s.flags = 11, 22, 33, 0b0011
        return row

    def do_gradient_ready(self) -> None:
        self.switch.gradient_ready(None)

    def do_leave_step(self, fast_end: bool, leads: bool, due: bool) -> bool | None:
        """Leave as an optimizer's step does: the row is written at once when nothing needs a look."""
        if not self.open:
            return None
        row, s, optimizer = self._row_target(), self.switch, self
        s.fast_end, s.leader, s.reading_due = fast_end, id(optimizer) if leads else 1, 0 if due else 1 << 60
        s.leave(self.open.pop())
        is_over = s.ends_step(optimizer)
        if is_over:
            self.rows.append(bytes(row))
        return is_over

    def do_foreign(self, slot: int) -> list[int]:
        """What another thread is told; nothing may change."""
        s = self.switch
        s.thread += 1
        answers = [s.enter(slot), s.enter_compute(slot), s.enter_optimizer(), s.enter_validation()]
        answers.append(s.enter_pending())
        s.thread -= 1
        return answers


def value(row: bytes, column: str) -> int:
    return int(ROW.unpack_from(row)[COLUMNS.index(column)])


PHASE_SLOTS = st.integers(0, c.FIRST_USER - 1)
ENTERED = st.one_of(
    PHASE_SLOTS,
    st.integers(c.FIRST_USER, c.FIRST_WAIT - 1),
    st.sampled_from([PENDING_EVAL, PENDING_FETCH, PENDING_NO_GRAD]),
)
TICK = st.one_of(st.integers(0, 500), st.integers(99_990, 100_010), st.integers(0, 10**10))
OPERATION = st.one_of(
    st.tuples(st.just("tick"), TICK, TICK, st.booleans()),
    st.tuples(st.just("enter"), ENTERED),
    st.tuples(st.just("enter_inside"), ENTERED),
    st.tuples(st.just("enter_compute"), st.sampled_from([c.FORWARD, c.BACKWARD, c.OPTIMIZER])),
    st.tuples(st.sampled_from(["enter_optimizer", "enter_validation", "enter_pending"])),
    st.tuples(st.sampled_from(["leave", "leave", "return_to", "flush"])),
    st.tuples(st.just("nodes"), st.integers(0, 100)),
    st.tuples(
        st.just("move"),
        st.integers(FIRST_SLOT, SLOTS + FIRST_SLOT - 1),
        st.integers(FIRST_SLOT, SLOTS + FIRST_SLOT - 1),
    ).filter(lambda o: o[1] != o[2]),
    st.tuples(st.just("fetched"), st.integers(0, 4096), st.integers(0, 10**6)),
    st.tuples(st.just("collected"), st.integers(0, 10**8)),
    st.tuples(st.just("publish"), st.booleans()),
    st.tuples(st.just("gradient_ready")),
    st.tuples(st.just("leave_step"), st.booleans(), st.booleans(), st.booleans()),
    st.tuples(st.just("restart")),
    st.tuples(st.just("foreign"), PHASE_SLOTS),
)
GAP = st.sampled_from([0, 60, SHORT_GAP_NS - 2, SHORT_GAP_NS + 1, 5_000_000, 80_000_000])


def loop(fetch: int, gap: int, cpu: int, nodes: int, blind: bool) -> list[tuple[Any, ...]]:
    """A training step as it usually goes, so that gaps that count as loss are visited often.

    A blind one has no module call in sight: its forward pass is the gap before backward.
    """
    forward = [("enter_compute", c.FORWARD), ("tick", 1_000, 1_000), ("nodes", 7), ("leave",)]
    return [
        ("enter", PENDING_FETCH),
        ("tick", fetch, fetch),
        ("leave",),
        *([] if blind else forward),
        ("tick", gap, cpu),
        ("nodes", nodes),
        ("enter_compute", c.BACKWARD),
        ("leave",),
        ("enter_optimizer",),
        ("leave",),
        ("publish", True),
    ]


LOOP = st.builds(loop, TICK, GAP, GAP, st.integers(0, 20), st.booleans())
TRAINING = st.lists(LOOP, min_size=4, max_size=30)
# After 70 steps with short watched gaps, what they use is read in one of seven only.
LONG_TRAINING = st.tuples(
    st.builds(loop, TICK, st.just(300_000), GAP, st.integers(0, 20), st.booleans()), TRAINING
).map(lambda parts: [parts[0]] * 75 + parts[1])
SEQUENCES = st.one_of(
    st.lists(st.one_of(OPERATION.map(lambda o: [o]), LOOP), max_size=40), TRAINING, LONG_TRAINING
).map(lambda parts: [operation for part in parts for operation in part])


def test_the_fast_switch_is_the_one_in_use() -> None:
    """Every Python that can have the C switch uses it; else the comparison below would prove nothing."""
    if PURE or sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert c_module is None
    else:
        assert c_module is not None, (
            "traceml.capture._switch is not built: run `pip install -e .` (or set TRACEML_PURE_PYTHON=1 "
            "to test the Python switch alone)"
        )


@BOTH
@given(operations=SEQUENCES)
@examples(300)
def test_any_nesting_closes_the_sum(kind: type[PythonSwitch], operations: list[Any]) -> None:
    """After any operation all slots together hold exactly the time since the step began."""
    driver = Driver(kind)
    for operation in operations:
        driver.play([operation])
        totals = driver.answers[-1][:SLOTS]
        assert sum(totals) == driver.switch.since - driver.switch.begin
        assert min(totals) >= 0
    driver.do_flush()
    assert sum(driver.totals()) == driver.clock.now - driver.switch.begin


@BOTH
@given(operations=SEQUENCES)
@examples(150)
def test_published_rows_tile_the_time(kind: type[PythonSwitch], operations: list[Any]) -> None:
    """A row's slots add up to its end minus its begin, and it begins where the last one ended."""
    driver = Driver(kind)
    steps = [o for o in operations if o[0] != "restart"]
    began = driver.switch.begin
    driver.play([*steps, ("publish", False)])
    for number, row in enumerate(driver.rows, 1):
        slots = [value(row, name) for name in COLUMNS[3 : 3 + c.RECORDED_SLOTS]]
        assert value(row, "begin_ns") == began
        began = value(row, "end_ns")
        assert sum(slots) == began - value(row, "begin_ns")
        assert value(row, "step") == number == SEQUENCE.unpack_from(row, ROW_SIZE - 8)[0]


@given(operations=SEQUENCES)
@examples(400)
def test_python_and_c_are_one_switch(operations: list[Any]) -> None:
    """The same operations give the same answers, totals, counts, rows, device marks and clock readings."""
    slow, fast = Driver(PythonSwitch), Driver(Switch)
    slow.play(operations)
    fast.play(operations)
    assert fast.answers == slow.answers
    assert fast.rows == slow.rows
    assert fast.marks == slow.marks
    assert (fast.clock.now, fast.cpu.now) == (slow.clock.now, slow.cpu.now)


@BOTH
def test_short_watched_gaps_are_read_seldom_and_counted_alike(kind: type[PythonSwitch]) -> None:
    """The thread runs in half of each 0.3 ms gap: 1,400 steps read that less than a third as often as there
    are gaps, although one in 200 is longer, and every row says half, also after gaps that were not read."""
    d, began = Driver(kind), Clock().now
    step, hiccup = loop(1_000, 300_000, 150_000, 0, False), loop(1_000, 1_500_000, 150_000, 0, False)
    d.play(7 * (199 * step + hiccup))
    readings = d.cpu.now - began - 1_400 * sum(o[2] for o in step if o[0] == "tick")
    assert 0 < readings < 2 * 1_400 // 3  # two of a step
    busy = [
        value(row, "busy_wait_us") for number, row in enumerate(d.rows, 1) if number > 10 and number % 200
    ]
    assert min(busy) >= 140
    assert max(busy) <= 160


@BOTH
def test_short_gaps_of_one_place_are_not_taken_for_each_other(kind: type[PythonSwitch]) -> None:
    """Between two modules the thread sleeps 0.3 ms, then a loss takes 0.6 ms: in every step the sleep stays
    wait and the loss is the model's, also in the steps that read neither."""
    d = Driver(kind)
    forward = [("enter_compute", c.FORWARD), ("tick", 1_000_000, 1_000_000), ("nodes", 7), ("leave",)]
    *head, loss, nodes, backward, left, optimizer, done, publish = loop(0, 600_000, 600_000, 20, True)
    sleep = [*forward, ("tick", 300_000, 0), *forward]
    d.play(300 * [*head, *sleep, loss, nodes, backward, left, optimizer, done, publish])
    for row in d.rows[10:]:
        assert value(row, "wait_forward") // 50_000 == 6
        assert value(row, "forward") // 100_000 == 26


@BOTH
def test_work_after_the_last_phase_of_a_step_is_busy(kind: type[PythonSwitch]) -> None:
    """A hand-written update after backward, until the step ends without an optimizer: the thread ran in all
    of it. A sleep in its place is not busy."""
    for ran in (2_000_000, 0):
        d, step = Driver(kind), loop(1_000, 0, 0, 5, False)[:-3]
        d.play(100 * [*step, ("tick", 2_000_000, ran), ("publish", False)])
        assert {value(row, "busy_wait_us") for row in d.rows[10:]} == {ran // 1000}


@BOTH
def test_watched_gaps_above_a_millisecond_are_always_read(kind: type[PythonSwitch]) -> None:
    """Gaps of 5 ms run half the time in some steps and not at all in others: each row says its own."""
    d = Driver(kind)
    for number in range(200):
        d.play(loop(1_000, 5_000_000, 2_500_000 if number % 3 else 0, 0, False))
    busy = [value(row, "busy_wait_us") for row in d.rows]
    assert all((said > 2_400) == (number % 3 > 0) for number, said in enumerate(busy) if number > 10)


@BOTH
def test_nested_phases_are_exclusive(kind: type[PythonSwitch]) -> None:
    """A copy to the device inside forward is H2D and not forward."""
    d = Driver(kind)
    d.play([("enter", c.FORWARD), ("tick", 1000, 0), ("enter_inside", c.H2D), ("tick", 500, 0)])
    d.play([("leave",), ("tick", 2000, 0), ("leave",)])
    assert d.switch.charged(c.H2D) == 501
    assert d.switch.charged(c.FORWARD) == 3002


@BOTH
def test_a_phase_inside_a_phase_passes_through(kind: type[PythonSwitch]) -> None:
    """Entering a phase while one is running answers PASS and charges nothing: forward stays forward."""
    d = Driver(kind)
    d.play([("enter", c.FORWARD)])
    before = d.state()
    assert [d.switch.enter(c.INPUT), d.switch.enter_compute(c.OPTIMIZER)] == [PASS, PASS]
    assert d.switch.enter_validation() == PASS
    assert d.state() == before


@BOTH
@given(operations=SEQUENCES, slot=PHASE_SLOTS)
@examples(60)
def test_other_threads_pass_straight_through(
    kind: type[PythonSwitch], operations: list[Any], slot: int
) -> None:
    """Only the training thread may switch: whatever the state, another thread changes nothing."""
    d = Driver(kind)
    d.play(operations)
    before, now = d.state(), d.clock.now
    assert d.do_foreign(slot) == [PASS] * 5
    assert (d.state(), d.clock.now) == (before, now)


@BOTH
def test_a_switch_reads_the_clock_once(kind: type[PythonSwitch]) -> None:
    """Entering and leaving a phase cost one clock reading each."""
    d = Driver(kind)
    before = d.clock.now
    d.play([("enter", c.INPUT), ("leave",), ("enter_compute", c.FORWARD), ("leave",), ("enter_validation",)])
    assert d.clock.now - before == 5


@BOTH
def test_a_short_gap_after_forward_is_the_loss(kind: type[PythonSwitch]) -> None:
    """A functional loss has no hook: up to 0.1 ms between forward and backward is charged to forward."""
    d = Driver(kind)
    d.play([("enter", c.FORWARD), ("leave",)])
    forward = d.switch.charged(c.FORWARD)
    d.play([("tick", SHORT_GAP_NS - 1, 0), ("enter_compute", c.BACKWARD)])
    assert d.switch.charged(c.FORWARD) == forward + SHORT_GAP_NS
    assert d.switch.charged(c.WAIT_FORWARD) == 0


FORWARD_NS, FORWARD_NODES = 1_000_000, 10


def _step(gap: int, cpu: int, nodes: int = 100) -> list[tuple[Any, ...]]:
    """A step with this gap between forward and backward, in which autograd records `nodes` operations."""
    return [
        ("enter_compute", c.FORWARD),
        ("tick", FORWARD_NS, FORWARD_NS),
        ("nodes", FORWARD_NODES),
        ("leave",),
        ("tick", gap, cpu),
        ("nodes", nodes),
        ("enter_compute", c.BACKWARD),
        ("leave",),
        ("publish", True),
    ]


@BOTH
def test_a_long_gap_is_loss_only_as_far_as_the_thread_worked(kind: type[PythonSwitch]) -> None:
    """Once long gaps are seen, their CPU time is forward and the rest (a sleep, a blocked write) is wait."""
    d = Driver(kind)
    for _ in range(8):
        d.play(_step(10_000_000, 3_000_000))
    last = d.rows[-1]
    assert value(last, "forward") == pytest.approx(FORWARD_NS + 3_000_000, abs=10)
    assert value(last, "wait_forward") == pytest.approx(7_000_000, abs=10)
    assert value(last, "busy_wait_us") == 0


@BOTH
def test_a_long_gap_without_operations_is_no_loss(kind: type[PythonSwitch]) -> None:
    """Making a batch or stepping an environment between forward and backward stays wait, and is busy."""
    d = Driver(kind)
    for _ in range(8):
        d.play(_step(10_000_000, 9_000_000, nodes=0))
    last = d.rows[-1]
    assert value(last, "forward") == pytest.approx(FORWARD_NS, abs=10)
    assert value(last, "wait_forward") == pytest.approx(10_000_000, abs=10)
    assert value(last, "busy_wait_us") == pytest.approx(9_000, abs=1)


@BOTH
def test_few_operations_explain_only_a_part_of_a_long_gap(kind: type[PythonSwitch]) -> None:
    """A loss of one operation takes at most ten times what an operation of this model takes."""
    d = Driver(kind)
    for _ in range(8):
        d.play(_step(50_000_000, 50_000_000, nodes=1))
    one = FORWARD_NS // FORWARD_NODES
    assert value(d.rows[-1], "forward") - FORWARD_NS == pytest.approx(NODE_FACTORS[1] * one, rel=0.01)


@BOTH
def test_a_thread_that_never_blocked_was_at_work(kind: type[PythonSwitch]) -> None:
    """On a busy machine a loss waits for a core. If the thread never blocked, that is the model's time,
    too."""
    d = Driver(kind)
    for _ in range(8):
        operations = _step(10_000_000, 3_000_000)
        d.play([(*o, False) if o[:2] == ("tick", 10_000_000) else o for o in operations])
    assert value(d.rows[-1], "forward") == pytest.approx(FORWARD_NS + 10_000_000, abs=10)


@BOTH
@pytest.mark.parametrize("nodes", [1, 100])
def test_waiting_for_a_core_is_shared_like_the_time_in_which_the_thread_ran(
    kind: type[PythonSwitch], nodes: int
) -> None:
    """A gap of 10 ms, of which the thread ran 1 ms and lacked a core for the rest: all of it is the model's
    work if its operations explain that millisecond, half of it if they explain half."""
    d = Driver(kind)
    for _ in range(8):
        operations = _step(10_000_000, 1_000_000, nodes)
        d.play([(*o, False) if o[:2] == ("tick", 10_000_000) else o for o in operations])
    explained = min(1.0, nodes * NODE_FACTORS[1] * (FORWARD_NS / FORWARD_NODES) / 1_000_000)
    assert explained == (0.5 if nodes == 1 else 1.0)
    assert value(d.rows[-1], "forward") - FORWARD_NS == pytest.approx(10_000_000 * explained, rel=0.01)


@BOTH
def test_work_before_a_forward_pass_is_not_taken_for_sleep(kind: type[PythonSwitch]) -> None:
    """In every wait place, not only after a forward pass, CPU time is known once long gaps are usual."""
    d = Driver(kind)
    for _ in range(8):
        d.play([("enter", c.INPUT), ("leave",), ("tick", 10_000_000, 4_000_000), *_step(10, 10)])
    assert value(d.rows[-1], "wait_input") == pytest.approx(10_000_000, abs=20)
    assert value(d.rows[-1], "busy_wait_us") == pytest.approx(4_000, abs=1)


@BOTH
@pytest.mark.parametrize(("short_gaps", "watched"), [(0, True), (16, True), (17, False), (40, False)])
def test_the_watch_ends_when_long_gaps_become_rare(
    kind: type[PythonSwitch], short_gaps: int, watched: bool
) -> None:
    """From 13, five long gaps lead to 33, and each short one takes 1 back: watched down to 17, not below."""
    d = Driver(kind)
    for gap in (*[10_000_000] * 5, *[50] * short_gaps, 10_000_000):
        d.play(_step(gap, 3_000_000))
    assert (value(d.rows[-1], "forward") > FORWARD_NS + 1_000_000) is watched


@BOTH
@pytest.mark.parametrize(("lost_cores", "watched"), [(16, 1), (17, 0)])
def test_a_lost_core_does_not_keep_the_watch_on(
    kind: type[PythonSwitch], lost_cores: int, watched: int
) -> None:
    """A short gap in which another process got the core counts as short. A busy machine takes the core away
    at our own system calls, so such gaps would never become rare."""
    d = Driver(kind)
    for _ in range(5):
        d.play(_step(10_000_000, 3_000_000))
    for _ in range(lost_cores):
        operations = _step(10_000_000, 50)
        d.play([(*o, False) if o[:2] == ("tick", 10_000_000) else o for o in operations])
    assert d.switch.watching == watched


@BOTH
def test_a_sleep_after_forward_stays_wait(kind: type[PythonSwitch]) -> None:
    """A long gap without CPU time never counts as model work, not even before gaps are watched."""
    d = Driver(kind)
    for _ in range(8):
        d.play(_step(50_000_000, 0))
    assert [value(r, "wait_forward") > 49_999_000 for r in d.rows] == [True] * 8
    assert all(value(r, "busy_wait_us") == 0 for r in d.rows)


@BOTH
def test_passes_without_gradients_that_nothing_explains_are_part_of_the_step(
    kind: type[PythonSwitch],
) -> None:
    """What was pending when the step ends is its no-grad work; the time between two passes is wait."""
    d = Driver(kind)
    d.play([("enter_pending",), ("tick", 1000, 0), ("leave",), ("tick", 700, 0)])
    d.play([("enter_pending",), ("tick", 1000, 0), ("leave",), ("tick", 300, 0), ("publish", False)])
    assert value(d.rows[0], "no_grad") == pytest.approx(2000, abs=5)
    assert value(d.rows[0], "wait_no_grad") == pytest.approx(1000, abs=5)


@BOTH
def test_time_between_validation_batches_is_validation(kind: type[PythonSwitch]) -> None:
    """What lies between two validation phases is validation; what follows the last one is wait."""
    d = Driver(kind)
    d.play([("enter_validation",), ("tick", 1000, 0), ("leave",), ("tick", 700, 0)])
    d.play([("enter_validation",), ("tick", 1000, 0), ("leave",), ("tick", 300, 0), ("publish", False)])
    assert value(d.rows[0], "validation") == pytest.approx(2700, abs=5)
    assert value(d.rows[0], "wait_other") == pytest.approx(300, abs=5)


@BOTH
def test_an_undecided_fetch_ends_as_input(kind: type[PythonSwitch]) -> None:
    """A batch whose loader's role was never told is input; an undecided eval forward is validation."""
    d = Driver(kind)
    d.play([("enter", PENDING_FETCH), ("tick", 1000, 0), ("leave",)])
    d.play([("enter", PENDING_EVAL), ("tick", 400, 0), ("leave",), ("publish", False)])
    assert value(d.rows[0], "input") == 1001
    assert value(d.rows[0], "validation") == 401


@BOTH
def test_an_optimizer_may_step_inside_backward(kind: type[PythonSwitch]) -> None:
    """Optimizer-in-backward is optimizer time, taken out of backward."""
    d = Driver(kind)
    d.play([("enter", c.BACKWARD), ("tick", 100, 0), ("enter_optimizer",), ("tick", 50, 0), ("leave",)])
    assert d.switch.current == c.BACKWARD
    assert d.switch.charged(c.OPTIMIZER) == 51
    d.switch.gradient_ready(None)
    d.play([("enter_optimizer",), ("tick", 50, 0), ("leave",)])
    assert d.switch.current == c.SYNC
    assert d.switch.charged(c.OPTIMIZER) == 102


@BOTH
@pytest.mark.parametrize("place", [c.WAIT_START, c.WAIT_FORWARD, c.WAIT_BACKWARD])
def test_an_exchange_in_the_script_leaves_us_where_we_were(kind: type[PythonSwitch], place: int) -> None:
    """Metrics exchanged after the optimizer: what follows is still after the optimizer."""
    d = Driver(kind)
    d.switch.current = place
    d.play([("enter_inside", c.SYNC), ("tick", 10, 0), ("return_to",)])
    assert d.switch.current == place


@BOTH
def test_a_switch_with_a_slot_that_does_not_exist_is_refused(kind: type[PythonSwitch]) -> None:
    """A slot outside the table is an error, never a write outside it."""
    d = Driver(kind)
    with pytest.raises((ValueError, IndexError)):
        d.switch.charged(SLOTS)


@BOTH
def test_a_row_that_does_not_fit_is_refused(kind: type[PythonSwitch]) -> None:
    """A buffer too small for the row is an error, never a write past its end."""
    d = Driver(kind)
    with pytest.raises(ValueError, match="do not fit"):
        d.switch.rows_into(bytearray(64), 0, ROW_SIZE, ROW_SIZE, 0)
    with pytest.raises(ValueError, match="no room"):
        d.switch.publish(d.clock(), 0)


def test_wait_slots_are_the_places_of_the_catalogue() -> None:
    """Exactly the catalogue's wait places, and pauses between passes that are no phase yet, count as wait."""
    waits = {slot for slot in range(SLOTS) if is_wait(slot)}
    assert waits == {*range(c.FIRST_WAIT, c.RECORDED_SLOTS), AFTER_VALIDATION, AFTER_PENDING}
