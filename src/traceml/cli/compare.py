"""`traceml compare`: is B slower, faster or the same as A, where, and how sure is that."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from traceml.analyze.compare import compare
from traceml.cli.parsing import Parser
from traceml.collect import summary_file
from traceml.collect.fields import clean
from traceml.collect.rundir import write_atomic
from traceml.collect.summary_file import Reading
from traceml.errors import CommandError, say
from traceml.present import compare_markdown, compare_text
from traceml.schema.comparison import INCONCLUSIVE, MIXED, REGRESSION, WORSE, Comparison, RunRef

FOLDER: Final = "compare"
LONGEST_NAME: Final = 80
FORMATS: Final = ("text", "json", "markdown")
FAIL_ON: Final = {"regression": REGRESSION, "mixed": MIXED, "inconclusive": INCONCLUSIVE}
EXIT_CODES: Final = (
    "exit code: 0 done (and no gate fired), 1 a gate fired (--fail-on, "
    "--max-step-time-regression), 2 unusable input"
)


@dataclass(frozen=True, slots=True)
class Gate:
    """What makes the command fail."""

    verdicts: tuple[str, ...]
    most_slowdown_share: float | None

    @property
    def is_set(self) -> bool:
        """Whether anything can make it fail."""
        return bool(self.verdicts) or self.most_slowdown_share is not None


def parser() -> Parser:
    """The flags."""
    made = Parser(
        prog="traceml compare",
        usage="traceml compare A B [flags]\n       traceml compare --a RUN ... --b RUN ... [flags]",
        description="Compare two runs: A is the first, B the second, delta = B - A.",
        epilog=EXIT_CODES,
    )
    made.add_argument("runs", nargs="*", metavar="RUN", help="A and B: a file, a run folder, or a run name")
    made.add_argument("--a", nargs="+", metavar="RUN", help="several runs as A")
    made.add_argument("--b", nargs="+", metavar="RUN", help="several runs as B")
    made.add_argument(
        "--output", metavar="BASE", help="write BASE.json and BASE.txt (default: compare/A_vs_B)"
    )
    made.add_argument("--format", choices=FORMATS, default="text", help="what to print (default: text)")
    made.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="VERDICT",
        help="exit with 1 on this verdict: regression, mixed, inconclusive (comma between several)",
    )
    made.add_argument(
        "--max-step-time-regression",
        metavar="PERCENT",
        help="exit with 1 when the step is really slower, and by more than this, such as 5%%",
    )
    made.add_argument("--logs-dir", default="logs", metavar="DIR", help="where run names are looked up")
    return made


def main(words: list[str]) -> int:
    """Read both sides, compare, write the two files, print, and judge the gate."""
    given = parser().parse_args(words)
    gate = Gate(_verdicts(given.fail_on), _share(given.max_step_time_regression))
    a_names, b_names = sides(given)
    logs = Path(given.logs_dir)
    a, b = ([summary_file.read(summary_file.locate(n, logs)) for n in names] for names in (a_names, b_names))
    found = compare([r.summary for r in a], [r.summary for r in b], _refs(a), _refs(b))
    notes = [note for reading in (*a, *b) for note in reading.notes]
    found = replace(found, warnings=[*found.warnings, *notes])
    printed = show(found, given.format)
    written = write(found, base_path(given.output, a, b))
    sys.stdout.write(printed)
    sys.stdout.flush()
    say(f"wrote {written}.json and .txt")
    return judge(found, gate)


def sides(given: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The runs of A and of B."""
    if given.a or given.b:
        if given.runs or not given.a or not given.b:
            raise CommandError("give either two runs, or --a RUN ... and --b RUN ...")
        return given.a, given.b
    if len(given.runs) != 2:
        raise CommandError(
            f"give two runs, A and B ({len(given.runs)} given); several a side: --a a1 a2 --b b1 b2"
        )
    return [given.runs[0]], [given.runs[1]]


def _verdicts(given: Sequence[str]) -> tuple[str, ...]:
    words = [w.strip().lower() for text in given for w in text.split(",") if w.strip()]
    for word in words:
        if word not in FAIL_ON:
            raise CommandError(f"--fail-on {clean(word)}: use one of {', '.join(FAIL_ON)}")
    return tuple(FAIL_ON[word] for word in words)


def _share(given: str | None) -> float | None:
    if given is None:
        return None
    number = re.fullmatch(r"(\d{1,4}(?:\.\d{1,6})?)\s*%", given.strip())
    if not number:
        raise CommandError(f"--max-step-time-regression {clean(given)}: write it as a percentage, such as 5%")
    return float(number[1]) / 100


def _refs(readings: Sequence[Reading]) -> list[RunRef]:
    return [
        RunRef(
            name=clean(r.name),
            path=clean(r.path),
            schema=r.summary.schema,
            status=r.summary.run.status,
            steps=r.summary.step_time.window.get("num_steps"),
            started_at=r.summary.run.started_at,
        )
        for r in readings
    ]


def base_path(output: str | None, a: Sequence[Reading], b: Sequence[Reading]) -> Path:
    """Where the two files go, without their endings."""
    named = f"{_side_name(a)}_vs_{_side_name(b)}"
    if output is None:
        return Path(FOLDER) / named
    if output.endswith("/") or Path(output).is_dir():
        return Path(output) / named
    return Path(output.removesuffix(".json").removesuffix(".txt"))


def _side_name(side: Sequence[Reading]) -> str:
    first = re.sub(r"[^\w.+=@-]+", "_", side[0].name)[:LONGEST_NAME] or "run"
    return first if len(side) == 1 else f"{first}_and_{len(side) - 1}_more"


def show(found: Comparison, how: str) -> str:
    """What goes to standard output."""
    if how == "json":
        return encode(found).decode()
    return compare_markdown.render(found) if how == "markdown" else compare_text.render(found)


def encode(found: Comparison) -> bytes:
    """The comparison's JSON file."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def write(found: Comparison, base: Path) -> Path:
    """Write both files; folders are made."""
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(base.with_name(base.name + ".json"), encode(found))
        write_atomic(base.with_name(base.name + ".txt"), compare_text.render(found).encode())
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise CommandError(f"{clean(str(base))}: cannot be written ({reason})") from None
    return base


def judge(found: Comparison, gate: Gate) -> int:
    """The exit code. A gate that has nothing to judge does not pass in silence."""
    if not gate.is_set:
        return 0
    interval = found.interval
    if interval.delta_share is None:
        raise CommandError("the gate has nothing to judge: no step times on both sides")
    most, floor = gate.most_slowdown_share, interval.noise_floor_share
    if most is not None and floor is not None and most < floor:
        low = f"{100 * most:g} % is below the noise floor of {100 * floor:.1f} %"
        say(f"the limit of {low}: give several runs a side")
    slower = interval.change == WORSE and most is not None and interval.delta_share > most
    if found.verdict in gate.verdicts or slower:
        say(f"gate: {found.verdict}, step time {100 * interval.delta_share:+.1f} %")
        return 1
    return 0
