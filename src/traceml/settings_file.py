"""Settings from a file: traceml.yaml, or [tool.traceml] in pyproject.toml, in the current folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from traceml.errors import CommandError


def read_file_settings(folder: Path) -> tuple[dict[str, Any], str]:
    """The values, and the name of their file."""
    path = folder / "traceml.yaml"
    if path.exists():
        return _table(_yaml(path), path), path.name
    path = folder / "pyproject.toml"
    if path.exists():
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
        return yaml.safe_load(path.read_text())
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as problem:
        raise CommandError(f"{path}: cannot be read as YAML ({_first_line(problem)})") from None


def _toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        data = path.read_bytes()
    except OSError:
        return {}  # not ours, so not an error
    try:
        found: dict[str, Any] = tomllib.loads(data.decode())
        return found
    except ValueError as problem:
        if b"[tool.traceml]" not in data:
            return {}  # broken, but without settings of ours
        raise CommandError(f"{path}: cannot be read as TOML ({_first_line(problem)})") from None


def _first_line(problem: Exception) -> str:
    return str(problem).splitlines()[0] if str(problem) else type(problem).__name__
