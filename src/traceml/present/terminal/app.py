"""The Textual app: looks at the run again and again, lays the panels out, and takes the keys.

It reads and draws; it cannot harm the training, which does not know of it.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import MouseScrollDown, MouseScrollUp, Resize
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from traceml.errors import CommandError
from traceml.present.terminal.ink import Ink, line
from traceml.present.terminal.panels import Shown, draw
from traceml.present.terminal.tables import rank_heads
from traceml.schema.live import Live

LOOK_EVERY_S: Final = 1.0
REST_FACTOR: Final = 30.0
"""After a look the view rests this many times as long as that took: a few percent of a core."""
LONGEST_REST_S: Final = 5.0
SMALL: Final = Size(110, 34)
"""On a smaller screen, one panel at a time is shown above the output."""
SIDE_BY_SIDE: Final = 180


class Panel(Widget):
    """Some lines, drawn for the width that there is."""

    def __init__(self, shown: Shown, name: str) -> None:
        super().__init__(id=name)
        self._draw = partial(draw, name, shown)
        self._drawn: list[Text] = []
        self._strips: list[Strip] = []

    def redraw(self) -> None:
        """Draw again; the screen changes only where the lines do."""
        drawn = self._draw(self.content_size.width, self.content_size.height)
        if drawn != self._drawn:
            self._drawn = drawn
            # `line`: Rich drops the style of a text that is a single piece.
            self._strips = [Strip(line(one).render(self.app.console)) for one in drawn]
            self.refresh(layout=True)

    def on_resize(self) -> None:
        self.redraw()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 - Textual's
        return len(self._draw(width, viewport.height))

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        found = self._strips[y] if y < len(self._strips) else Strip.blank(width)
        return found.adjust_cell_length(width).crop(0, width)


class LiveApp(App[None]):
    """The view of one run."""

    CSS = """
    Screen { background: ansi_default; color: ansi_default; layout: vertical; overflow: hidden; }
    Panel { height: auto; width: 100%; background: ansi_default; color: ansi_default; }
    #gauges, #rest { height: auto; width: 100%; background: ansi_default; }
    #memory { width: 24fr; padding-right: 2; }
    #system { width: 19fr; padding-right: 2; }
    #process { width: 17fr; }
    #rest { height: 1fr; }
    #rest Panel { height: 1fr; width: 1fr; }
    #ranks { padding-right: 2; }
    .stacked #rest { layout: vertical; }
    .stacked #rest Panel { width: 100%; padding-right: 0; }
    .stacked #rest #ranks { height: auto; min-height: 3; max-height: 50%; }
    #over { height: 1fr; }
    .roomy #time, .roomy #gauges, .roomy #layers, .roomy #rest, .roomy.stacked #output { margin-top: 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause"),
        Binding("tab,n", "next(1)", priority=True),
        Binding("shift+tab,p", "next(-1)", priority=True),
        Binding("r", "over('rank')"),
        Binding("question_mark,h", "over('help')"),
        Binding("escape", "over('')"),
        Binding("s", "sort"),
        Binding("S", "reverse"),
        Binding("z,enter", "zoom", priority=True),
        Binding("up,k", "move(-1)"),
        Binding("down,j", "move(1)"),
        Binding("pageup", "move(-10)"),
        Binding("pagedown", "move(10)"),
        Binding("home", "move(-100000)"),
        Binding("end", "move(100000)"),
        Binding("q", "quit", priority=True),
        Binding("ctrl+c", "interrupt", priority=True),
        Binding("ctrl+z", "stop_job", priority=True),
    ]

    def __init__(
        self,
        look: Callable[[], Live],
        read_output: Callable[[], list[str] | None],
        ink: Ink,
        interrupt: Callable[[], None] | None = None,
    ) -> None:
        """`read_output` gives the newest lines, None if the run's output is not kept. `interrupt` is what
        Ctrl-C does; without it, the view ends."""
        super().__init__(ansi_color=True)
        self.shown = Shown(ink)
        self._look, self._read_output = look, read_output
        self._interrupt = interrupt
        self._panels = self.shown.panels()

    def compose(self) -> ComposeResult:
        panel = partial(Panel, self.shown)
        yield from map(panel, ("rail", "tabs", "time"))
        with Horizontal(id="gauges"):
            yield from map(panel, ("memory", "system", "process"))
        yield panel("layers")
        with Horizontal(id="rest"):
            yield from map(panel, ("ranks", "output"))
        yield from map(panel, ("over", "keys"))

    def on_mount(self) -> None:
        if os.name == "posix":
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self.exit)
            take_suspend_key()
        self._arrange()
        self.run_worker(self._keep_looking())

    async def _keep_looking(self) -> None:
        while True:
            rest_s = LOOK_EVERY_S
            before = self.shown.live
            if not self.shown.paused:
                cost_s = await asyncio.to_thread(self._look_once)
                rest_s = max(rest_s, min(REST_FACTOR * cost_s, LONGEST_REST_S))
                if before is None or before is not self.shown.live or self.shown.problem:
                    self.redraw()  # of an ended run every look is the same
            self._check_size()
            await asyncio.sleep(rest_s)

    def _check_size(self) -> None:
        """Make up for a change of the terminal's size that we were not told of."""
        if self.is_headless or not os.isatty(2):
            return
        size = Size(*os.get_terminal_size(2))
        for wrong in (self, self.screen):
            if wrong.size != size:
                wrong.post_message(Resize(size, size))
                return

    def _look_once(self) -> float:
        """In a thread, so that keys are answered meanwhile; returns the CPU seconds that it took."""
        began = time.thread_time()
        try:
            self.shown.live, self.shown.problem = self._look(), ""
            self.shown.output = self._read_output()
        except (OSError, CommandError) as problem:
            self.shown.problem = f"the run cannot be read ({problem})"
        return time.thread_time() - began

    def redraw(self) -> None:
        if self.shown.panels() != self._panels:
            self._arrange()
        for panel in self.query(Panel):
            if panel.display:
                panel.redraw()

    def on_resize(self, event: Resize) -> None:
        self._arrange(event.size)

    def _arrange(self, new_size: Size | None = None) -> None:
        """Decide which panels are there, and how they stand."""
        shown, size = self.shown, new_size or self.size
        shown.alone = shown.zoomed or size.width < SMALL.width or size.height < SMALL.height
        self._panels = shown.panels()
        beside = [name for name in self._panels if not shown.alone or name in (shown.current, "output")]
        there = ["over"] if shown.over else [*beside, *["tabs"] * shown.alone]
        for panel in self.query(Panel):
            panel.display = panel.id in (*there, "rail", "keys")
        for box in self.query(Horizontal):
            box.display = any(panel.display for panel in box.children)
        self.screen.set_class(shown.alone or size.width < SIDE_BY_SIDE, "stacked")
        self.screen.set_class(not shown.alone, "roomy")
        self.call_after_refresh(self.redraw)

    def action_pause(self) -> None:
        self.shown.paused = not self.shown.paused
        self.redraw()

    def action_next(self, by: int) -> None:
        there = self.shown.panels()
        at = there.index(self.shown.current) + by
        self.shown.current = there[at if at < len(there) else 0]
        self._arrange()

    def action_over(self, what: str) -> None:
        """Show help or a rank above everything, or go back."""
        self.shown.over = "" if self.shown.over == what else what
        self._arrange()

    def action_zoom(self) -> None:
        self.shown.zoomed = not self.shown.zoomed
        self._arrange()

    def action_sort(self) -> None:
        shown = self.shown
        if shown.live is not None:
            is_last = shown.column + 1 >= len(rank_heads(shown.live.summary))
            shown.column = 0 if is_last else shown.column + 1
            shown.descending = not is_last
            self.redraw()

    def action_reverse(self) -> None:
        self.shown.descending = not self.shown.descending
        self.redraw()

    def action_move(self, by: int) -> None:
        """Through the output if that is the current panel, otherwise through the ranks."""
        if self.shown.current == "output":
            self.shown.back = max(0, self.shown.back - by)
        else:
            self.shown.cursor = max(0, self.shown.cursor + by)
        self.redraw()

    def on_mouse_scroll_down(self, _event: MouseScrollDown) -> None:
        self.action_move(3)

    def on_mouse_scroll_up(self, _event: MouseScrollUp) -> None:
        self.action_move(-3)

    def action_interrupt(self) -> None:
        """Terminals that report Ctrl-C as a key, not as a signal."""
        if self._interrupt is not None:
            self._interrupt()
        else:
            self.exit()

    def action_stop_job(self) -> None:
        """Ctrl-Z: put the screen in order, then stop everything that the shell started with us."""
        with self.suspend():
            os.killpg(os.getpgrp(), signal.SIGTSTP)
        take_suspend_key()


def take_suspend_key() -> None:
    """Let Ctrl-Z come as a key. As a signal it would stop the job before the screen is in order."""
    import termios

    if os.isatty(0):
        attributes = termios.tcgetattr(0)
        attributes[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(0, termios.TCSANOW, attributes)
