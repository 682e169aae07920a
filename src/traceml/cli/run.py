"""`traceml run`: start the command with capture injected, watch it, end with the verdict."""

import errno
import os
import shutil
import sys
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from traceml.cli.main import show
from traceml.errors import CommandError, failsafe, say
from traceml.monitor import launch
from traceml.monitor.child import Child, end_like
from traceml.monitor.display import Display, open_servers
from traceml.monitor.loop import Monitor, note_process
from traceml.monitor.mirror import Mirror
from traceml.monitor.relay.background import Relay
from traceml.runs import folder as run_folder
from traceml.schema import WATCH_ONLY
from traceml.settings import SETTINGS, Settings, is_disabled, read_file_settings, resolve

_BY_FLAG = {s.flag: s for s in SETTINGS}


@dataclass(slots=True)
class Parsed:
    """The command line in its parts."""

    flags: dict[str, str] = field(default_factory=dict)
    target: str = ""
    is_module: bool = False
    arguments: list[str] = field(default_factory=list)
    flags_in_script: bool = False  # some of the flags came after the script
    disabled: bool = False
    help: bool = False

    @property
    def is_python(self) -> bool:
        """Whether the target is a script or a module, not a command of its own."""
        return launch.is_python(self.target, self.is_module)


def main(words: list[str], name: str = "run", about: str | None = None) -> int:
    """Run the command; the exit code is the command's own. `about` is what --help shows for `name`."""
    parsed = parse(words)
    if parsed.help:
        show(about or usage())
        return 0
    if not parsed.target:
        raise CommandError(f"give a script, `-m module` or a command: traceml {name} train.py")
    return run(parsed)


def run(parsed: Parsed, mode: str | None = None) -> int:
    """Run what was asked for; `mode` stands above the setting."""
    if parsed.disabled or is_disabled(os.environ):
        return launch.run_disabled(parsed.target, parsed.arguments, parsed.is_module, parsed.flags)
    launch.keep_standard_files_apart()
    try:
        settings = resolve(parsed.flags, *read_file_settings(Path()))
    except CommandError as problem:
        hint = ". If it is an argument of the script, put --args before it" if parsed.flags_in_script else ""
        raise CommandError(f"{problem}{hint}") from None
    settings = replace(settings, mode=mode) if mode is not None else settings
    name = parsed.target.rpartition(".")[2] if parsed.is_module else parsed.target
    node = launch.find_this_node(settings, os.environ, run_folder.plain_stem(name))
    plain = launch.python_command(parsed.target, parsed.arguments, parsed.is_module)
    command = launch.with_ranks(plain, settings, node, parsed.is_python)
    try:
        folder = run_folder.create(settings.logs_dir, node.folder_name, name, settings.overwrite)
    except OSError as problem:  # not even in the temporary folder
        say(f"no folder for the recording ({problem.strerror}); running the command without TraceML")
        return launch.become(command, launch.given_environment())
    home, folder = folder, run_folder.recorded_in(folder)
    with closing(Display(settings.mode, folder, node.is_first, settings.quiet)) as display:
        child = _start(command, folder, settings, display)
        # For the monitor only. At the process limit the threads of a numerical library would be fatal to it.
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        watch = failsafe("watching the run", None)(_watch)
        code = watch(child, command, settings, node, folder, home, display)
        code = child.wait_to_the_end() if code is None else code
    return end_like(code)


def _start(command: list[str], folder: Path, settings: Settings, display: Display) -> Child:
    given = launch.given_environment()
    is_watched = settings.mode == WATCH_ONLY
    made = launch.injected_environment(given, folder, settings)
    made = launch.native_environment(given) if is_watched else made
    try:
        return Child(command, display.environment(made))
    except OSError as problem:
        display.close()
        shutil.rmtree(folder, ignore_errors=True)
        if problem.errno in (errno.EAGAIN, errno.ENOMEM):
            say("no second process can be started here (process limit); running the command without TraceML")
            sys.exit(launch.become(command, given))
        raise CommandError(f"{command[0]}: cannot be started ({problem.strerror})") from None


