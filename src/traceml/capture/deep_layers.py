"""Names for the modules of a sampled step: their paths in the model, as its state dict spells them."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import ref

from traceml.capture.deep_graph import bytes_of, storage_of

WRAPPERS: Final = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of a path that torch.compile, FSDP and checkpoint_wrapper put in."""
AROUND: Final = ("DistributedDataParallel", "DataParallel")
"""Wrappers that call the model `module`."""
MOST_FRAMES: Final = 12
MOST_KNOWN: Final = 1000


@dataclass(slots=True)
class Layers:
    """The modules that were called, by path; what was never called belongs to the layer around it."""

    paths: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    parameter_bytes: list[int] = field(default_factory=list)
    parameter_bytes_total: list[int] = field(default_factory=list)
    """With those of the layers below its path."""
    hidden: list[int] = field(default_factory=list)
    """How many modules inside a compiled or scripted one run as a part of it."""
    of_module: dict[int, int] = field(default_factory=dict)
    """From the id of a module to its layer."""
    parameters: list[list[Any]] = field(default_factory=list)
    """Of each layer, weak references."""
    storages: set[int] = field(default_factory=set)
    """Of all parameters and buffers."""


def layers_of(called: Sequence[Any], roots: Iterable[Any]) -> Layers:
    """The layers of these modules; `roots` are the outermost ones, or modules that contain them."""
    trees = _trees(roots)
    found, seen, parents = Layers(), set[int](), list[int]()
    ids = {id(module) for module in called}
    for at, (root, tree) in enumerate(trees):
        label = _label(root, [other for other, _ in trees[:at]])
        above: dict[str, int] = {}  # for each path its layer, or the one around it
        pieces: set[int] = set()  # layers that are compiled or scripted
        for name, module in tree:
            path = _plain(name, root)
            place, shown = above.get(path, -1), _shown(path, label, at)
            is_wrapped = place >= 0 and found.paths[place] == shown
            around = above.get(path.rpartition(".")[0], -1) if path else -1
            if id(module) in ids and not is_wrapped:
                place = _new(found, shown)
                parents.append(around)
            elif place < 0:
                place = around
                if place in pieces:
                    found.hidden[place] += 1
            above[path] = place
            if place >= 0 and found.paths[place] == shown:
                found.types[place] = type(module).__name__
                found.of_module[id(module)] = place
                if is_one_piece(module):
                    pieces.add(place)
            _count(module, found, place, seen)
    found.parameter_bytes_total = list(found.parameter_bytes)
    for place in range(len(parents) - 1, -1, -1):
        if parents[place] >= 0:
            found.parameter_bytes_total[parents[place]] += found.parameter_bytes_total[place]
    return found


def _new(found: Layers, path: str) -> int:
    found.paths.append(path)
    found.types.append("")
    found.parameter_bytes.append(0)
    found.hidden.append(0)
    found.parameters.append([])
    return len(found.paths) - 1


def _count(module: Any, found: Layers, place: int, seen: set[int]) -> None:
    """Each parameter once, for the first layer that has it."""
    for parameter in module._parameters.values():
        if parameter is None or id(parameter) in seen:
            continue
        seen.add(id(parameter))
        found.storages.add(storage_of(parameter))
        if place >= 0:
            found.parameter_bytes[place] += bytes_of(parameter)
            found.parameters[place].append(ref(parameter))
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
