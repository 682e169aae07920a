# ruff: noqa: E501 - a table
"""The table of bad inputs: what is wrong, the command that meets it, and what the command must say.

Each case starts in a folder with two runs: `logs/good` has a summary, `logs/rec` only a recording, as a
killed monitor leaves it. `make` spoils something. Adding a case is adding a row.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.synthetic import SyntheticRun

from tests.compare.making import DATA
from traceml.recording import layout
from traceml.schema import catalog as c

ESCAPES = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202egnp.exe\r\nrm"
"""A terminal's title, colours, 8-bit control sequences, reversed text, new lines."""
TB = 1 << 40
DEEP = 100_000
Spoil = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """`words` after `traceml`. Exit 2 means one line on standard error and nothing on standard output.

    `says` must be in what is printed. `closed` is made inaccessible (mode 000) before the command starts.
    """

    name: str
    words: tuple[str | bytes, ...]
    make: Spoil = lambda _: None
    code: int = 2
    says: str = ""
    env: dict[str, str] = field(default_factory=dict)
    closed: str = ""
    shell: str = ""
    """Run by a shell, with the command in "$@"."""


# ---- what is in the folder


def sound(folder: Path) -> None:
    """The two runs."""
    good = folder / "logs" / "good"
    good.mkdir(parents=True)
    shutil.copy(DATA / "slow.json", good / "final_summary.json")
    (good / "manifest.json").write_text('{"status": "completed", "name": "good"}')
    SyntheticRun(folder / "logs" / "rec", 1).append(30)
    dead = {"status": "running", "name": "rec", "monitor_pid": 2**22 + 1, "monitor_process": {"boot": "x"}}
    (folder / "logs" / "rec" / "manifest.json").write_text(json.dumps(dead))
    (folder / "t.py").write_text("print('ran')")


def text(path: str, content: str | bytes) -> Spoil:
    """This file with this content; one that is there is replaced."""

    def make(folder: Path) -> None:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)

    return make


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(TB)


def _sparse_after_a_brace(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"{")
        file.truncate(TB)


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _folder(path: Path) -> None:
    path.mkdir()


def _socket(path: Path) -> None:
    # Bound by a short relative name: a socket's path has at most 107 bytes.
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "a FIFO": _fifo,
    "/dev/zero": _zeros,
    "1 TB of nothing": _sparse,
    "1 TB after a brace": _sparse_after_a_brace,
    "a link to itself": _loop,
    "a folder": _folder,
    "a socket": _socket,
}


def special(path: str, kind: str) -> Spoil:
    """Something else than a file in the place of this one."""

    def make(folder: Path) -> None:
        target = folder / path
        if target.is_dir():
            shutil.rmtree(target)
        target.unlink(missing_ok=True)
        SPECIAL[kind](target)

    return make


def both(*spoils: Spoil) -> Spoil:
    """One after the other."""

    def make(folder: Path) -> None:
        for spoil in spoils:
            spoil(folder)

    return make


def header(**facts: object) -> Spoil:
    """Another header for the recording of `rec`, with the same rows."""

    def make(folder: Path) -> None:
        path = folder / "logs/rec/recording/rank-0.1000.steps"
        identity = {"rank": 0, "world_size": 1, "pid": 1000, "node_rank": 0, "local_rank": 0, "host": "h"}
        process = {"clock_ns": 0, "wall_ns": 0}
        head = layout.header_bytes(c.STEP_COLUMNS, {"identity": identity, "process": process, **facts})
        path.write_bytes(head + path.read_bytes()[layout.HEADER_SIZE :])

    return make


def liar(fill: bytes = b"", year: int = 1970, **claims: object) -> Spoil:
    """A recording of node 1, with the rows of node 0 or others, and claims of its own."""

    def make(folder: Path) -> None:
        source = folder / STEPS
        who = {
            "rank": 0,
            "world_size": 1,
            "pid": 7,
            "node_rank": 1,
            "local_rank": 0,
            "host": "liar",
            **claims,
        }
        at = (year - 1970) * 365 * 86_400 * 10**9
        head = layout.header_bytes(
            c.STEP_COLUMNS, {"identity": who, "process": {"clock_ns": at, "wall_ns": at}}
        )
        rows = source.read_bytes()[layout.HEADER_SIZE :]
        size = layout.padded_row_size(layout.row_struct(c.STEP_COLUMNS).size)
        if fill:
            numbers = (layout.SEQUENCE.pack(i + 1) for i in range(100))
            rows = b"".join(fill * (size - layout.SEQUENCE.size) + number for number in numbers)
        (folder / REC / f"rank-{who['rank']}.node1.7.steps").write_bytes(head + rows)

    return make


