"""Every setting once. A flag wins over a TRACEML_* variable, that over a file, that over the default."""

import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from traceml.errors import CommandError
from traceml.files import read_whole

MODES: Final = ("summary", "cli", "dashboard")
TRACKERS: Final = ("wandb", "mlflow", "tensorboard")
YES, NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
LONGEST_SHOWN: Final = 60
"""Of a bad value, in a message."""
MOST_FILE_BYTES: Final = 1_000_000


def _boolean(text: str) -> bool:
    if text.lower() not in YES + NO:
        raise ValueError("use 1 or 0")
    return text.lower() in YES


def _seconds(text: str) -> float:
    try:
        value = float(text) if text.isascii() and "_" not in text else 0.0
    except ValueError:
        raise ValueError("use a number") from None
    if not 0.05 <= value <= 3600:
        raise ValueError("use seconds from 0.05 to 3600")
    return value


def _count(text: str, most: int = 999_999) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits) <= most):
        raise ValueError(f"use a whole number from 0 to {most}")
    return int(digits)


def _matching(pattern: str, advice: str) -> Callable[[str], str]:
    """Reads a text of this form; the advice is for all others."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text, re.DOTALL):
            raise ValueError(advice)
        return text

    return parse


_port = partial(_count, most=65_535)
_ranks = _matching("[A-Za-z]{1,16}|[0-9]{1,6}", "use a number, or auto, gpu or cpu")  # what torchrun knows
_word = _matching(r"\S(.*\S)?", "use a value without spaces around it")
_path = _matching(".+", "use the path of a folder")
_url = _matching("https?://[^/?#:].*", "use an address such as http://localhost:4318")
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


class Setting(NamedTuple):
    """One setting. Its names follow from its key: `--run-name`, `TRACEML_RUN_NAME`, `run_name` in a file."""

    key: str
    flag: str
    variable: str
    default: Any
    parse: Callable[[str], Any]
    value: str
    help: str


SETTINGS: Final = tuple(
    Setting(f.name, "--" + f.name.replace("_", "-"), "TRACEML_" + f.name.upper(), f.default, **f.metadata)
    for f in fields(Settings)
)
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
    only: Collection[str] = (),
) -> Settings:
    """Merge the sources. The error for a bad value is one line that names its source.

    `only` is for a disabled run: these settings alone count, and no bad variable or file makes it fail.
    """
    environment = os.environ if environment is None else environment
    known = [setting.key for setting in SETTINGS]
    if (unknown := sorted(set(file_values) - set(known))) and not only:
        raise CommandError(
            f"{file_name}: unknown setting {unknown[0][:LONGEST_SHOWN]!r}; use one of: {', '.join(known)}"
        )
    values: dict[str, Any] = {}
    for setting in (s for s in SETTINGS if s.key in only or not only):
        sources = {
            setting.flag: flags.get(setting.key),
            setting.variable: environment.get(setting.variable),
            f"{setting.key} in {file_name}": file_values.get(setting.key),
        }
        for source, value in sources.items():
            if value is None:
                continue
            try:
                values[setting.key] = _parse(setting, source, value)
                break
            except CommandError:
                if source == setting.flag or not only:
                    raise
    return Settings(**values)


def for_training(settings: Settings) -> dict[str, str]:
    """The variables for the training process; empty if nothing was asked for."""
    every = settings.report_every if settings.report_to else None
    return {
        DEEP_VARIABLE: "1" if settings.deep else "",
        REPORT_TO_VARIABLE: settings.report_to or "",
        REPORT_EVERY_VARIABLE: str(every or ""),
    }


def is_switched_off(environment: Mapping[str, str]) -> bool:
    """Like `is_disabled`, for the training process, which must not fail: a bad value counts as on."""
    return environment.get(DISABLED_VARIABLE, "").lower() not in NO


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
        what = "unknown" if setting.parse is _mode else "invalid"
        raise CommandError(f"{source}: {what} value {text[:LONGEST_SHOWN]!r}; {problem}") from None


def read_file_settings(folder: Path) -> tuple[dict[str, Any], str]:
    """The values of traceml.yaml, or of [tool.traceml] in pyproject.toml, and the name of the file."""
    # `os.path` and not `Path`: its questions never raise, in whatever folder we are.
    path = folder / "traceml.yaml"
    if os.path.lexists(path):
        found = _yaml(path)
    elif os.path.lexists(path := folder / "pyproject.toml"):
        tool = _toml(path).get("tool", {})
        found = tool.get("traceml") if isinstance(tool, dict) else None
    else:
        return {}, ""
    if not isinstance(found, dict | None):
        raise CommandError(f"{path}: use `setting: value` lines")
    return {str(key).replace("-", "_"): value for key, value in (found or {}).items()}, path.name


def _yaml(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(read_whole(path, MOST_FILE_BYTES))
    except (yaml.YAMLError, OSError, ValueError, RecursionError) as problem:
        raise CommandError(f"{path}: cannot be read as YAML ({_first_line(problem)})") from None


def _toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    data = b""
    try:
        data = read_whole(path, MOST_FILE_BYTES)
        return dict(tomllib.loads(data.decode()))
    except (OSError, ValueError, RecursionError) as problem:
        if b"[tool.traceml]" not in data:
            return {}  # broken or not readable, but without settings of ours
        raise CommandError(f"{path}: cannot be read as TOML ({_first_line(problem)})") from None


def _first_line(problem: Exception) -> str:
    if isinstance(problem, RecursionError):
        return "nested too deeply"
    text = getattr(problem, "strerror", None) or str(problem)
    return text.splitlines()[0][:200] if text else type(problem).__name__
