"""How many samples and tokens a batch holds, without touching its data."""

from collections.abc import Mapping, Sequence
from typing import Any


def first_array(batch: Any, depth: int = 4) -> Any:
    """The first thing with a shape in a batch of tuples, lists and mappings."""
    while depth:
        if hasattr(batch, "shape"):
            return batch
        if isinstance(batch, Mapping):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, (list, tuple)) and batch:
            batch = batch[0]
        else:
            return None
        depth -= 1
    return None


def size_of(batch: Any) -> tuple[int, int]:
    """(samples, tokens), 0 where that is not known."""
    tokens = 0
    if isinstance(batch, Mapping):
        ids = batch.get("input_ids")
        if ids is not None and hasattr(ids, "numel"):
            tokens = ids.numel()
    shape = getattr(first_array(batch), "shape", None)
    known = isinstance(shape, Sequence) and len(shape) > 0 and isinstance(shape[0], int)
    return shape[0] if known and shape is not None else 0, tokens
