"""Every setting once: flag, TRACEML_* variable, key in a file, default; they win in this order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from traceml.errors import CommandError


def _boolean(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("", "0", "false", "no", "off"):
        return False
    raise ValueError("use 1 or 0")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.05 <= value <= 3600:
        raise ValueError("use seconds from 0.05 to 3600")
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 0 <= value < 1_000_000:
        raise ValueError("use a whole number")
    return value


def _word(text: str) -> str:
    if not text or text != text.strip():
        raise ValueError("use a value without spaces")
    return text


def _mode(text: str) -> str:
    if text not in MODES:
        raise ValueError(f"use one of: {', '.join(MODES)}")
    return text


def _run_name(text: str) -> str:
    """A folder name and nothing more: it is joined to the logs folder."""
    if not text or text in (".", "..") or text.startswith("-"):
        raise ValueError("use a plain name")
    if any(ch in "/\\\0" or not ch.isprintable() for ch in text):
        raise ValueError("use a plain name without path segments or control characters")
    if len(text.encode()) > 200:
        raise ValueError("use at most 200 bytes")
    return text


def _path(text: str) -> str:
    if not text:
        raise ValueError("use a folder")
    return text


MODES: Final = ("summary",)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: its key doubles as flag (`--run-name`), variable (`TRACEML_RUN_NAME`) and file key."""

    key: str
    parse: Callable[[str], Any]
    default: Any
    help: str

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        return "TRACEML_" + self.key.upper()

    @property
    def is_switch(self) -> bool:
        return self.parse is _boolean


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("run_name", _run_name, None, "name of the run and of its folder (default: script and time)"),
    Setting("logs_dir", _path, "logs", "folder that holds the run folders"),
    Setting("mode", _mode, "summary", "what to show: summary (the verdict at the end)"),
    Setting("interval", _seconds, 1.0, "seconds between samples of CPU, memory and GPU"),
    Setting("stall_after", _seconds, 30.0, "seconds without a completed step before that is reported"),
    Setting("nproc_per_node", _word, None, "start this many ranks on this machine, through torchrun"),
    Setting("nnodes", _count, 1, "machines of the run (give all of them the same --run-name)"),
    Setting("node_rank", _count, None, "which of the machines this is, from 0"),
    Setting("master_addr", _word, None, "address of machine 0"),
    Setting("master_port", _count, None, "port of torchrun on machine 0 (default: 29500)"),
    Setting("relay_port", _count, None, "port of TraceML on machine 0 (default: any free one)"),
    Setting("overwrite", _boolean, False, "replace a run of the same name"),
    Setting("quiet", _boolean, False, "write the summary files, print nothing"),
)

DISABLED_VARIABLE: Final = "TRACEML_DISABLED"


@dataclass(frozen=True, slots=True)
class Settings:
    """The resolved values."""

    run_name: str | None
    logs_dir: str
    mode: str
    interval: float
    stall_after: float
    nproc_per_node: str | None
    nnodes: int
    node_rank: int | None
    master_addr: str | None
    master_port: int | None
    relay_port: int | None
    overwrite: bool
    quiet: bool


def resolve(
    flags: Mapping[str, str],
    file_values: Mapping[str, Any],
    file_name: str = "traceml.yaml",
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Merge the sources; a bad value is one clear line that names where it came from."""
    environment = os.environ if environment is None else environment
    unknown = sorted(set(file_values) - {s.key for s in SETTINGS})
    if unknown:
        known = ", ".join(s.key for s in SETTINGS)
        raise CommandError(f"{file_name}: unknown setting {unknown[0]!r}; known are: {known}")
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        values[setting.key] = setting.default
        for source, found in (
            (setting.flag, flags.get(setting.key)),
            (setting.variable, environment.get(setting.variable)),
            (f"{setting.key} in {file_name}", file_values.get(setting.key)),
        ):
            if found is not None:
                values[setting.key] = _parse(setting, source, found)
                break
    return Settings(**values)


def is_switched_off(environment: Mapping[str, str]) -> bool:
    """Like `is_disabled`, for the training process: a value that makes no sense counts as on there."""
    return environment.get(DISABLED_VARIABLE, "").lower() not in ("", "0", "false", "no", "off")


def is_disabled(environment: Mapping[str, str]) -> bool:
    """TRACEML_DISABLED=1 means a native launch."""
    value = environment.get(DISABLED_VARIABLE, "")
    try:
        return _boolean(value)
    except ValueError as problem:
        raise CommandError(f"{DISABLED_VARIABLE}={value!r}: {problem}") from None


def _parse(setting: Setting, source: str, value: Any) -> Any:
    text = ("1" if value else "0") if isinstance(value, bool) else str(value)
    try:
        return setting.parse(text)
    except ValueError as problem:
        reason = str(problem)
        if "could not convert" in reason or "invalid literal" in reason:
            reason = "use a number"
        raise CommandError(f"{source}: {text!r} will not do; {reason}") from None
