"""argparse with the error of every other command: one line, exit code 2."""

from __future__ import annotations

import argparse
from typing import NoReturn

from traceml.errors import CommandError


class Parser(argparse.ArgumentParser):
    """Says what is wrong without the whole usage."""

    def error(self, message: str) -> NoReturn:
        """What argparse would print under several lines of usage."""
        raise CommandError(f"{message}; see `{self.prog} --help`")
