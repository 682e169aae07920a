"""One sampled step of deep mode: which module the time belongs to, in forward and in backward.

No hook is registered on a module or tensor: the model stays as it is. Module calls are seen by the seam that
times the forward pass anyway. Autograd numbers its nodes as they are made, so the number tells which call
made a node, and backward runs them from the highest number down. Only where the layer changes does a node get
a hook, which reads a clock; it is gone when the backward pass is over.
"""

from bisect import bisect_right
from functools import partial
from itertools import pairwise
from threading import get_ident
from time import thread_time_ns
from typing import Any, Final
from weakref import ref

from traceml.capture import deep_layers
from traceml.capture.deep_layers import Enclosing, Layers
from traceml.capture.device import Device
from traceml.capture.switch import Switch
from traceml.errors import failsafe, say_once
from traceml.schema import catalog as c

NOBODY: Final = -2
"""Time outside of measured passes."""
OUTSIDE: Final = -1
"""Backward of operations that no module made, such as a functional loss."""
FORWARD, BACKWARD, RECOMPUTE = range(3)
CALL_NS: Final = 1000
"""What calling us costs around the part that we can time."""
Column = list[int]


class Sample:
    """The calls and backward passes of one step. Only weak references to modules are kept."""

    def __init__(self, torch: Any, switch: Switch, device: Device | None, enclosing: Enclosing) -> None:
        self._switch, self._device, self._enclosing = switch, device, enclosing
        self._thread = get_ident()
        self._grad_on, self._number = torch.is_grad_enabled, torch.autograd._get_sequence_nr
        self._task = torch._C._current_graph_task_id
        self._queue = torch.autograd.Variable._execution_engine.queue_callback
        self._reads_saved = deep_layers.can_read_saved(torch)
        self.modules: list[Any] = []  # of each call, a weak reference
        self.parents: list[int] = []
        self.is_first: list[bool] = []  # not a recomputation
        self.doubtful: list[tuple[int, int]] = []  # calls of passes that may have been validation
        self.reached: set[int] = set()  # calls whose nodes a backward pass ran
        self.trail: list[tuple[int, int, int, int, Any]] = []
        """(call, phase) that the time up to here belongs to; the beginning and end of our own work; the
        device's event."""
        self.call, self.phase = NOBODY, FORWARD
        self.passes = 0  # backward passes that are running
        self.failed = False
        self.work_ns = 0  # of looking at graphs, on the thread's own clock: a busy machine does not change it
        self.layers: Layers | None = None
        self._named = 0  # calls that it was made from
        self.held: list[dict[int, int]] = []  # for each backward pass, activation bytes of calls
        self.gradient_bytes: list[int] = []
        self._roots: list[Any] = []
        self._calls_of: dict[int, int] = {}  # id of a module to its latest first call
        self._bounds: dict[int, tuple[list[int], list[int]]] = {}
        self._bound(self._thread, OUTSIDE)
        safely = failsafe("deep mode", None, self._give_up)
        self._enter_node = safely(self._node_begins)
        self._nodes_done = safely(self._nodes_are_done)
        self.callbacks = tuple(
            safely(part) for part in (self.begin, self.end, self.backward_begins, self.backward_ended)
        )

    def _give_up(self) -> None:
        self.failed = True
        self._switch.layers = None

    def _now(self) -> int:
        """Time without what the thread spent waiting for other ranks."""
        return self._switch.clock() - self._switch.charged(c.SYNC)

    def _move(self, call: int, phase: int, began: int) -> None:
        """From here on, time belongs to `call`. What passed since `began` was our own."""
        event = None
        if self._device is not None:
            if self._device.is_capturing():  # an event of ours would become a part of the user's graph
                self._give_up()
                return
            event = self._device.new_event()
            event.record()
        self.trail.append((self.call, self.phase, began, self._now(), event))
        self.call, self.phase = call, phase

    def _bound(self, thread: int, call: int) -> None:
        """Nodes that this thread makes from here on are made by `call`."""
        numbers, calls = self._bounds.setdefault(thread, ([], []))
        numbers.append(self._number())
        calls.append(max(call, OUTSIDE))

    def _is_ours(self, thread: int) -> bool:
        """The training thread, or a thread of the autograd engine that works for it."""
        return thread == self._thread or (self.passes > 0 and self._task() != -1)

    def begin(self, module: Any) -> tuple[int, int, int, int] | None:
        """A module is called."""
        began, thread = self._now(), get_ident()
        is_root = self.call == NOBODY
        if not self._is_ours(thread) or (is_root and not self._grad_on()):
            return None
        call, outer, phase = len(self.modules), self.call, self.phase
        self.modules.append(ref(module))
        self.is_first.append(not self.passes)
        if self.passes:
            self.parents.append(self._parent_in_backward(module))
        else:
            self._calls_of[id(module)] = call
            self.parents.append(max(outer, OUTSIDE))
            if is_root:
                self._roots.append(self._enclosing.find(module))
        self._bound(thread, call)
        self._move(call, RECOMPUTE if self.passes else FORWARD, began)
        return call, outer, phase, self._switch.forwards

    def _parent_in_backward(self, module: Any) -> int:
        """A recomputation belongs to the place where the module was first called."""
        if self.phase == RECOMPUTE:
            return self.call
        first = self._calls_of.get(id(module), -1)
        return self.parents[first] if first >= 0 and self.modules[first]() is module else OUTSIDE

    def end(self, token: tuple[int, int, int, int], failed: bool) -> None:
        """The call is over, perhaps by an exception. Checkpointing ends recomputations with one."""
        began = self._now()
        call, outer, phase, forwards = token
        if outer == NOBODY and self._switch.forwards == forwards:
            self.doubtful.append((call, len(self.modules)))
        self.failed = self.failed or (failed and not self.passes)
        self._bound(get_ident(), outer)
        self._move(outer, phase, began)

    def backward_begins(self, tensors: Any) -> tuple[int, int, list[Any]] | None:
        """A backward pass starts from these tensors."""
        began, thread = self._now(), get_ident()
        if not self._is_ours(thread):
            return None
        outer, phase, busy = self.call, self.phase, thread_time_ns()
        handles = self._look_at(tensors, thread)
        self.work_ns += thread_time_ns() - busy
        self.passes += 1
        self._move(OUTSIDE, BACKWARD, began)
        return outer, phase, handles

    def _look_at(self, tensors: Any, thread: int) -> list[Any]:
        """Find what the nodes hold, and put a hook where backward goes from one layer to another."""
        nodes = deep_layers.nodes_of(deep_layers.roots_of(tensors))
        if nodes is None:
            say_once(f"deep mode: a graph of more than {deep_layers.MOST_NODES:,} operations is left out")
            self.failed = True
            return []
        numbers, calls = self._bounds.get(thread, ([], []))
        owners = [calls[at - 1] if (at := bisect_right(numbers, n)) else OUTSIDE for n, _ in nodes]
        if not self.passes and self._reads_saved:
            self._add_held(nodes, owners)
        handles, before = [], NOBODY
        for (_, node), owner in zip(nodes, owners, strict=True):
            if owner != before:
                handles.append(node.register_prehook(partial(self._enter_node, owner, before == NOBODY)))
                before = owner
        self.reached.update(owners)
        return handles

    def _add_held(self, nodes: list[tuple[int, Any]], owners: list[int]) -> None:
        held = deep_layers.Held(self.named().storages)
        found: dict[int, int] = {}
        self.held.append(found)
        for (_, node), owner in zip(reversed(nodes), reversed(owners), strict=True):
            for tensor in deep_layers.saved_tensors(node):
                found[owner] = found.get(owner, 0) + held.add(tensor)

    def _node_begins(self, owner: int, is_first: bool, _gradients: Any) -> None:
        began = self._now()
        if is_first and self.passes == 1:
            self._queue(self._nodes_done)
        self._move(owner, BACKWARD, began)

    def _nodes_are_done(self) -> None:
        """All gradients are there; what follows in the backward pass is waiting for other ranks."""
        self._move(NOBODY, BACKWARD, self._now())

    def backward_ended(self, token: tuple[int, int, list[Any]], failed: bool) -> None:
        """The backward pass is over."""
        began = self._now()
        outer, phase, handles = token
        busy = thread_time_ns()
        for handle in handles:
            handle.remove()
        self.passes -= 1
        self.failed = self.failed or failed
        if not self.passes:
            sizes = [sum(map(_gradient_bytes, layer.parameters)) for layer in self.named().layers]
            known = self.gradient_bytes or sizes
            self.gradient_bytes = [max(pair) for pair in zip(sizes, known, strict=True)]
        self.work_ns += thread_time_ns() - busy
        self._move(outer, phase, began)

    def named(self) -> Layers:
        """The layers of the modules that were called so far."""
        if self.layers is None or self._named != len(self.modules):
            self._named = len(self.modules)
            called = [module for kept in self.modules if (module := kept()) is not None]
            roots = [module for kept in self._roots if (module := kept()) is not None]
            self.layers, self.gradient_bytes = deep_layers.layers_of(called, roots), []
        return self.layers


