"""The training's own output as a terminal would show it: progress bars in their latest state, no escapes."""

import re
from typing import Final

_TOKENS: Final = re.compile(
    r"(?P<csi>\x1b\[(?P<args>[0-?]*)[ -/]*(?P<what>[@-~]))"
    r"|(?P<osc>\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?)"
    r"|(?P<escape>\x1b[ -/]*[0-~]?)"
    r"|(?P<control>[\n\r\b])"
    r"|(?P<text>[^\x1b\n\r\b]+)"
)
MOST_UP: Final = 200


def settled(text: str) -> list[str]:
    """The lines after carriage returns, backspaces and cursor movements of progress bars took effect.

    Anything else that could control a terminal is left out.
    """
    lines, row, column = [""], 0, 0
    for token in _TOKENS.finditer(text):
        if (words := token["text"]) is not None:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + words + line[column + len(words) :]
            column += len(words)
        elif (control := token["control"]) is not None:
            column = max(column - 1, 0) if control == "\b" else 0
            row += control == "\n"
        elif token["what"] == "A":
            row -= min(_count(token["args"]), row)
        elif token["what"] == "B":
            row += _count(token["args"])
        elif token["what"] == "K":
            lines[row] = "" if token["args"] == "2" else lines[row][:column]
        while len(lines) <= row:
            lines.append("")
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.rstrip() for line in lines]


def _count(argument: str) -> int:
    return min(int(argument), MOST_UP) if argument.isdigit() else 1
