"""What frameworks do that no call of torch tells (`seams.py`), and a file for each one with names for users.

The classes for users only start a recording, so nothing is counted twice.
"""

from importlib import import_module
from typing import Any


def load(module: str, package: str, least: int, user: str) -> Any:
    """Import a framework; a missing or too old one gives one line that says what to install."""
    wanted = f"{user} needs {package} {least} or newer: pip install '{package}>={least}'"
    try:
        found = import_module(module)
        version = str(import_module(module.partition(".")[0]).__version__)
    except ModuleNotFoundError as problem:
        raise ImportError(f"{wanted} ({problem})") from None
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < least:
        raise ImportError(f"{wanted} (version {version} is installed)")
    return found
