"""Writes docs/diagnoses.md from the rules themselves: one rule is its check, its words and its documentation.

python tools/write_diagnoses.py          write the page
python tools/write_diagnoses.py --check  exit 1 if the page is not current
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from traceml.analyze import rules_change, rules_context, rules_memory, rules_ranks, rules_time
from traceml.analyze.rule import Rule

PAGE = Path(__file__).parents[1] / "docs" / "diagnoses.md"
SECTIONS: tuple[tuple[str, tuple[Rule[Any], ...]], ...] = (
    ("Step time", (*rules_time.BOUNDS, *rules_ranks.RULES, *rules_change.RULES, rules_time.COMPUTE_RULE)),
    ("Step memory", rules_memory.RULES),
    ("System", rules_context.SYSTEM_RULES),
    ("Process", rules_context.PROCESS_RULES),
)
HEAD = """# Diagnoses

Written by `tools/write_diagnoses.py` from the rules; do not edit. Shares are of the step's full time, input
wait included. Fewer than 2 completed steps: `NO DATA`; fewer than 20: at most a warning. When nothing
fires: `BALANCED` (step time, memory) or `NORMAL` (system, process); when a signal was missing: `INCOMPLETE
DATA`, with its name. The primary diagnosis is the first step-time finding that is more than
information, then critical memory, then idle GPUs, else `COMPUTE-BOUND` or `BALANCED`.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, rules in SECTIONS:
        parts.append(f"\n## {title}\n")
        for rule in rules:
            text = (rule.measure.__doc__ or "").strip()
            parts.append(f"\n### {rule.status}\n\n`{rule.kind}`. {text}\n\nNext: {_plain(rule.action)}\n")
            if rule.warn is not None:
                crit = f", critical from {rule.crit:g}" if rule.crit is not None else ""
                parts.append(f"\nWarning from {rule.warn:g}{crit}.\n")
    return "".join(parts)


def _plain(action: str) -> str:
    return action.replace("{", "<").replace("}", ">")


def main() -> int:
    """Write the page, or check it."""
    if "--check" in sys.argv:
        return 0 if PAGE.exists() and PAGE.read_text() == page() else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
