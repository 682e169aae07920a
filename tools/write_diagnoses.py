"""Writes docs/diagnoses.md from the rules, because a rule is also its documentation.

python tools/write_diagnoses.py          write the page
python tools/write_diagnoses.py --check  exit 1 if the page is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from traceml.analyze.diagnose import all_rules
from traceml.analyze.rules.rule import Rule

PAGE = Path(__file__).parents[1] / "docs" / "diagnoses.md"
TITLES = {"step_time": "Step time", "step_memory": "Step memory", "system": "System", "process": "Process"}
HEAD = """# Diagnoses

Written by `tools/write_diagnoses.py` from the rules; do not edit by hand.

- Shares are shares of the full step time, including the wait for input.
- With fewer than 2 completed steps the result is `NO DATA`; with fewer than 20 it is at most a warning.
- If no rule fires, the result is `BALANCED` (step time, memory) or `NORMAL` (system, process). If a
  signal was missing, it is `INCOMPLETE DATA` with the name of that signal.
- The primary diagnosis is the first step-time finding that is not just informational. If there is none, it is
  a critical memory finding, then idle GPUs, otherwise `COMPUTE-BOUND` or `BALANCED`.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for section, rules in all_rules().items():
        parts.append(f"\n## {TITLES[section]}\n")
        for rule in rules:
            text = " ".join((rule.measure.__doc__ or "").split())
            action = rule.action.replace("{", "<").replace("}", ">")
            parts.append(f"\n### {rule.label}\n\n`{rule.kind}`. {text}\n\nNext: {action}\n")
            parts.append(_thresholds(rule))
    return "".join(parts)


def _thresholds(rule: Rule[Any]) -> str:
    limits = rule.thresholds
    if limits is None or not limits.of:
        return ""
    crit = f", critical at {limits.unit(limits.crit)}" if limits.crit is not None else ""
    return f"\nWarning at {limits.of.format(limits.unit(limits.warn))}{crit}.\n"


def main() -> int:
    """Write the page, or check it."""
    if "--check" in sys.argv:
        return 0 if PAGE.exists() and PAGE.read_text() == page() else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
