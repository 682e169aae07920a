"""Every setting once. A flag wins over a TRACEML_* variable, that over a file, that over the default."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from traceml.errors import CommandError

MODES: Final = ("summary", "cli", "dashboard")
TRACKERS: Final = ("wandb", "mlflow", "tensorboard")
LONGEST_SHOWN: Final = 60
"""Of a bad value, in a message."""


def _boolean(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("", "0", "false", "no", "off"):
        return False
    raise ValueError("use 1 or 0")


def _seconds(text: str) -> float:
    value = float(text) if text.isascii() and "_" not in text else 0.0
    if not 0.05 <= value <= 3600:
        raise ValueError("use seconds from 0.05 to 3600")
    return value


def _count(text: str, most: int = 999_999) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits) <= most):
        raise ValueError(f"use a whole number from 0 to {most}")
    return int(digits)


def _port(text: str) -> int:
    return _count(text, 65_535)


def _matching(pattern: str, advice: str) -> Callable[[str], str]:
    """Reads a text of this form; the advice is for all others."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text, re.DOTALL):
            raise ValueError(advice)
        return text

    return parse


_ranks = _matching("[A-Za-z]{1,16}|[0-9]{1,6}", "use a number, or auto, gpu or cpu")  # what torchrun knows
_word = _matching(r"\S(.*\S)?", "use a value without spaces around it")
_path = _matching(".+", "use the path of a folder")
_url = _matching("https?://.*", "use an address such as http://localhost:4318")
_mode = _matching("|".join(MODES), f"use one of: {', '.join(MODES)}")
_one_tracker = "|".join(TRACKERS)
_trackers = _matching(
    f"({_one_tracker})(,({_one_tracker}))*",
    f"use one or more of: {', '.join(TRACKERS)}, separated by commas",
)


def address_of(text: str) -> tuple[str, int]:
    """`9108` or `host:9108`; without a host, this machine only."""
    host, _, port = text.rpartition(":")
    return host.strip("[]") or "127.0.0.1", _port(port)


def _address(text: str) -> str:
    address_of(text)
    return text


def _run_name(text: str) -> str:
    """A folder name and nothing more, because it is joined to the logs folder."""
    if not text or text in (".", "..") or text.startswith("-"):
        raise ValueError("use a plain name")
    if any(ch in "/\\\0" or not ch.isprintable() for ch in text):
        raise ValueError("use a plain name without path segments or control characters")
    if len(text.encode()) > 200:
        raise ValueError("use at most 200 bytes")
    return text


def _setting(parse: Callable[[str], Any], default: Any, value: str, help: str) -> Any:
    """How the text is read, the default, what --help calls the value (nothing for a switch), the help."""
    return field(default=default, metadata={"parse": parse, "value": value, "help": help})


@dataclass(frozen=True, slots=True)
class Settings:
    """The resolved values. Each field is a setting; `SETTINGS` is made from them."""

    run_name: str | None = _setting(_run_name, None, "NAME", "name of the run (default: script and time)")
    logs_dir: str = _setting(_path, "logs", "DIR", "folder that the run folders are in")
    mode: str = _setting(
        _mode,
        "summary",
        "MODE",
        "what to show: summary, at the end; cli, live in the terminal; dashboard, live in the browser",
    )
    ui_host: str | None = _setting(_word, None, "HOST", "address of the dashboard (default: 127.0.0.1)")
    ui_port: int | None = _setting(_port, None, "PORT", "port of the dashboard; if it is busy, another")
    no_browser: bool = _setting(_boolean, False, "", "with --mode=dashboard: do not open a browser")
    interval: float = _setting(_seconds, 1.0, "SECONDS", "time between samples of CPU, memory and GPU")
    stall_after: float = _setting(_seconds, 30.0, "SECONDS", "report a stall after this long without a step")
    nproc_per_node: str | None = _setting(_ranks, None, "N", "start N ranks on this machine with torchrun")
    nnodes: int = _setting(_count, 1, "N", "number of machines; give all of them the same --run-name")
    node_rank: int | None = _setting(_count, None, "K", "number of this machine, from 0 to nnodes - 1")
    master_addr: str | None = _setting(_word, None, "HOST", "address of machine 0")
    master_port: int | None = _setting(_port, None, "PORT", "port of torchrun on machine 0 (default: 29500)")
    relay_port: int | None = _setting(_port, None, "PORT", "port of TraceML on machine 0 (default: any)")
    deep: bool = _setting(_boolean, False, "", "also measure layers: their time and memory, in sampled steps")
    html_report: bool = _setting(_boolean, False, "", "also write the summary as a page, final_summary.html")
    report_to: str | None = _setting(
        _trackers, None, "NAMES", "log the result to the script's run of wandb, mlflow or tensorboard (a,b)"
    )
    report_every: float | None = _setting(
        _seconds, None, "SECONDS", "with --report-to: also log step times this often while it trains"
    )
    prometheus: str | None = _setting(
        _address,
        None,
        "PORT",
        "serve metrics for Prometheus on this port, on this machine only; or HOST:PORT",
    )
    otlp: str | None = _setting(_url, None, "URL", "send metrics to an OpenTelemetry collector (OTLP/HTTP)")
    overwrite: bool = _setting(_boolean, False, "", "replace an earlier run of the same name")
    quiet: bool = _setting(_boolean, False, "", "write the summary files but print nothing")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. Its names follow from its key: `--run-name`, `TRACEML_RUN_NAME`, `run_name` in a file."""

    key: str
    default: Any
    parse: Callable[[str], Any]
    value: str
    help: str

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        return "TRACEML_" + self.key.upper()

    @property
    def is_switch(self) -> bool:
        return not self.value


SETTINGS: Final = tuple(Setting(f.name, f.default, **f.metadata) for f in fields(Settings))
DISABLED_VARIABLE: Final = "TRACEML_DISABLED"
KEY_VARIABLE: Final = "TRACEML_KEY"
REPORT_TO_VARIABLE: Final = "TRACEML_REPORT_TO"
REPORT_EVERY_VARIABLE: Final = "TRACEML_REPORT_EVERY"
DEEP_VARIABLE: Final = "TRACEML_DEEP"
LAUNCH_KEYS: Final = frozenset({"nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port"})
"""What decides which command is started; the rest only concerns TraceML."""


def resolve(
    flags: Mapping[str, str],
    file_values: Mapping[str, Any],
    file_name: str = "traceml.yaml",
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Merge the sources. The error for a bad value is one line that names its source."""
    environment = os.environ if environment is None else environment
    known = [setting.key for setting in SETTINGS]
    if unknown := sorted(set(file_values) - set(known)):
        raise CommandError(
            f"{file_name}: unknown setting {unknown[0][:LONGEST_SHOWN]!r}; use one of: {', '.join(known)}"
        )
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        if given := _sources(setting, flags, environment, file_values, file_name):
            values[setting.key] = _parse(setting, *given[0])
    return Settings(**values)