def empty_files(names: Callable[[int], str], count: int) -> Spoil:
    """So many more files in the recording of `rec`."""

    def make(folder: Path) -> None:
        for number in range(count):
            os.close(os.open(folder / REC / names(number), os.O_CREAT))

    return make


def event(line: str | bytes) -> Spoil:
    """The event lines of `rec`."""
    return text("logs/rec/recording/rank-0.1000.events.jsonl", line)


def identity(**changed: object) -> Spoil:
    """The recording of `rec` claims to be somebody else."""
    usual = {"rank": 0, "world_size": 1, "pid": 1000, "node_rank": 0, "local_rank": 0, "host": "h"}
    return header(identity={**usual, **changed})


def named(name: str) -> Spoil:
    """A copy of the good run under this name."""
    return lambda folder: shutil.copytree(folder / "logs/good", folder / "logs" / name)


SUMMARY, MANIFEST = "logs/good/final_summary.json", "logs/good/manifest.json"
REC_MANIFEST, REC = "logs/rec/manifest.json", "logs/rec/recording"
STEPS = f"{REC}/rank-0.1000.steps"
DEEP_JSON = '{"a":' * DEEP
RUN = ("run", "t.py")
TRUE = ("run", "--quiet", "true")


def _special_files() -> list[Case]:
    found = []
    for kind in SPECIAL:
        found += [
            Case(f"view: the summary is {kind}", ("view", "good"), special(SUMMARY, kind)),
            Case(f"compare: a summary is {kind}", ("compare", "good", "good"), special(SUMMARY, kind)),
            Case(f"runs: a summary is {kind}", ("runs",), special(SUMMARY, kind), 0, "rec"),
            Case(f"runs: a manifest is {kind}", ("runs",), special(REC_MANIFEST, kind), 0, "good"),
            Case(
                f"view: the manifest is {kind}", ("view", "rec"), special(REC_MANIFEST, kind), 0, "30 steps"
            ),
            Case(f"run: traceml.yaml is {kind}", TRUE, special("traceml.yaml", kind), 2, "traceml.yaml"),
            Case(f"run: pyproject.toml is {kind}", TRUE, special("pyproject.toml", kind), 0),
            Case(
                f"view: the steps are {kind}", ("view", "rec"), special(STEPS, kind), 0, "rank-0.1000.steps"
            ),
            Case(
                f"run --overwrite: the manifest is {kind}",
                ("run", "--quiet", "--run-name", "good", "--overwrite", "true"),
                special(MANIFEST, kind),
                0,
            ),
        ]
        for file in ("rank-0.1000.events.jsonl", "rank-0.1000.device", "rank-0.1000.rollup",
                     "system.gauges", "monitor.events.jsonl", "rank-1.77.steps"):  # fmt: skip
            name = f"view: {file} is {kind}"
            found.append(Case(name, ("view", "rec"), special(f"{REC}/{file}", kind), 0, "30 steps"))
    for kind in ("a FIFO", "/dev/zero", "a link to itself"):
        found += [
            Case(f"view: recording/ is {kind}", ("view", "rec"), special(REC, kind)),
            Case(f"runs: logs is {kind}", ("runs",), special("logs", kind)),
            Case(f"run: logs is {kind}", TRUE, special("logs", kind), 0, "recording in"),
            Case(f"compare: {kind} as a run", ("compare", "x", "good"), special("x", kind)),
        ]
    return found


