"""Changes as people read them: always with a sign; shares and percentages in percentage points."""

from __future__ import annotations

from traceml.schema import fmt


def signed(text: str) -> str:
    """A formatted number with its sign in front."""
    return text if text.startswith("-") else f"+{text}"


def ms(value: float) -> str:
    """A change of a duration."""
    return signed(fmt.ms(value))


def share(value: float) -> str:
    """A relative change."""
    return signed(fmt.share(value))


def whole_percent(value: float) -> str:
    """A share without decimals, for sentences."""
    return f"{100 * value:.0f} %"


def value(unit: str, number: float | None) -> str:
    """A value in its unit."""
    if number is None:
        return fmt.MISSING
    if unit == "share":
        return fmt.share(number)
    if unit == "s":
        return f"{number:.1f} s" if abs(number) < 60 else fmt.seconds(number)
    return fmt.BY_UNIT[unit](number)


def change(unit: str, delta: float | None, delta_share: float | None) -> str:
    """A delta in its unit, with the relative change where that says something."""
    if delta is None:
        return fmt.MISSING
    if unit == "share":
        return f"{signed(f'{100 * delta:.1f}')} pp"
    if unit == "percent":
        return f"{signed(f'{delta:.1f}')} pp"
    said = ("-" if delta < 0 else "+") + value(unit, abs(delta))
    return f"{said} ({share(delta_share)})" if delta_share is not None else said
