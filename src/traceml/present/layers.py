"""The table of layers that deep mode measured, as rows of cells for text and terminal."""

from collections.abc import Callable
from typing import Final

from traceml.schema import fmt
from traceml.schema.summary import Layer, Layers, Summary

HEAD: Final = ["Layer", "Type", "Forward", "Share", "Backward", "Share", "Parameters", "Activations"]
WORST: Final = "Worst rank"


def heads(summary: Summary) -> list[str]:
    """The names of the columns."""
    return [*HEAD, WORST] if _compares(summary.layers) else HEAD


def cells(layer: Layer, summary: Summary) -> list[str]:
    """One layer: its own time and memory, without the layers that it calls."""
    numbers: dict[str, Callable[[float | None], str]] = {
        "forward_ms": fmt.ms,
        "forward_share": fmt.share,
        "backward_ms": fmt.ms,
        "backward_share": fmt.share,
        "parameter_bytes": fmt.size,
        "activation_bytes": fmt.size,
    }
    values = ((getattr(layer, name), show) for name, show in numbers.items())
    found = [layer.path, layer.type, *("-" if value == 0 else show(value) for value, show in values)]
    worst = [f"{fmt.ms(layer.worst.value)} {fmt.rank(layer.worst.rank)}"]
    return found + worst if _compares(summary.layers) else found


def about(layers: Layers) -> str:
    """What the numbers are based on."""
    samples = f"{fmt.count(layers.samples)} samples" if layers.samples != 1 else "1 sample"
    first, last = fmt.plain(layers.start_step), fmt.plain(layers.end_step)
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"{samples}, {steps}, {layers.clock or 'unknown'} clock"


def foot(layers: Layers, shown: int) -> list[str]:
    """The sums, and what the table does not say by itself."""
    rest = f"{fmt.count(layers.count)} layers in all; " if layers.count > shown else ""
    sums = (
        f"{rest}forward {fmt.ms(layers.forward_ms)}, backward {fmt.ms(layers.backward_ms)} "
        f"({fmt.share(layers.outside_share)} outside of layers); "
        f"parameters {fmt.size(layers.parameter_bytes)}, gradients {fmt.size(layers.gradient_bytes)}, "
        f"activations {fmt.size(layers.activation_bytes)} ({fmt.size(layers.outside_bytes)} outside)"
    )
    return [sums, *layers.notes]


def _compares(layers: Layers | None) -> bool:
    return layers is not None and len(layers.ranks) > 1
