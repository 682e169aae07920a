"""Settings from a file: traceml.yaml, or [tool.traceml] in pyproject.toml, in the current folder."""

import os
import sys
from pathlib import Path
from typing import Any, Final

from traceml.errors import CommandError
from traceml.files import read_whole

MOST_BYTES: Final = 1_000_000


def read_file_settings(folder: Path) -> tuple[dict[str, Any], str]:
    """The values, and the name of their file."""
    # `os.path` and not `Path`: its questions never raise, in whatever folder we are.
    path = folder / "traceml.yaml"
    if os.path.lexists(path):
        return _table(_yaml(path), path), path.name
    path = folder / "pyproject.toml"
    if os.path.lexists(path):
        tool = _toml(path).get("tool", {})
        return _table(tool.get("traceml") if isinstance(tool, dict) else None, path), path.name
    return {}, ""


def _table(found: Any, path: Path) -> dict[str, Any]:
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise CommandError(f"{path}: use `setting: value` lines")
    return {str(key).replace("-", "_"): value for key, value in found.items()}


def _yaml(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(read_whole(path, MOST_BYTES))
    except (yaml.YAMLError, OSError, ValueError, RecursionError) as problem:
        raise CommandError(f"{path}: cannot be read as YAML ({_first_line(problem)})") from None


def _toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        data = read_whole(path, MOST_BYTES)
    except OSError:
        return {}  # not ours, so not an error
    try:
        found: dict[str, Any] = tomllib.loads(data.decode())
        return found
    except (ValueError, RecursionError) as problem:
        if b"[tool.traceml]" not in data:
            return {}  # broken, but without settings of ours
        raise CommandError(f"{path}: cannot be read as TOML ({_first_line(problem)})") from None


def _first_line(problem: Exception) -> str:
    if isinstance(problem, RecursionError):
        return "nested too deeply"
    text = getattr(problem, "strerror", None) or str(problem)
    return text.splitlines()[0][:200] if text else type(problem).__name__
