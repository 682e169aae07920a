"""Steps in which a batch was fetched but not trained on."""

import numpy as np
from numpy.typing import NDArray

from traceml.analyze import window as w


def find_skipping(window: w.Window) -> NDArray[np.int64]:
    """Steps that took more batches than usual, but no longer in backward. In uneven accumulation, every batch
    has a backward pass. A loop that fetches ahead takes one more batch where an epoch begins, so such steps
    tell nothing. Steps with as many batches are judged together."""
    if not window.more_batches.any():
        return np.zeros(0, dtype=np.int64)
    batches, backward = window.more_batches + 1, window.of(w.BACKWARD)
    more = batches > np.median(batches, axis=1, keepdims=True)
    more &= ~np.isin(window.steps, list(window.epoch_starts))
    skips = np.zeros(window.count, dtype=bool)
    if not 0 < np.count_nonzero(more.any(axis=0)) <= w.RARE_SHARE * window.count:
        return np.flatnonzero(skips)
    usual_backward = max(float(np.median(backward[~more])), 1.0)
    for many in np.unique(batches[more]):
        alike = more & (batches == many)
        grown = float(np.median(backward[alike])) / usual_backward
        expected = float(many / np.median(batches[~more]))
        skips |= alike.any(axis=0) & (0 < grown < (1 + expected) / 2)
    return np.flatnonzero(skips)