CLOSED = (
    Case("runs: another user's run", ("runs",), named("a"), 0, "rec", closed="logs/a"),
    Case("runs: another user's run is shown with a word", ("runs",), named("a"), 0, "cannot be read",
         closed="logs/a"),
    Case("runs: another user's logs", ("runs",), closed="logs"),
    Case("runs: before the first run", ("runs",), lambda f: (f / "logs").rename(f / "moved"), 0, "No runs in logs"),
    Case("runs: a folder that is not there", ("runs", "none")),
    Case("runs: another user's summary", ("runs",), code=0, says="rec", closed=SUMMARY),
    Case("runs: another user's manifest", ("runs",), code=0, says="good", closed=REC_MANIFEST),
    Case("runs: another user's recording", ("runs",), code=0, says="good", closed=REC),
    Case("view: beside another user's run", ("view", "good"), named("a"), 0, "slow", closed="logs/a"),
    Case("view: another user's run", ("view", "good"), closed="logs/good"),
    Case("view: another user's logs", ("view", "good"), closed="logs"),
    Case("view: another user's summary", ("view", "good"), closed=SUMMARY),
    Case("view: another user's recording", ("view", "rec"), closed=REC),
    Case("view: another user's steps", ("view", "rec"), code=0, says="rank-0.1000.steps", closed=STEPS),
    Case("view: another user's manifest", ("view", "rec"), code=0, says="30 steps", closed=REC_MANIFEST),
    Case("view: another user's run by its file", ("view", SUMMARY), closed="logs/good"),
    Case("compare: another user's run", ("compare", "good", "rec"), closed="logs/good"),
    Case("compare: into another user's folder", ("compare", "good", "good"),
         lambda f: (f / "compare").mkdir(), closed="compare"),
    Case("view --merge: another user's folder", ("view", "rec", "--merge", "x.node1"),
         lambda f: (f / "x.node1" / "recording").mkdir(parents=True), closed="x.node1"),
    Case("run: another user's logs", TRUE, code=0, says="recording in", closed="logs"),
    Case("run: another user's traceml.yaml", TRUE, text("traceml.yaml", "quiet: 1"), closed="traceml.yaml"),
    Case("run: another user's pyproject.toml", TRUE, text("pyproject.toml", ""), 0, closed="pyproject.toml"),
    Case("run: in a folder that may not be looked into", ("run", "--quiet", "/bin/true"), code=0,
         says="recording in", closed="."),
    Case("runs: in a folder that may not be looked into", ("runs",), closed="."),
    Case("view: in a folder that may not be looked into", ("view", "good"), closed="."),
    Case("run --overwrite: another user's run", ("run", "--quiet", "--run-name", "good", "--overwrite", "true"),
         code=0, says="recording in", closed="logs/good"),
)  # fmt: skip

