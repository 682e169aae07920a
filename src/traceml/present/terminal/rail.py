"""The verdict first: what is wrong, why, what to do, since when, and whether there is news."""

import textwrap
from typing import Final

from rich.text import Text

from traceml.present.terminal.ink import SEVERITY, Ink, between, line
from traceml.schema import fmt
from traceml.schema import live as state
from traceml.schema.live import Live

STATE_STYLES: Final = {state.LIVE: "green", state.STALE: "yellow", state.CRASHED: "red"}
MOST_LINES: Final = 2
"""Of each sentence."""


def rail(live: Live | None, width: int, ink: Ink, note: str = "") -> list[Text]:
    """The lines on top. `note` is about the view itself: paused, or the run cannot be read."""
    if live is None:
        return [between(ink.text("TraceML", "bold"), ink.text(note or "looking for the run", "bold"), width)]
    first, run = live.summary.primary_diagnosis, live.summary.run
    word = SEVERITY.get(first.severity, ("", ""))[0]
    style = ink.severity(first.severity) if first.kind != "NO_DATA" else "bold"
    verdict = line(ink.text(first.status, style), ink.text(f"  {word}" if word else ""))
    lines = [_head(live, ink, note, width), between(verdict, ink.text(_since(live), "dim"), width)]
    for name, said in (("Why", first.summary), ("Next", first.action)):
        lines += _sentence(name, said, width, ink)
    if run.status not in ("running", "completed"):
        lines += _sentence("Ended", run.reason or run.status, width, ink)
    return lines


def _sentence(name: str, said: str, width: int, ink: Ink) -> list[Text]:
    found = textwrap.wrap(ink.clean(said), max(width - 6, 10), max_lines=MOST_LINES, placeholder=" ...")
    heads = [f"{name:<6}", *[" " * 6] * MOST_LINES]
    return [line(ink.text(h, "dim"), ink.text(t)) for h, t in zip(heads, found, strict=False)]


def _head(live: Live, ink: Ink, note: str, width: int) -> Text:
    """The run, how far it is, and how fresh that is; on a narrow screen with fewer facts."""
    run = live.summary.run
    facts = [
        fmt.age(run.duration_s) if run.duration_s is not None else "",
        f"{fmt.rate(live.steps_per_s, 'steps')}" if live.steps_per_s and not live.is_over else "",
        f"{fmt.count(run.world_size)} ranks" if run.world_size > 1 else "",
        f"step {fmt.count(run.steps.total)}" if run.steps.total else "",
    ]
    facts = [fact for fact in facts if fact]
    name = ink.text(f"TraceML  {run.name}", "bold")
    style = STATE_STYLES.get(live.state, "") if ink.colour else ""
    now = ink.text(note or state_text(live), "bold reverse" if note else f"bold {style}")
    while facts and name.cell_len + len(", ".join(facts)) + now.cell_len + 4 > width:
        facts = facts[1:]
    return between(name, line(ink.text(", ".join(facts), "dim"), Text("  "), now), width)


def state_text(live: Live) -> str:
    """The state in words, with the seconds since there was news."""
    said = state.STATES.get(live.state, live.state)
    if live.state == state.LIVE and live.summary.run.steps.total:
        return f"{said}, last step {fmt.age(live.quiet_s)} ago"
    if live.state in (state.STALE, state.WAITING):
        return f"{said}{' for' if live.state == state.STALE else ','} {fmt.age(live.quiet_s)}"
    return said


def _since(live: Live) -> str:
    if live.since_step is None:
        return ""
    return f"since step {fmt.count(live.since_step)}{' or earlier' if live.since_start else ''}"
