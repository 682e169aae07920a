"""The autograd graph of a sampled step: its nodes in the order of the backward pass, and what they hold.

Nothing is unpacked: tensors that a hook has packed (checkpointing, offloading) are left alone.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Final

MOST_NODES: Final = 100_000
"""Of one backward pass. A larger graph would take too long to look at."""
ACCUMULATE: Final = 2**64 - 1
"""The sequence number of nodes that add up the gradient of a parameter: they run as soon as they can."""
UNSUPPORTED: Final = (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError)
"""What tensors without a storage raise when asked for it: sparse, of a subclass, not initialized."""


def roots_of(tensors: Any) -> list[Any]:
    """The nodes that a backward pass starts from."""
    several = tensors if isinstance(tensors, (tuple, list)) else (tensors,)
    nodes = (
        getattr(t, "node", None) or getattr(t, "grad_fn", None) for t in several
    )  # a GradientEdge, a tensor
    return [node for node in nodes if node is not None]


def nodes_of(roots: list[Any]) -> list[tuple[int, Any]] | None:
    """All nodes with their sequence numbers, the highest first; None if there are too many.

    A node is made after everything that it depends on, so this is the order in which one thread runs them.
    """
    seen = set(roots)
    todo, found = list(seen), []
    while todo:
        node = todo.pop()
        number = node._sequence_nr()
        if number == ACCUMULATE:
            continue
        found.append((number, node))
        if len(found) > MOST_NODES:
            return None
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
    found.sort(key=lambda pair: -pair[0])
    return found


@cache
def _raw_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def saved_tensors(node: Any) -> Iterator[Any]:
    """The tensors that this node keeps for backward, as far as no hook has packed them."""
    kind: Any = type(node)
    for name in _raw_names(kind):
        raw: Any = None
        with suppress(RuntimeError):  # a graph that was used and freed
            raw = getattr(node, name)
        for saved in raw if isinstance(raw, (tuple, list)) else (raw,):
            if saved is not None and saved.unpack_hook is None and saved.data is not None:
                yield saved.data


def can_read_saved(torch: Any) -> bool:
    """Whether this version of torch shows what a node keeps without unpacking it."""
    kind = getattr(torch._C._autograd, "SavedTensor", None)
    return hasattr(kind, "unpack_hook") and hasattr(kind, "data")


class Held:
    """Adds up tensors by storage: what several nodes keep is one piece of memory."""

    def __init__(self, known: Iterable[int]) -> None:
        """`known`: storages that are counted elsewhere, such as parameters."""
        self._known = set(known)
        self._left: dict[int, int] = {}  # bytes of each storage that nobody has counted yet
        self._seen: set[tuple[int, int, int]] = set()

    def add(self, tensor: Any) -> int:
        """The bytes that this tensor holds and none before it did."""
        try:
            tensor = getattr(tensor, "_local_tensor", tensor)  # the part of a sharded one that is here
            storage = tensor.untyped_storage()
            key, whole, size = storage._cdata, storage.nbytes(), tensor.numel() * tensor.element_size()
            place = (key, tensor.storage_offset(), size)
        except UNSUPPORTED:
            return 0
        if key in self._known or place in self._seen:
            return 0
        self._seen.add(place)
        left = self._left.get(key, whole)
        taken = min(size, left)
        self._left[key] = left - taken
        return taken


def storage_of(tensor: Any) -> int:
    """The storage of a parameter or buffer; 0 if it has none."""
    try:
        return int(getattr(tensor, "_local_tensor", tensor).untyped_storage()._cdata)
    except UNSUPPORTED:
        return 0


def bytes_of(tensor: Any) -> int:
    """The size of a parameter or gradient, of a sharded one the part that is here."""
    try:
        here = getattr(tensor, "_local_tensor", tensor)
        return int(here.numel()) * int(here.element_size())
    except UNSUPPORTED:
        return 0