WRONG_TYPES = '{"status":"running","name":[1],"monitor_pid":[],"environment":7,"command":"x","notes":3}'
CONTENT = (
    Case("runs: a deep manifest", ("runs",), text(REC_MANIFEST, DEEP_JSON), 0, "good"),
    Case("view: a deep manifest", ("view", "rec"), text(REC_MANIFEST, DEEP_JSON), 0, "30 steps"),
    Case("view: a manifest of wrong types", ("view", "rec"), text(REC_MANIFEST, WRONG_TYPES), 0, "30 steps"),
    Case("runs: a manifest of wrong types", ("runs",), text(REC_MANIFEST, WRONG_TYPES), 0, "good"),
    Case("view: a manifest with an endless number", ("view", "rec"),
         text(REC_MANIFEST, '{"begin_ns": 1' + "0" * 5000 + "}"), 0, "30 steps"),
    Case("view: a manifest with huge times", ("view", "rec"),
         text(REC_MANIFEST, '{"status":"completed","begin_ns":-1' + "0" * 400 + ',"end_ns":1e308}'), 0, "30 steps"),
    Case("view: a manifest with escapes", ("view", "rec"),
         text(REC_MANIFEST, json.dumps({"status": "failed", "name": ESCAPES, "reason": ESCAPES,
              "notes": [ESCAPES], "command": [ESCAPES], "environment": {"host": ESCAPES, "git_commit": ESCAPES}})),
         0, "30 steps"),
    Case("view --json: a manifest with escapes", ("view", "rec", "--json"),
         text(REC_MANIFEST, json.dumps({"status": "failed", "name": ESCAPES, "reason": ESCAPES})), 0, "failed"),
    Case("view: a manifest with half characters", ("view", "rec"),
         text(REC_MANIFEST, '{"status": "failed", "name": "\\udcff", "command": ["\\udcff"]}'), 0, "30 steps"),
    Case("view --json: a manifest with half characters", ("view", "rec", "--json"),
         text(REC_MANIFEST, '{"status": "failed", "name": "\\udcff", "command": ["\\udcff"]}'), 0, "failed"),
    Case("runs: a status of the wrong type", ("runs",), text(REC_MANIFEST, '{"status": {}, "started_at": 5}'),
         0, "good"),
    Case("view: a process id beyond all", ("view", "rec"),
         text(REC_MANIFEST, '{"status": "running", "monitor_pid": 1' + "0" * 300 + "}"), 0, "30 steps"),
    Case("view: a deep summary", ("view", "good"), text(SUMMARY, DEEP_JSON)),
    Case("view: a deep and closed summary", ("view", "good"),
         text(SUMMARY, '{"schema":"traceml.summary/1","x":' + "[" * DEEP + "]" * DEEP + "}")),
    Case("view: a wide summary", ("view", "good"),
         text(SUMMARY, '{"schema":"traceml.summary/1","series":{"step_time":{"x":['
              + "1," * 4_000_000 + "1]}}}"), 2),
    Case("view: a summary of a million metrics", ("view", "good"),
         text(SUMMARY, '{"schema":"traceml.summary/1","step_time":{"metrics":{'
              + ",".join(f'"m{i}":{{}}' for i in range(500_000)) + "}}}"), 0),
    Case("runs: a summary of a million metrics", ("runs",),
         text(SUMMARY, '{"schema":"traceml.summary/1","step_time":{"metrics":{'
              + ",".join(f'"m{i}":{{}}' for i in range(500_000)) + "}}}"), 0, "rec"),
    Case("view: a summary of one long text", ("view", "good"),
         text(SUMMARY, '{"schema":"traceml.summary/1","run":{"name":"' + "x" * 30_000_000 + '"}}'), 0, "xxx"),
    Case("view: a summary with NaN", ("view", "good"), text(SUMMARY, '{"schema": NaN}')),
    Case("view: a summary in UTF-16", ("view", "good"),
         text(SUMMARY, '{"schema":"traceml.summary/1"}'.encode("utf-16"))),
    Case("view: a summary with escapes", ("view", "good"),
         text(SUMMARY, json.dumps({"schema": "traceml.summary/1", "run": {"name": ESCAPES}})), 0, "owned"),
    Case("compare: summaries with escapes", ("compare", "good", "good"),
         text(SUMMARY, json.dumps({"schema": "traceml.summary/1", "run": {"name": ESCAPES},
              "primary_diagnosis": {"kind": ESCAPES, "status": ESCAPES}})), 0),
    Case("view: a version with escapes", ("view", "good"), text(SUMMARY, json.dumps({"schema": ESCAPES}))),
    Case("view: a newer version with escapes", ("view", "good"),
         text(SUMMARY, json.dumps({"schema": "traceml.summary/2." + ESCAPES})), 0, "newer"),
)  # fmt: skip

LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
SETTINGS = (
    Case("traceml.yaml: deep lists", TRUE, text("traceml.yaml", "[" * DEEP)),
    Case("traceml.yaml: deep maps", TRUE, text("traceml.yaml", "quiet: " + "{a: " * 20_000)),
    Case("traceml.yaml: deep blocks", TRUE, text("traceml.yaml", "- " * 20_000)),
    Case("traceml.yaml: a billion laughs", TRUE, text("traceml.yaml", LAUGHS + "run_name: *a11\n")),
    Case("traceml.yaml: laughs as a run's name", TRUE,
         text("traceml.yaml", "run_name:\n" + "".join(f"  {line}\n" for line in LAUGHS.splitlines()))),
    Case("traceml.yaml: an endless number", TRUE, text("traceml.yaml", "nnodes: 1" + "0" * 5000)),
    Case("traceml.yaml: no such day", TRUE, text("traceml.yaml", "run_name: 2001-99-99")),
    Case("traceml.yaml: bytes", TRUE, text("traceml.yaml", b"\xff\xfe\x00\x01")),
    Case("traceml.yaml: escapes", TRUE, text("traceml.yaml", '"\\e[31m": 1')),
    Case("traceml.yaml: escapes as a value", TRUE, text("traceml.yaml", 'mode: "\\e[31m\\u202e\\n"')),
    Case("traceml.yaml: a list as a value", TRUE, text("traceml.yaml", "run_name: [a, b]")),
    Case("traceml.yaml: a key that is a list", TRUE, text("traceml.yaml", "? [a]\n: b")),
    Case("traceml.yaml: a Python object", TRUE, text("traceml.yaml", "!!python/object/apply:os.system ['x']")),
    Case("traceml.yaml: two documents", TRUE, text("traceml.yaml", "quiet: 1\n---\nquiet: 0")),
    Case("traceml.yaml: 100 MB", TRUE, text("traceml.yaml", "#" * 100_000_000)),
    Case("pyproject.toml: deep", TRUE, text("pyproject.toml", "[tool.traceml]\nrun_name = " + "[" * DEEP)),
    Case("pyproject.toml: deep, and nothing of ours", TRUE, text("pyproject.toml", "a = " + "[" * DEEP), 0),
    Case("pyproject.toml: an endless number", TRUE,
         text("pyproject.toml", "[tool.traceml]\nnnodes = 1" + "0" * 5000)),
    Case("pyproject.toml: bytes", TRUE, text("pyproject.toml", b"[tool.traceml]\nmode = '\xff'")),
    Case("pyproject.toml: a text as our table", TRUE, text("pyproject.toml", "[tool]\ntraceml = 5")),
)  # fmt: skip


