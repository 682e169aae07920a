"""What a sampled step of deep mode is about: the layers of the model, and the autograd graph of the step.

Layers are the modules that were called, by their paths as the state dict spells them. The graph is read in
the order of the backward pass; nothing is unpacked: tensors that a hook has packed (checkpointing,
offloading) are left alone.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final
from weakref import ref

WRAPPERS: Final = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of a path that torch.compile, FSDP and checkpoint_wrapper put in."""
AROUND: Final = ("DistributedDataParallel", "DataParallel")
"""Wrappers that call the model `module`."""
MOST_FRAMES: Final = 12
MOST_KNOWN: Final = 1000
MOST_NODES: Final = 100_000
"""Of one backward pass. A larger graph would take too long to look at."""
ACCUMULATE: Final = 2**64 - 1
"""The sequence number of nodes that accumulate the gradient of a parameter. They run as soon as possible."""
UNSUPPORTED: Final = (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError)
"""What tensors without a storage raise when asked for it: sparse, of a subclass, not initialized."""


@dataclass(slots=True)
class Layer:
    """One module that was called; what was never called belongs to the layer around it."""

    path: str
    around: int  # the layer around it, or -1
    type: str = ""
    parameter_bytes: int = 0
    parameter_bytes_total: int = 0  # with those of the layers below its path
    hidden: int = 0  # modules inside a compiled or scripted one that run as a part of it
    parameters: list[Any] = field(default_factory=list)  # weak references


@dataclass(slots=True)
class Layers:
    """The layers of a model."""

    layers: list[Layer] = field(default_factory=list)
    of_module: dict[int, int] = field(default_factory=dict)
    """From the id of a module to its layer."""
    storages: set[int] = field(default_factory=set)
    """Of all parameters and buffers."""

    def table(self) -> dict[str, list[Any]]:
        """What the recording says about them, once."""
        return {
            "paths": [layer.path for layer in self.layers],
            "types": [layer.type for layer in self.layers],
            "parameter_bytes": [layer.parameter_bytes for layer in self.layers],
            "parameter_bytes_total": [layer.parameter_bytes_total for layer in self.layers],
            "hidden": [layer.hidden for layer in self.layers],
        }


def layers_of(called: Sequence[Any], roots: Iterable[Any]) -> Layers:
    """The layers of these modules; `roots` are the outermost ones, or modules that contain them."""
    trees = _trees(roots)
    found, seen = Layers(), set[int]()
    layers, ids = found.layers, {id(module) for module in called}
    for at, (root, tree) in enumerate(trees):
        label = _label(root, [other for other, _ in trees[:at]])
        above: dict[str, int] = {}  # for each path its layer, or the one around it
        pieces: set[int] = set()  # layers that are compiled or scripted
        for name, module in tree:
            path = _plain(name, root)
            place, shown = above.get(path, -1), _shown(path, label, at)
            is_wrapped = place >= 0 and layers[place].path == shown
            around = above.get(path.rpartition(".")[0], -1) if path else -1
            if id(module) in ids and not is_wrapped:
                place = len(layers)
                layers.append(Layer(shown, around))
            elif place < 0:
                place = around
                if place in pieces:
                    layers[place].hidden += 1
            above[path] = place
            if place >= 0 and layers[place].path == shown:
                layers[place].type = type(module).__name__
                found.of_module[id(module)] = place
                if is_one_piece(module):
                    pieces.add(place)
            _count(module, found, place, seen)
    for layer in reversed(layers):  # a layer comes after the one around it
        layer.parameter_bytes_total += layer.parameter_bytes
        if layer.around >= 0:
            layers[layer.around].parameter_bytes_total += layer.parameter_bytes_total
    return found


def _count(module: Any, found: Layers, place: int, seen: set[int]) -> None:
    """Each parameter once, for the first layer that has it."""
    for parameter in module._parameters.values():
        if parameter is None or id(parameter) in seen:
            continue
        seen.add(id(parameter))
        found.storages.add(storage_of(parameter))
        if place >= 0:
            found.layers[place].parameter_bytes += bytes_of(parameter)
            found.layers[place].parameters.append(ref(parameter))
    found.storages.update(storage_of(buffer) for buffer in module._buffers.values() if buffer is not None)


def is_one_piece(module: Any) -> bool:
    """Compiled (torch.compile, Module.compile) or scripted."""
    compiled = getattr(module, "_compiled_call_impl", None) is not None
    return compiled or type(module).__name__ in ("OptimizedModule", "RecursiveScriptModule")


def _trees(roots: Iterable[Any]) -> list[tuple[Any, list[tuple[str, Any]]]]:
    """Each root with its modules, the largest first, without roots that are a part of another one."""
    trees = [(root, list(root.named_modules())) for root in {id(r): r for r in roots}.values()]
    trees.sort(key=lambda tree: -len(tree[1]))
    kept: list[tuple[Any, list[tuple[str, Any]]]] = []
    inside: set[int] = set()
    for root, tree in trees:
        if id(root) not in inside:
            inside.update(id(module) for _, module in tree)
            kept.append((root, tree))
    return kept


def _plain(name: str, root: Any) -> str:
    """The path without the parts that wrappers add."""
    parts = [part for part in name.split(".") if part and part not in WRAPPERS]
    if parts and parts[0] == "module" and type(root).__name__ in AROUND:
        parts = parts[1:]
    return ".".join(parts)


def _label(root: Any, before: list[Any]) -> str:
    """The type of a root; a second one of the same type has a number."""
    name = _type(root)
    same = sum(_type(other) == name for other in before)
    return f"{name} {same + 1}" if same else name


def _type(root: Any) -> str:
    """The type of a model, of a wrapped one that of the model inside."""
    inside = [module for name, module in root.named_modules() if not _plain(name, root)]
    return type(inside[-1]).__name__


def _shown(path: str, label: str, at: int) -> str:
    """Paths of the largest model stand alone; those of others begin with their type."""
    if not path:
        return f"({label})"
    return path if at == 0 else f"{label}.{path}"


class Enclosing:
    """The modules around those that a script calls: Lightning calls `training_step`, not the module."""

    def __init__(self, module_class: type) -> None:
        self._class = module_class
        self._known: dict[int, tuple[Any, Any]] = {}

    def find(self, module: Any) -> Any:
        """The module around this one, if its method calls this one; else itself. A weak reference."""
        known = self._known.get(id(module))
        if known is None or known[0]() is not module:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            around = self._search(module, sys._getframe(1))
            known = self._known[id(module)] = (ref(module), ref(around))
        return known[1]

    def _search(self, module: Any, frame: Any) -> Any:
        for _ in range(MOST_FRAMES):
            frame = frame.f_back
            if frame is None:
                break
            owner = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
            if isinstance(owner, self._class) and owner is not module:
                modules: Any = owner.modules()  # type: ignore[attr-defined]
                if any(part is module for part in modules):
                    return owner
        return module


def roots_of(tensors: Any) -> list[Any]:
    """The nodes that a backward pass starts from."""
    several = tensors if isinstance(tensors, (tuple, list)) else (tensors,)
    # Of a GradientEdge, or of a tensor.
    nodes = (getattr(t, "node", None) or getattr(t, "grad_fn", None) for t in several)
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
        self._left: dict[int, int] = {}  # bytes of each storage that are not counted yet
        self._seen: set[tuple[int, int, int]] = set()

    def add(self, tensor: Any) -> int:
        """The bytes of this tensor that no tensor before it has counted."""
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
