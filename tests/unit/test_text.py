"""The text summary: verdict first, and every line within 100 columns, whatever the input.

The golden files are what a reader sees. After an intended change, update them with

    TRACEML_UPDATE_GOLDEN=1 python -m pytest tests/unit/test_text.py
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import examples
from tests.unit import made
from traceml.analyze.summarize import summarize
from traceml.present.columns import fitting
from traceml.present.text import render
from traceml.schema.catalog import Metric
from traceml.schema.recorded import RunFacts, RunRecording
from traceml.schema.summary import (
    CRIT,
    Environment,
    Finding,
    Member,
    MetricStat,
    Overhead,
    Primary,
    RankValue,
    Run,
    Section,
    SectionWindow,
    Summary,
)

GOLDEN = Path(__file__).parent / "golden"
FACTS = RunFacts(
    "demo",
    "completed",
    0,
    begin_ns=0,
    end_ns=3_000_000_000,
    command=["python", "train.py"],
    environment=Environment(git_commit="0123456789abcdef", git_dirty=True),
    cores=4,
)


def columns(line: str) -> int:
    """How many terminal columns a line takes: wide characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(ch) else 2 if unicodedata.east_asian_width(ch) in "WF" else 1
        for ch in line
    )


def rendered(summary: Summary) -> list[str]:
    """The lines, after the checks that hold for any summary."""
    text = render(summary)
    assert text.endswith("\n")
    lines = text.removesuffix("\n").split("\n")
    for line in lines:
        assert columns(line) <= 100, line
        assert line == line.rstrip()
        assert all(ch.isprintable() for ch in line), repr(line)
    return lines


@cache
def slow_input() -> Summary:
    """An ordinary run with one clear cause."""
    rank = made.rank(
        made.steps(
            120,
            input=40,
            forward=[600.0, *[30.0] * 119],
            backward=25,
            optimizer=4,
            wait=1,
            samples=32,
            user0=2,
        ),
        user_names=["augment", *[None] * 6],
        events=[{"kind": "epoch_start", "step": 1, "time_ns": 1_000_000_000, "workers": 2}],
    )
    recording = made.run(
        rank,
        system_rows=made.system(20),
        process_rows=made.process(20, cpu_delay_percent=9.0),
    )
    return summarize(recording, replace(FACTS, end_ns=14_500_000_000))


@cache
def two_ranks_on_gpus() -> Summary:
    """Device clock, device memory, uneven ranks, a failed run."""
    phases = {"input": 3, "forward": 4, "backward": 5, "sync": 1, "optimizer": 1}
    ranks = [
        made.rank(
            made.steps(
                60,
                measured=(*made.ALL_MEASURED, "h2d", "sync"),
                h2d=2 + n,
                allocated=1e9 * (n + 1),
                reserved=3e9 * (n + 1),
                tokens=512,
                **phases,
            ),
            n,
            world_size=3,
            device={"type": "cuda", "name": "NVIDIA H100 80GB HBM3", "capacity_bytes": 80e9},
            device_rows=made.device_times(
                60, input=1, h2d=2 + n, forward=3, backward=4, optimizer=1, wait=0.1
            ),
        )
        for n in range(2)
    ]
    recording = made.run(*ranks, system_rows=made.system(20, gpu_util_percent=20.0, gpu_temp_c=71.0))
    facts = replace(FACTS, status="failed", exit_code=1, reason="RuntimeError: CUDA error\nsecond line")
    return summarize(recording, facts)


