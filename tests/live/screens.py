"""The terminal view without a terminal: Textual's pilot, and the screen as plain text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.live.lives import OUTPUT
from traceml.present.terminal.app import LiveApp
from traceml.present.terminal.ink import Ink
from traceml.schema.live import Live


def plain(app: LiveApp) -> list[str]:
    """The lines of the screen."""
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


def screen_of(
    live: Live,
    size: tuple[int, int],
    keys: Sequence[str] = (),
    output: list[str] | None = OUTPUT,
    ink: Ink | None = None,
    then: Callable[[LiveApp], None] | None = None,
) -> list[str]:
    """What is on a screen of this size after these keys; `then` may look at the app."""

    async def show() -> list[str]:
        app = LiveApp(lambda: live, lambda: output, ink or Ink())
        async with app.run_test(size=size) as pilot:
            while app.shown.live is None:
                await pilot.pause()
            app.redraw()
            await pilot.press(*keys)
            await pilot.pause()
            await pilot.pause()
            if then is not None:
                then(app)
            return plain(app)

    return asyncio.run(show())