def _gradient_bytes(kept: Any) -> int:
    parameter = kept()
    if parameter is None or not parameter.is_leaf or parameter.grad is None:
        return 0
    return deep_layers.bytes_of(parameter.grad)


class Settled:
    """A sampled step as one number per layer: by itself, and with all that it calls.

    It has no reference to the model. With a device, its times may still be missing.
    """

    def __init__(self, sample: Sample, step: int, every: int) -> None:
        self.step, self.every = step, every
        self.layers = layers = sample.named()
        for layer in layers.layers:
            layer.parameters.clear()  # not needed any more
        self._parents, self._is_first = sample.parents, sample.is_first
        self._layer: Column = []
        self._is_wrapped: list[bool] = []  # called by the wrapper of its layer: one call, not two
        modules = [kept() for kept in sample.modules]
        for module, parent in zip(modules, sample.parents, strict=True):
            found = layers.of_module.get(id(module)) if module is not None else None
            # A module that is no part of the model, such as a compiled graph, is a part of its caller.
            around = self._layer[parent] if parent >= 0 else -1
            self._layer.append(around if found is None else found)
            self._is_wrapped.append(self._layer[-1] == around and modules[parent] is not module)
        for first, end in sample.doubtful:
            if sample.reached.isdisjoint(range(first, end)):  # no backward pass came here: it was validation
                self._layer[first:end] = [-1] * (end - first)
        self._trail, self._held = sample.trail, sample.held
        self._gradient_bytes = sample.gradient_bytes
        usual = sorted(ended - began for _, _, began, ended, _ in sample.trail)[len(sample.trail) // 2]
        self.own_ns = sample.work_ns + len(sample.trail) * (usual + CALL_NS)

    @property
    def is_ready(self) -> bool:
        """Whether all events of the device are done."""
        return all(event is None or event.query() for *_, event in self._trail)

    def columns(self) -> dict[str, Any] | None:
        """What a line of the recording says about the step, times in ns; None if the times make no sense."""
        own: list[Column] = [[0] * len(self._layer) for _ in (FORWARD, BACKWARD, RECOMPUTE)]
        outside_ns = 0
        for before, (call, phase, began, _, event) in pairwise(self._trail):
            if call == NOBODY:
                continue
            elapsed = began - before[3] if event is None else int(before[4].elapsed_time(event) * 1e6)
            if elapsed < 0 and event is not None:
                return None  # streams were switched in between
            if call == OUTSIDE:
                outside_ns += elapsed
            else:
                own[phase][call] += max(elapsed, 0)
        calls = [0] * len(self.layers.layers)
        for call, layer in enumerate(self._layer):
            calls[layer] += self._is_first[call] and layer >= 0 and not self._is_wrapped[call]
        found: dict[str, Column] = {"calls": calls, "gradient_bytes": self._gradient_bytes}
        for name, times in zip(("forward", "backward", "recompute"), own, strict=True):
            found[name], found[f"{name}_total"] = self._by_layer(times)
        every_call = range(len(self._layer))
        passes = [self._by_layer([held.get(call, 0) for call in every_call]) for held in self._held]
        if passes:  # they follow each other, so what they hold is not there at the same time
            held_columns = zip(*passes, strict=True)
            names = ("activation_bytes", "activation_bytes_total")
            for name, columns in zip(names, held_columns, strict=True):
                found[name] = [max(values) for values in zip(*columns, strict=True)]
        kept = max((held.get(OUTSIDE, 0) for held in self._held), default=0)
        outside = {"outside": outside_ns, "outside_bytes": kept}
        return outside | {name: column for name, column in found.items() if any(column)}

    def _by_layer(self, values: Column) -> tuple[Column, Column]:
        """Sums over the calls of each layer: what is theirs, and what is also of the calls inside them."""
        own, total = [0] * len(self.layers.layers), [0] * len(self.layers.layers)
        with_inner = list(values)
        for call in range(len(values) - 1, -1, -1):
            layer, parent = self._layer[call], self._parents[call]
            if parent >= 0:
                with_inner[parent] += with_inner[call]
            if layer >= 0:
                own[layer] += values[call]
                if not self._is_inside_itself(call):
                    total[layer] += with_inner[call]
        return own, total

    def _is_inside_itself(self, call: int) -> bool:
        """A call inside another call of the same layer: wrappers, recursion."""
        layer = self._layer[call]
        while (call := self._parents[call]) >= 0:
            if self._layer[call] == layer:
                return True
        return False