SUMMARIES: dict[str, Callable[[], Summary]] = {
    "slow_input": slow_input,
    "two_ranks_on_gpus": two_ranks_on_gpus,
    "nothing": lambda: summarize(RunRecording(ranks=[]), FACTS),
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_text_equals_the_golden_file(name: str) -> None:
    """What a reader sees changes only on purpose (the top of this file says how to update it)."""
    text = "\n".join(rendered(SUMMARIES[name]())) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("TRACEML_UPDATE_GOLDEN", "0") not in ("", "0"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", SUMMARIES)
def test_verdict_comes_first(name: str) -> None:
    """Directly below the headline: the verdict, the reason, the next step."""
    summary = SUMMARIES[name]()
    lines = rendered(summary)
    assert lines[3].startswith(f"Verdict  {summary.primary_diagnosis.status}")
    assert lines[4].startswith("Why      ")
    assert any(line.startswith("Next     ") for line in lines[5:8])


def test_text_is_readable_without_colour() -> None:
    """No escape sequence, and severity is a word."""
    text = render(slow_input())
    assert "\x1b" not in text
    assert "INPUT-BOUND  (critical)" in text


def test_text_from_the_json_file_is_the_same() -> None:
    """Printing from final_summary.json gives the same text."""
    summary = two_ranks_on_gpus()
    again = msgspec.json.decode(msgspec.json.encode(summary), type=Summary)
    assert render(again) == render(summary)


def test_every_finding_is_in_the_text() -> None:
    """Each issue of each section with its summary, and warnings with their action."""
    summary = two_ranks_on_gpus()
    text = " ".join(render(summary).split())
    for section in (summary.step_time, summary.step_memory, summary.system, summary.process):
        for finding in section.issues:
            assert finding.summary in text
            if finding.severity != "info":
                assert finding.action in text


def test_unmeasured_metrics_are_not_shown() -> None:
    """A CPU run has no line with H2D or GPU numbers, not even with zeros."""
    text = render(slow_input())
    assert "H2D" not in text
    assert "GPU" not in text.replace("(no GPU seen)", "")


def test_text_says_how_a_failed_run_ended() -> None:
    """With the reason and the exit code; a completed run has no such line."""
    assert "Ended    failed: RuntimeError: CUDA error second line (exit code 1)" in render(
        two_ranks_on_gpus()
    )
    assert "Ended" not in render(slow_input())


# ---- hostile input


NASTY = st.one_of(
    st.text(max_size=400),
    st.sampled_from(
        [
            "x" * 300,
            "word " * 80,
            "训练" * 80,
            "é" * 300,
            "\x1b[2J\x1b[31mred",
            "a\nb\r\n\tc",
            "\u202e\u0000",
            "🔥" * 120,
        ]
    ),
)
NUMBER = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.just(0.0))


@given(name=NASTY, phase=NASTY, reason=NASTY, note=NASTY, status=NASTY, word=NASTY, torch=NASTY)
@examples(120)
def test_text_of_any_length_and_script_fits(
    name: str, phase: str, reason: str, note: str, status: str, word: str, torch: str
) -> None:
    """Names, reasons, notes, labels and sentences never break a line or the terminal."""
    usual = slow_input()
    stat = MetricStat(1.0, RankValue(1.0, 0), RankValue(1.0, 0), 1.0, 1.0, 0.0, 0.5)
    finding = Finding(word, status, CRIT, word, reason)
    section = replace(
        usual.step_time,
        diagnosis=finding,
        issues=[finding, replace(finding, kind="OTHER")],
        metrics={**usual.step_time.metrics, f"user.{phase}_ms": stat},
    )
    row = Metric(f"user.{phase}_ms", phase, "ms", "step_time", "")
    assert rendered(
        replace(
            usual,
            run=replace(usual.run, name=name, status=status, reason=reason, notes=[note, word]),
            primary_diagnosis=replace(
                usual.primary_diagnosis, status=status, summary=word, action=reason, potential_how=word
            ),
            step_time=section,
            step_memory=replace(usual.step_memory, diagnosis=finding, issues=[finding]),
            environment=Environment(torch=torch, device_name=word, git_commit=note),
            catalog=[*usual.catalog, row],
        )
    )


@given(values=st.lists(NUMBER, min_size=6, max_size=6), ranks=st.one_of(st.none(), st.integers(0, 10**6)))
@examples(80)
def test_numbers_of_any_size_fit(values: list[float | None], ranks: int | None) -> None:
    """Metrics of any size, or null, in any section never break a table."""
    usual = two_ranks_on_gpus()
    a, b, c, d, e, f = values
    stat = MetricStat(a, RankValue(b, ranks), RankValue(c, ranks), d, e, f, a)

    def changed(section: Section) -> Section:
        return replace(section, metrics=dict.fromkeys(section.metrics, stat))

    assert rendered(
        replace(
            usual,
            step_time=changed(usual.step_time),
            step_memory=changed(usual.step_memory),
            system=changed(usual.system),
            process=changed(usual.process),
            overhead=Overhead(us_per_step=a, share=b),
        )
    )


NOTHING = Finding("NO_DATA", "NO DATA", "info", "", "")


def test_empty_summary_has_a_text() -> None:
    """Without window, metrics and sentences, the verdict still comes first."""
    empty = Section(NOTHING, [NOTHING])
    summary = Summary(Run(), Primary(), empty, empty, empty, empty)
    assert rendered(summary)[3] == "Verdict  NO DATA"


def test_summary_with_only_nulls_has_a_text() -> None:
    """Windows, members and metrics with only nulls show n/a or nothing."""
    blank = Section(
        NOTHING,
        [NOTHING],
        window=SectionWindow(num_steps=5),
        metrics={
            "step_ms": MetricStat(),
            "rss_bytes": MetricStat(worst=RankValue(1.0)),
            "samples_per_s": MetricStat(1.0),
        },
        ranks={"0": Member()},
    )
    run = Run(status="failed", world_size=4)
    lines = rendered(Summary(run, Primary(), blank, blank, blank, blank))
    assert not any("None" in line for line in lines)


def test_unknown_severity_or_unit_of_a_newer_version_is_tolerated() -> None:
    """A file from a newer TraceML is shown without the parts that are unknown."""
    usual = slow_input()
    catalog = [replace(row, unit="furlongs") for row in usual.catalog]
    newer = replace(
        usual, primary_diagnosis=replace(usual.primary_diagnosis, severity="catastrophic"), catalog=catalog
    )
    assert rendered(newer)[3] == "Verdict  INPUT-BOUND"


@pytest.mark.parametrize("terminal", [80, 100, 250])
def test_sentences_fit_the_terminal(terminal: int) -> None:
    """A terminal of 80 columns breaks no sentence, title or rule in the middle. Tables keep their width."""
    summary = SUMMARIES["two_ranks_on_gpus"]()
    leader, follower = pty.openpty()
    with os.fdopen(leader, "wb"), os.fdopen(follower, "w") as screen:
        fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, terminal, 0, 0))
        with fitting(screen):
            shown = rendered(summary)
    usual = rendered(summary)
    assert max(map(len, shown)) == min(terminal, 100)
    assert len(usual[0]) == 100
    said, expected = (" ".join(takewhile(bool, lines[3:])).split() for lines in (shown, usual))
    assert said == expected