def _watch(
    child: Child,
    command: list[str],
    settings: Settings,
    node: launch.ThisNode,
    folder: Path,
    home: Path,
    display: Display,
) -> int:
    """From the start of the command to the verdict; returns the command's exit code."""
    relay, mirror = Relay(node, folder, home, os.environ), Mirror(folder, home)
    safe_rows = mirror.safe_rows + ([] if node.is_first else [relay.safe_rows])
    monitor = Monitor(folder, command, settings, safe_rows)
    if settings.mode == WATCH_ONLY:
        note_process(folder, child.pid)
    servers = open_servers(settings, home) if node.is_first else []
    code = monitor.watch(display.poll(child.wait))
    display.close()
    display.show_last_output(code)
    quiet = settings.quiet or not node.is_first
    monitor.finish(code, child.signals, relay.close, mirror.close, quiet)
    display.say_where_output_is(home)
    for server in servers:  # only now, so that they see the result
        server.close()
    return code


def parse(words: list[str]) -> Parsed:
    """`[our flags] target [our flags] [--args|--] [the script's flags]`, parsed without guessing.

    After a script or `-m module`, our flags are taken up to the first word that is none of them; from there
    on, or after `--args` or `--`, everything belongs to the script. After any other command everything
    belongs to the command. argparse cannot do this: it would look for our flags among the script's.
    """
    parsed, rest = Parsed(), list(words)
    _take_flags(rest, parsed)
    if parsed.help or not rest:
        return parsed
    if rest[0] in ("--", "--args"):
        raise CommandError("give a script, `-m module` or a command before the script's arguments")
    if rest[0] == "-m":
        if len(rest) < 2:
            raise CommandError("-m needs a module name")
        parsed.is_module = True
        del rest[0]
    elif rest[0].startswith("-"):
        raise CommandError(f"unknown flag {rest[0]}; `traceml run --help` lists them")
    parsed.target = rest.pop(0)
    if parsed.is_python:
        _take_flags(rest, parsed, in_script=True)
        if rest and rest[0] in ("--", "--args"):
            del rest[0]
    parsed.arguments = rest
    return parsed


def _take_flags(words: list[str], parsed: Parsed, in_script: bool = False) -> None:
    """Take our flags off the front."""
    while words:
        name, equals, value = words[0].partition("=")
        if words[0] in ("-h", "--help") and not in_script:
            parsed.help = True
        elif words[0] == "--disable-traceml":
            parsed.disabled = True
        elif (setting := _BY_FLAG.get(name)) is not None:
            if setting.value and not equals:
                if len(words) == 1:
                    raise CommandError(f"{name} needs a value: {setting.help}")
                value = words.pop(1)
            parsed.flags[setting.key] = value if setting.value or equals else "1"
            parsed.flags_in_script |= in_script
        else:
            return
        del words[0]


USAGE = """\
usage: traceml run [options] train.py [options] [--args] [arguments of the script]
       traceml run [options] -m package.module [options] [--args] [arguments of the module]
       traceml run [options] COMMAND [arguments of the command]

Run a training command unchanged. When it ends, TraceML prints a diagnosis and writes it to
<logs-dir>/<run-name>/final_summary.json and .txt. The exit code is that of the command.

examples:
  traceml run train.py --lr 0.1                          a script with its own arguments
  traceml run train.py --run-name base --args --lr 0.1   --args marks where they begin
  traceml run train.py --nproc-per-node 4                four ranks on this machine
  traceml run torchrun --nproc-per-node=4 train.py       the same with your own launcher

options:
{options}
  --disable-traceml         run the command without TraceML

Each option can also be set as a TRACEML_* variable (TRACEML_RUN_NAME), in traceml.yaml
(run_name: base), or under [tool.traceml] in pyproject.toml.
"""


def usage() -> str:
    """`traceml run --help`."""
    rows = []
    for setting in SETTINGS:
        default = f" (default: {setting.default})" if setting.default else ""
        rows.append(f"  {f'{setting.flag} {setting.value}'.rstrip():<26}{setting.help}{default}")
    return USAGE.format(options="\n".join(rows))