def resolve_launch(
    flags: Mapping[str, str], file_values: Mapping[str, Any], environment: Mapping[str, str]
) -> Settings:
    """For a disabled run: only what decides the command, and no bad variable or file can make it fail."""
    values: dict[str, Any] = {}
    for setting in (s for s in SETTINGS if s.key in LAUNCH_KEYS):
        for source, value in _sources(setting, flags, environment, file_values, ""):
            try:
                values[setting.key] = _parse(setting, source, value)
                break
            except CommandError:
                if source == setting.flag:
                    raise
    return Settings(**values)


def _sources(
    setting: Setting,
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    file_values: Mapping[str, Any],
    file_name: str,
) -> list[tuple[str, Any]]:
    """Where this setting is given, and as what; the first one wins."""
    values = {
        setting.flag: flags.get(setting.key),
        setting.variable: environment.get(setting.variable),
        f"{setting.key} in {file_name}": file_values.get(setting.key),
    }
    return [(source, value) for source, value in values.items() if value is not None]


def for_training(settings: Settings) -> dict[str, str]:
    """What the training process is told, as variables; empty if it was not asked for."""
    every = settings.report_every if settings.report_to else None
    return {
        DEEP_VARIABLE: "1" if settings.deep else "",
        REPORT_TO_VARIABLE: settings.report_to or "",
        REPORT_EVERY_VARIABLE: str(every or ""),
    }


def is_switched_off(environment: Mapping[str, str]) -> bool:
    """Like `is_disabled`, for the training process, which must not fail: a bad value counts as on."""
    return environment.get(DISABLED_VARIABLE, "").lower() not in ("", "0", "false", "no", "off")


def is_disabled(environment: Mapping[str, str]) -> bool:
    """Whether TRACEML_DISABLED asks for a run without TraceML."""
    value = environment.get(DISABLED_VARIABLE, "")
    try:
        return _boolean(value)
    except ValueError as problem:
        raise CommandError(
            f"{DISABLED_VARIABLE}: invalid value {value[:LONGEST_SHOWN]!r}; {problem}"
        ) from None


def _parse(setting: Setting, source: str, value: Any) -> Any:
    if not isinstance(value, (str, int, float)):  # a file's list or table, which may be very large as text
        raise CommandError(f"{source}: use one value, not a list or table")
    try:
        text = ("1" if value else "0") if isinstance(value, bool) else str(value)
    except ValueError:
        text = "a very large number"
    try:
        return setting.parse(text)
    except ValueError as problem:
        reason = str(problem)
        if "could not convert" in reason or "invalid literal" in reason:
            reason = "use a number"
        what = "unknown" if setting.parse is _mode else "invalid"
        raise CommandError(f"{source}: {what} value {text[:LONGEST_SHOWN]!r}; {reason}") from None
