"""From the calls of a sampled step to one number per layer: by itself, and with all that it calls."""

from itertools import pairwise
from typing import Any, Final

from traceml.capture.deep_sample import BACKWARD, FORWARD, NOBODY, OUTSIDE, RECOMPUTE, Sample

Column = list[int]
CALL_NS: Final = 1000
"""What calling us costs around the part that we can time."""


class Settled:
    """A sampled step without any reference to the model. With a device, its times may still be missing."""

    def __init__(self, sample: Sample, step: int, every: int) -> None:
        self.step, self.every = step, every
        self.layers = layers = sample.named()
        layers.parameters.clear()  # not needed any more
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
        forward, backward, recompute = (self._by_layer(times) for times in own)
        every_call = range(len(self._layer))
        passes = [self._by_layer([held.get(call, 0) for call in every_call]) for held in self._held]
        held, held_total = (
            (_largest(columns) for columns in zip(*passes, strict=True)) if passes else ([], [])
        )
        calls = [0] * len(self.layers.paths)
        for call, layer in enumerate(self._layer):
            calls[layer] += self._is_first[call] and layer >= 0 and not self._is_wrapped[call]
        found = {
            "calls": calls,
            "forward": forward[0],
            "forward_total": forward[1],
            "backward": backward[0],
            "backward_total": backward[1],
            "recompute": recompute[0],
            "recompute_total": recompute[1],
            "activation_bytes": held,
            "activation_bytes_total": held_total,
            "gradient_bytes": self._gradient_bytes,
        }
        kept = max((held.get(OUTSIDE, 0) for held in self._held), default=0)
        outside = {"outside": outside_ns, "outside_bytes": kept}
        return outside | {name: column for name, column in found.items() if any(column)}

    def _by_layer(self, values: Column) -> tuple[Column, Column]:
        """Sums over the calls of each layer: what is theirs, and what is also of the calls inside them."""
        own, total = [0] * len(self.layers.paths), [0] * len(self.layers.paths)
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


def _largest(columns: tuple[Column, ...]) -> Column:
    """Passes follow each other, so what they hold is not there at the same time."""
    return [max(values) for values in zip(*columns, strict=True)]
