"""TensorBoard: figures become scalars, the report a text, the files lie beside the writer's."""

import shutil
from typing import Any, Final

from traceml.capture.trackers.report import Reporter, Result, observe

MODULES: Final = ("torch.utils.tensorboard.writer", "tensorboardX.writer")


class TensorboardRun:
    """A SummaryWriter, the first that the script has open: others belong to it (`add_hparams` makes one)."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log_end(self, result: Result) -> None:
        """The text as code, so that its columns stay in line."""
        self.log_live(result.numbers, result.step)
        indented = "\n".join(f"    {line}" for line in result.text.splitlines())
        self._writer.add_text("traceml/summary", indented, result.step)
        self._writer.flush()
        for path in result.folder.iterdir():
            shutil.copy(path, self._writer.log_dir)

    def log_live(self, figures: dict[str, float], step: int) -> None:
        """As scalars, at this step."""
        for key, value in figures.items():
            self._writer.add_scalar(key, value, step)


def attach(reporter: Reporter, module: Any) -> None:
    """Wait for writers."""

    def begins(_: None, writer: Any, *__: Any, **___: Any) -> None:
        if not reporter.open:
            reporter.begins(id(writer), TensorboardRun(writer))

    def ends(writer: Any, *_: Any, **__: Any) -> None:
        if id(writer) in reporter.open:
            reporter.ends(id(writer), TensorboardRun(writer))

    observe(reporter, module.SummaryWriter, "__init__", after=begins)
    observe(reporter, module.SummaryWriter, "close", before=ends)
