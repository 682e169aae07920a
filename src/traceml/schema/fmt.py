"""Numbers and changes as text. The only place where a share becomes a percentage."""

from collections.abc import Callable, Sequence
from itertools import pairwise

MISSING = "n/a"


def _written(form: str, times: int = 1) -> Callable[[float | None], str]:
    """A format for numbers, which are multiplied first."""
    return lambda value: MISSING if value is None else form.format(times * value)


share = _written("{:.1f} %", 100)  # 0..1 as a percentage
whole_percent = _written("{:.0f} %", 100)  # the same without decimals, for sentences
share_change = _written("{:+.1f} %", 100)  # a relative change
percent = _written("{:.1f} %")  # a value that is a percentage already
count = _written("{:,.0f}")  # a whole number with separators
plain = _written("{}")  # a number that names something, such as a step: no separators
factor = _written("{:.2f}x")  # how many times as fast


def ms(value: float | None) -> str:
    """A duration given in milliseconds."""
    if value is None:
        return MISSING
    size = abs(value)
    if size >= 60_000:
        return f"{value / 60_000:.1f} min"
    if size >= 10_000:
        return f"{value / 1000:.1f} s"
    if size >= 10 or size == 0:
        return f"{value:.1f} ms"
    if size >= 0.1:
        return f"{value:.2f} ms"
    return f"{value * 1000:.1f} µs"


def skew(value: float | None) -> str:
    """How far above the median; a larger value than ten times is not spelled out."""
    return "> 999 %" if value is not None and value >= 9.995 else share(value)


def size(value: float | None) -> str:
    """Bytes."""
    if value is None:
        return MISSING
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.2f} {unit}" if factor >= 1e9 else f"{value / factor:.1f} {unit}"
    return f"{value:.0f} B"


def steps(number: int) -> str:
    """How many steps."""
    return "1 step" if number == 1 else f"{count(number)} steps"


def rank(value: int | None) -> str:
    """A rank, as r3."""
    return "" if value is None else f"r{value}"


def rate(value: float | None, noun: str = "") -> str:
    """Something per second. Without a noun, the label next to it says what and "per second"."""
    if value is None:
        return MISSING
    return (f"{value:,.0f}" if value >= 100 else f"{value:.1f}") + (f" {noun}/s" if noun else "")


def seconds(value: float | None) -> str:
    """A duration given in seconds."""
    if value is None:
        return MISSING
    if value < 60:
        return ms(value * 1000) if value < 1 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def age(value: float) -> str:
    """How long ago, in whole seconds: a view that is redrawn each second would flicker otherwise."""
    return f"{value:.0f} s" if value < 60 else seconds(value)


BY_UNIT = {
    "ms": ms,
    "bytes": size,
    "percent": percent,
    "per_s": rate,
    "c": _written("{:.0f} °C"),
    "w": _written("{:.0f} W"),
    "count": count,
}
"""How a value is shown, by the unit of its metric."""


def signed(text: str) -> str:
    """A formatted number with its sign in front, as every change has it."""
    return text if text.startswith("-") else f"+{text}"


def ms_change(value: float) -> str:
    """A change of a duration."""
    return signed(ms(value))


def in_unit(unit: str, value: float | None) -> str:
    """A value in a unit of the catalogue, or a share, or seconds."""
    if value is None:
        return MISSING
    if unit == "share":
        return share(value)
    if unit == "s":
        return f"{value:.1f} s" if abs(value) < 60 else seconds(value)
    return BY_UNIT[unit](value)


def change(unit: str, delta: float | None, delta_share: float | None) -> str:
    """A delta in its unit (of percentages, in points), with the relative change if there is one."""
    if delta is None:
        return MISSING
    if unit in ("share", "percent"):
        points = 100 * delta if unit == "share" else delta
        return f"{points:+.1f} pp"
    text = ("-" if delta < 0 else "+") + in_unit(unit, abs(delta))
    return f"{text} ({share_change(delta_share)})" if delta_share is not None else text


def free_percent(used: float | None) -> str:
    """What is left of a percentage in use."""
    return MISSING if used is None else percent(100 - used)


def ribbon_widths(parts: Sequence[float | None], width: int) -> list[int]:
    """Columns for each part, in proportion, `width` together. A part of at least half a column has one."""
    known = [max(part or 0.0, 0.0) for part in parts]
    total = sum(known)
    if total <= 0 or width <= 0:
        return [0] * len(known)
    exact = [width * part / total for part in known]
    widths = [max(int(columns), 1 if columns >= 0.5 else 0) for columns in exact]
    while (rest := width - sum(widths)) != 0:  # the part that is furthest from its exact width
        at = max(range(len(exact)), key=lambda i: (exact[i] - widths[i]) * (1 if rest > 0 else -1))
        widths[at] += 1 if rest > 0 else -1
    return widths


def sparkline(values: Sequence[float | None], width: int, levels: str) -> tuple[str, float | None]:
    """A line of at most `width` characters of `levels`, and the largest value.

    It starts at zero, and the usual value is at most a bit above the middle, so that steady looks steady.
    Each character shows the largest of its values, so that a single slow step stays visible.
    """
    known = [value for value in values if value is not None]
    count = min(width, len(known))
    if count <= 0:
        return "", None
    highest = max(known)
    if highest <= 0:
        return levels[0] * count, highest
    cuts = [at * len(known) // count for at in range(count + 1)]
    tops = [max(known[a:b]) for a, b in pairwise(cuts)]
    last, full = len(levels) - 1, max(highest, 1.6 * sorted(known)[len(known) // 2])
    return "".join(levels[max(0, int(last * top / full + 0.5))] for top in tops), highest