def _numbers() -> list[Case]:
    """Every numeric setting with numbers that are none, as a flag and as a variable."""
    found = []
    wrong = {"superscript": "²", "Arabic": "٣", "endless": "9" * 5000, "signed": "-1", "underscore": "1_0",
             "infinite": "inf", "no number": "nan", "escapes": "\x1b[31m", "empty": "", "hex": "0x10"}  # fmt: skip
    for key in (
        "nnodes",
        "node_rank",
        "master_port",
        "relay_port",
        "interval",
        "stall_after",
        "nproc_per_node",
    ):
        flag, variable = "--" + key.replace("_", "-"), "TRACEML_" + key.upper()
        some = wrong if key in ("nnodes", "interval") else {k: wrong[k] for k in ("superscript", "endless")}
        for what, value in some.items():
            found.append(Case(f"{flag}: {what}", ("run", flag, value, "true"), says=flag))
            found.append(Case(f"{variable}: {what}", TRUE, says=variable, env={variable: value}))
    slurm = {"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}
    for key in (*slurm, "SLURM_RESTART_COUNT"):
        for what in ("superscript", "Arabic", "endless", "signed", "escapes", "empty"):
            env = {**slurm, key: wrong[what]}
            found.append(Case(f"{key}: {what}", TRUE, code=0, env=env))
    found += [
        Case("SLURM_NTASKS: two billion", TRUE, code=0, env={**slurm, "SLURM_NTASKS": "2000000000"}),
        Case("SLURM_RESTART_COUNT: a path", TRUE, code=0, env={**slurm, "SLURM_RESTART_COUNT": "/../../x"}),
        Case("SLURM_STEP_NODELIST: escapes", TRUE, code=0, env={**slurm, "SLURM_STEP_NODELIST": ESCAPES}),
        Case("MASTER_ADDR: escapes", TRUE, code=0, env={**slurm, "MASTER_ADDR": ESCAPES}),
        Case("TRACEML_KEY: short", TRUE, code=0, env={**slurm, "TRACEML_KEY": "x"}, says="key"),
        Case("TRACEML_DISABLED: no answer", TRUE, env={"TRACEML_DISABLED": "\x1b[31mmaybe"}),
        Case("TRACEML_RUN_NAME: a path", TRUE, env={"TRACEML_RUN_NAME": "../x"}),
        Case("TRACEML_MODE: escapes", TRUE, env={"TRACEML_MODE": ESCAPES}),
        Case("--relay-port: beyond the last", ("run", "--relay-port", "65536", "true"), says="--relay-port"),
        Case("--master-port: beyond the last", ("run", "--master-port", "99999", "true"), says="--master-port"),
        Case("--nnodes: a million", ("run", "--nnodes", "999999", "--node-rank", "0", "--run-name", "x", "true"),
             code=0, env={"TRACEML_QUIET": "1"}),
        Case("compare --max-step-time-regression: superscript",
             ("compare", "good", "good", "--max-step-time-regression", "²%")),
        Case("compare --max-step-time-regression: Arabic",
             ("compare", "good", "good", "--max-step-time-regression", "٣%")),
        *(Case(f"attach --pid {pid[:9]!r}", ("attach", "--pid", pid))
          for pid in ("²", "٣", "9" * 5000, "", "x", "0", "-1", "99999999999", "\x1b[31m", "4194305")),
    ]  # fmt: skip
    return found


LONG = "x" * 5000
ARGUMENTS = (
    Case("an unknown command with escapes", (ESCAPES,)),
    Case("an unknown command that is not UTF-8", (b"\xff\xfe",)),
    Case("an unknown command that is long", ("x" * 100_000,)),
    *(Case(f"{words[0]}: {what}", tuple(value if w == "?" else w for w in words))
      for what, value in (("a long path", LONG), ("a long name", "x" * 300), ("escapes", ESCAPES),
                          ("not UTF-8", b"\xff\xfe"), ("empty", ""), ("an unknown flag", "--" + ESCAPES))
      for words in (("view", "?"), ("runs", "?"), ("compare", "?", "good"), ("run", "?"), ("run", "-m?")
                    )
      if (what, words[0]) != ("empty", "runs")),
    Case("view --logs-dir: not UTF-8", ("view", "x", "--logs-dir", b"\xff")),
    Case("view --logs-dir: long", ("view", "x", "--logs-dir", LONG)),
    Case("view --merge: no node", ("view", "rec", "--merge", "x")),
    Case("view --merge: a long node", ("view", "rec", "--merge", "x.node" + "9" * 240)),
    Case("view --merge: an Arabic node", ("view", "rec", "--merge", "x.node٣"),
         lambda f: (f / "x.node٣" / "recording").mkdir(parents=True)),
    Case("view --merge: node 0", ("view", "rec", "--merge", "x.node0"),
         lambda f: (f / "x.node0" / "recording").mkdir(parents=True)),
    Case("view --merge: a FIFO among the steps", ("view", "rec", "--merge", "x.node1"),
         both(lambda f: (f / "x.node1" / "recording").mkdir(parents=True),
              special("x.node1/recording/rank-1.7.steps", "a FIFO")), 0, "30 steps"),
    Case("view --merge: /dev/zero among the events", ("view", "rec", "--merge", "x.node1"),
         both(lambda f: (f / "x.node1" / "recording").mkdir(parents=True),
              special("x.node1/recording/rank-1.7.events.jsonl", "/dev/zero")), 0, "30 steps"),
    Case("compare --output: long", ("compare", "good", "good", "--output", LONG)),
    Case("compare --output: long name", ("compare", "good", "good", "--output", "y" * 260)),
    Case("compare --output: not UTF-8", ("compare", "good", "good", "--output", b"\xff"), code=0),
    Case("compare --output: escapes", ("compare", "good", "good", "--output", "\x1b[31m"), code=0),
    Case("compare --output: a FIFO", ("compare", "good", "good", "--output", "x"),
         special("x.json", "a FIFO"), 0),
    Case("compare --format: escapes", ("compare", "good", "good", "--format", ESCAPES)),
    Case("compare --fail-on: escapes", ("compare", "good", "good", "--fail-on", ESCAPES)),
    Case("runs --sort: escapes", ("runs", "--sort", ESCAPES)),
    *(Case(f"run --run-name: {what}", ("run", "--run-name", name, "true"), says="--run-name")
      for what, name in (("long", "x" * 201), ("very long", "x" * 100_000), ("a path", "a/b"), ("dots", ".."),
                         ("escapes", ESCAPES), ("reversed", "a\u202eb"), ("not UTF-8", b"\xff"), ("empty", ""),
                         ("a tab", "a\tb"))),
    Case("run --logs-dir: long", ("run", "--quiet", "--logs-dir", LONG, "true"), code=0, says="recording in"),
    Case("run --logs-dir: a long name", ("run", "--quiet", "--logs-dir", "x" * 300, "true"), code=0,
         says="recording in"),
    Case("run --logs-dir: not UTF-8", ("run", "--quiet", "--logs-dir", b"\xff", "true"), code=0),
    Case("run --logs-dir: escapes", ("run", "--logs-dir", "\x1b[31m", "true"), code=0),
    Case("run: an argument that is not UTF-8", ("run", "t.py", b"\xff\xfe"), code=0, says="Summary:"),
    Case("run: an argument with escapes", ("run", "t.py", ESCAPES), code=0, says="Summary:"),
    Case("run: a script whose name has escapes", ("run", "\x1b[31m.py"), text("\x1b[31m.py", ""), 0, "Summary:"),
    Case("run: a script whose name is not UTF-8", ("run", b"\xff.py"),
         lambda f: Path(os.fsdecode(os.fsencode(f) + b"/\xff.py")).write_text(""), 0, "Summary:"),
    Case("run: a command with escapes", ("run", "\x1b[31mx")),
    Case("run: a file that cannot be executed", ("run", "./notes\x1b[31m"), text("notes\x1b[31m", "x")),
    Case("runs: runs with escapes in their names", ("runs",), named("a\x1b[31m\u202e\n\x9b2J"), 0, "good"),
    Case("runs --json: escapes in names", ("runs", "--json"), named("a\x1b[31m\u202e\n\x9b2J"), 0, "good"),
    Case("view: a run with escapes in its name", ("view", "a\x1b[31m\u202e\n"),
         lambda f: shutil.copytree(f / "logs/rec", f / "logs/a\x1b[31m\u202e\n"), 0, "30 steps"),
    Case("runs: a run whose name is not UTF-8", ("runs",),
         lambda f: shutil.copytree(f / "logs/good", os.fsdecode(os.fsencode(f) + b"/logs/\xff")), 0, "good"),
    Case("runs --json: a name that is not UTF-8", ("runs", "--json"),
         lambda f: shutil.copytree(f / "logs/good", os.fsdecode(os.fsencode(f) + b"/logs/\xff")), 0, "good"),
    Case("view --json: a run that is not UTF-8", ("view", "--json", b"logs/\xff"),
         lambda f: shutil.copytree(f / "logs/rec", os.fsdecode(os.fsencode(f) + b"/logs/\xff")), 0, "step_ms"),
)  # fmt: skip

WRONG_VALUES: tuple[object, ...] = (5, "x", ["x"], {"clock_ns": "x", "in_c": [], "packages": 3})
RECORDINGS = (
    Case("another node: a world of two billion", ("view", "rec"), liar(rank=1, world_size=2_000_000_000), 0,
         "Set aside: r1 of node 1"),
    Case("another node: a world of 999,999", ("view", "rec"), liar(rank=1, world_size=999_999), 0,
         "Set aside: r1 of node 1"),
    Case("another node: still the steps of node 0", ("view", "rec"), liar(rank=1, world_size=999_999), 0, "30 steps"),
    Case("another node: a rank that is not there", ("view", "rec"), liar(rank=77), 0, "Set aside: r77 of node 1"),
    Case("another node: claims rank 0", ("view", "rec"), liar(rank=0), 0, "30 steps"),
    Case("another node: starts in the year 2500", ("view", "rec"), liar(year=2500, rank=0), 0, "30 steps"),
    Case("another node: rows of -1", ("view", "rec"), liar(b"\xff", rank=0), 0, "30 steps"),
    Case("steps: a world of two billion", ("view", "rec"), identity(world_size=2_000_000_000), 0, "30 steps"),
    Case("steps: a world of two billion is noted", ("view", "rec"), identity(world_size=2_000_000_000), 0,
         "2,000,000,000"),
    Case("steps: rank two billion", ("view", "rec"), identity(rank=2_000_000_000), 0),
    Case("steps: a rank below zero", ("view", "rec"), identity(rank=-5), 0),
    Case("steps: a rank that is a truth", ("view", "rec"), identity(rank=True, world_size=True), 0),
    Case("steps: a node below zero", ("view", "rec"), identity(node_rank=-(10**18)), 0, "30 steps"),
    Case("steps: an endless process id", ("view", "rec"), identity(pid=10**300), 0),
    Case("steps: a host with escapes", ("view", "rec"), identity(host=ESCAPES), 0, "30 steps"),
    Case("steps: half characters in the host", ("view", "rec"), identity(host="\udcff"), 0, "30 steps"),
    *(Case(f"steps: {key} is {value!r}", ("view", "rec"), header(**{key: value}), 0)
      for key in ("process", "device", "overhead", "missing", "identity") for value in WRONG_VALUES),
    Case("steps: escapes in versions", ("view", "rec"), header(
        process={"clock_ns": 0, "wall_ns": 0, "python": ESCAPES, "torch": ESCAPES},
        missing=[ESCAPES], device={"name": ESCAPES}), 0, "30 steps"),
    Case("steps: huge clocks", ("view", "rec"),
         header(process={"clock_ns": 10**300, "wall_ns": -(10**300)}), 0),
    Case("events: one line of 100 MB", ("view", "rec"), event('{"kind":"' + "x" * 100_000_000 + '"}'), 0, "30 steps"),
    Case("events: a million lines", ("view", "rec"),
         event(('{"kind":"error","message":"' + "x" * 50 + '"}\n') * 1_000_000), 0, "30 steps"),
    Case("events: deep", ("view", "rec"), event(DEEP_JSON + "\n"), 0, "30 steps"),
    Case("events: escapes", ("view", "rec"), both(
        text(REC_MANIFEST, '{"status": "failed", "exit_code": 1}'),
        event(json.dumps({"kind": "error", "message": ESCAPES, "step": 31}) + "\n")), 0, "owned"),
    Case("events: half characters", ("view", "rec"), both(
        text(REC_MANIFEST, '{"status": "failed", "exit_code": 1}'),
        event('{"kind": "error", "message": "no file \\udcff", "step": 31}\n')), 0, "no file"),
    Case("events: huge numbers", ("view", "rec"),
         event('{"kind": "gc", "step": 1' + "0" * 400 + ', "duration_ns": 1' + "0" * 400 + "}\n"), 0, "30 steps"),
    Case("events: numbers of wrong signs", ("view", "rec"),
         event('{"kind": "gc", "step": -9223372036854775808, "duration_ns": -9223372036854775808,'
               '"time_ns": 9223372036854775807}\n'), 0, "30 steps"),
    Case("marks with escapes", ("view", "rec"), text(f"{REC}/seen-\x1b[31m", ""), 0, "30 steps"),
    Case("100,000 files", ("view", "rec"),
         empty_files(lambda i: f"rank-{i}.7.steps", 100_000),
         0, "30 steps"),
    Case("names of nodes beyond counting", ("view", "rec"),
         empty_files(lambda i: f"system.node{i}{'9' * 200}.gauges", 200), 0, "30 steps"),
    Case("steps: 1 TB of holes after the rows", ("view", "rec"),
         lambda f: os.truncate(f / STEPS, TB), 0, "30 steps"),
)  # fmt: skip

STREAMS = (
    *(Case(f"{' '.join(words)}: {what}", words, code=code, shell=shell, env=env)
      for words in (("view", "good"), ("view", "--json", "rec"), ("runs",), ("compare", "good", "good"), ("--help",))
      for what, shell, env, code in (
          ("an ASCII terminal", "", {"PYTHONIOENCODING": "ascii"}, 0),
          ("the C locale without UTF-8 mode", "",
           {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, 0),
          ("a pipe that closes", '"$@" | true', {}, 0),
          ("standard output closed", '"$@" >&-', {}, 0),
          ("standard error closed", '"$@" 2>&-', {}, 0),
          ("everything closed", '"$@" <&- >&- 2>&-', {}, 0),
          ("a full device", '"$@" >/dev/full', {}, 2),
      )),
    Case("an error with standard error closed", ("view", "nothing"), shell='"$@" 2>&-'),
    Case("run: an ASCII terminal", ("run", "t.py", "µ…"), code=0, says="Summary:",
         env={"PYTHONIOENCODING": "ascii"}),
    Case("run: the C locale without UTF-8 mode", ("run", "t.py", "µ…"), code=0, says="Summary:",
         env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    Case("run: standard error closed", RUN, code=0, shell='"$@" 2>&-', says="ran"),
    Case("run: everything closed", RUN, code=0, shell='"$@" <&- >&- 2>&-'),
    Case("run: a full device for errors", RUN, code=0, shell='"$@" 2>/dev/full', says="ran"),
    *(Case(f"{' '.join(words)}: in a folder that is gone", words, code=code, says=says,
           shell='mkdir gone && cd gone && rmdir ../gone && "$@"')
      for words, code, says in ((("runs",), 2, "logs"), (("view", "good"), 2, "good"),
                                (("compare", "a", "b"), 2, "a"), (("run", "--quiet", "/bin/true"), 0, "recording in"),
                                (("attach", "--pid", "1"), 2, ""))),
)  # fmt: skip

CASES = (
    *_special_files(), *CLOSED, *CONTENT, *SETTINGS, *_numbers(), *ARGUMENTS, *RECORDINGS, *STREAMS,
)  # fmt: skip
