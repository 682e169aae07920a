"""`[our flags] target [our flags] [--args|--] [the script's flags]`, told apart without guessing.

After a script or `-m module`, our flags are taken up to the first word that is none of them; from there
on, or after `--args` or `--`, everything belongs to the script. After any other command everything
belongs to the command.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from traceml.errors import CommandError
from traceml.settings import SETTINGS

_BY_FLAG = {s.flag: s for s in SETTINGS}


@dataclass(slots=True)
class Parsed:
    """What was typed, sorted."""

    flags: dict[str, str] = field(default_factory=dict)
    target: str | None = None
    is_module: bool = False
    arguments: list[str] = field(default_factory=list)
    disabled: bool = False
    help: bool = False


def parse(words: list[str]) -> Parsed:
    """Sort the words of `traceml run ...`."""
    parsed = Parsed()
    rest = _take_flags(words, parsed)
    if parsed.help:
        return parsed
    if rest and rest[0] == "-m":
        if len(rest) < 2:
            raise CommandError("-m needs a module name")
        parsed.is_module, parsed.target, rest = True, rest[1], rest[2:]
    elif rest and rest[0] in ("--", "--args"):
        raise CommandError("give a script, `-m module` or a command before the script's arguments")
    elif rest and rest[0].startswith("-"):
        raise CommandError(f"unknown flag {rest[0]}; `traceml run --help` lists them")
    elif rest:
        parsed.target, rest = rest[0], rest[1:]
    if parsed.target is not None and (parsed.is_module or parsed.target.endswith(".py")):
        before = parsed.help
        rest = _take_flags(rest, parsed, in_script=True)
        parsed.help = before
        if rest and rest[0] in ("--", "--args"):
            rest = rest[1:]
    parsed.arguments = rest
    return parsed


def _take_flags(words: list[str], parsed: Parsed, in_script: bool = False) -> list[str]:
    """Take our flags off the front; returns what is left."""
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, value = word.partition("=")
        if word in ("-h", "--help") and not in_script:
            parsed.help = True
        elif word == "--disable-traceml":
            parsed.disabled = True
        elif name in _BY_FLAG:
            setting = _BY_FLAG[name]
            if setting.is_switch and not equals:
                value = "1"
            elif not equals:
                at += 1
                if at >= len(words):
                    raise CommandError(f"{name} needs a value: {setting.help}")
                value = words[at]
            parsed.flags[setting.key] = value
        else:
            return words[at:]
        at += 1
    return []
