"""The C module, set up with the constants of slots.py; None where it is missing and Python does the work."""

import os
import types
from typing import Any, Final

from traceml.capture.slots import (
    AFTER,
    AFTER_PENDING,
    AFTER_VALIDATION,
    IS_WAIT,
    LEFT_OVER,
    LONG_GAP_WEIGHT,
    LOOK_ALWAYS_NS,
    LOOK_EVERY,
    LOOK_FADE,
    LOOK_ON,
    LOOK_SHARE,
    NODE_FACTORS,
    PENDING_GAP,
    PENDING_NO_GRAD,
    SHORT_GAP_NS,
    SLOTS,
    WATCH_AT_FIRST,
    WATCH_FROM,
    WATCH_MOST,
)
from traceml.schema import catalog as c


def _load_c_module() -> Any:
    if os.environ.get("TRACEML_PURE_PYTHON", "0") not in ("", "0"):
        return None
    try:
        from traceml.capture import _switch  # type: ignore[attr-defined]
    except ImportError:
        return None
    _switch.configure(
        {
            "slots": SLOTS,
            "recorded": c.RECORDED_SLOTS,
            "first_user": c.FIRST_USER,
            "first_wait": c.FIRST_WAIT,
            "after_validation": AFTER_VALIDATION,
            "after_pending": AFTER_PENDING,
            "pending_gap": PENDING_GAP,
            "pending_no_grad": PENDING_NO_GRAD,
            "short_gap_ns": SHORT_GAP_NS,
            "gap_weight": LONG_GAP_WEIGHT,
            "watch_at_first": WATCH_AT_FIRST,
            "watch_from": WATCH_FROM,
            "watch_most": WATCH_MOST,
            "look_always_ns": LOOK_ALWAYS_NS,
            "look_every": LOOK_EVERY,
            "look_on": LOOK_ON,
            "look_fade": LOOK_FADE,
            "look_share": LOOK_SHARE,
            "input_inferred": c.FLAG_INPUT_INFERRED,
            **{phase.key: slot for slot, phase in enumerate(c.PHASES)},
            **{place.key: slot for slot, place in enumerate(c.WAIT_PLACES, c.FIRST_WAIT)},
        },
        *(bytes(IS_WAIT), bytes(AFTER), bytes(slot % SLOTS for pair in LEFT_OVER for slot in pair)),
        *(*NODE_FACTORS, types.MethodType),
    )
    return _switch


c_module: Final[Any] = _load_c_module()
