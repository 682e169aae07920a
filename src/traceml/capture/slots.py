"""The slots of the phase switch: those that a row has, and those whose meaning shows later."""

from typing import Final

from traceml.recording.layout import row_struct
from traceml.schema import catalog as c

AFTER_VALIDATION: Final = c.RECORDED_SLOTS
"""Between two validation phases: still validation; anywhere else: wait."""
AFTER_PENDING: Final = c.RECORDED_SLOTS + 1
"""After a forward pass of PENDING_NO_GRAD."""
TRANSFORM: Final = c.RECORDED_SLOTS + 2
"""In a transform of torch.func: forward, but passes inside keep their own phase, as in a user phase."""
SLOTS: Final = c.RECORDED_SLOTS + 7

# These are indices from the end, hence negative: like every real phase they are below
# FIRST_USER, so that "is the thread inside a phase" stays one comparison on the hot path.
PENDING_EVAL: Final = -1
"""A forward pass in eval mode with gradients on: training if a backward follows, else validation."""
PENDING_FETCH: Final = -2
"""A batch whose loader's role is not known yet: the passes that use it tell."""
PENDING_NO_GRAD: Final = -3
"""A forward pass without gradients on such a batch: validation, or a teacher that a training step needs."""
PENDING_GAP: Final = -4
"""Between two of them."""
FIRST_SLOT: Final = PENDING_GAP
SKIPPED: Final = c.WAIT_START
"""A batch that a resumed training skips; the time is not input."""

PASS: Final = -9
"""Answer of `enter`: another thread, or already inside a phase; the call passes straight through."""

SHORT_GAP_NS: Final = 100_000
LONG_GAP_WEIGHT: Final = 4
WATCH_FROM: Final = 17
WATCH_MOST: Final = 64
"""Reading the thread's CPU time costs more than everything else here, so it is read only where long gaps are
usual. Each long gap counts 4, and each short one in the same place takes 1 back. From 17 on the place is
watched. At first a single one is enough."""
WATCH_AT_FIRST: Final = WATCH_FROM - LONG_GAP_WEIGHT
LOOK_ALWAYS_NS: Final = 1_000_000
LOOK_SHARE: Final = 20
LOOK_FADE: Final = 8
LOOK_EVERY: Final = 7
LOOK_ON: Final = 70
"""Reading costs much compared with gaps below 1 ms. So after 70 steps it is done in one step of 7, and gaps
in other steps are taken to be alike, unless gaps above 1 ms took a 20th of the time of the last 2**8 steps or
so. (Our own cost is measured in one step of 16.)"""
NODE_FACTORS: Final = (1.5, 5.0)
"""How many times as long as a typical operation of the model one between modules, or of a loss, may take."""
ROW: Final = row_struct(c.STEP_COLUMNS)
MOST_COUNT: Final = 0xFFFF_FFFF


def is_wait(slot: int) -> bool:
    """Whether this slot is the thread doing nothing that we know."""
    return c.FIRST_WAIT <= slot <= AFTER_PENDING


_PLACES_AFTER: Final = {
    **dict.fromkeys((c.INPUT, c.H2D, SLOTS + PENDING_FETCH), c.WAIT_INPUT),
    **dict.fromkeys((c.FORWARD, TRANSFORM, SLOTS + PENDING_EVAL), c.WAIT_FORWARD),
    **dict.fromkeys((c.BACKWARD, c.SYNC), c.WAIT_BACKWARD),
    c.NO_GRAD: c.WAIT_NO_GRAD,
    c.VALIDATION: AFTER_VALIDATION,
    SLOTS + PENDING_NO_GRAD: AFTER_PENDING,
}
PLACES: Final = AFTER_PENDING + 1 - c.FIRST_WAIT
LEFT_OVER: Final = (
    (PENDING_FETCH, c.INPUT),
    (PENDING_EVAL, c.VALIDATION),
    (PENDING_NO_GRAD, c.NO_GRAD),
    (PENDING_GAP, c.WAIT_NO_GRAD),
    (AFTER_PENDING, c.WAIT_NO_GRAD),
    (AFTER_VALIDATION, c.WAIT_OTHER),
    (TRANSFORM, c.FORWARD),
)
"""What becomes of the slots that a row does not have when a step ends."""
AFTER: Final = [_PLACES_AFTER.get(slot, c.WAIT_OTHER) for slot in range(SLOTS)]
IS_WAIT: Final = [is_wait(slot) for slot in range(SLOTS)]
