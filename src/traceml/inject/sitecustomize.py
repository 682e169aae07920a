"""Runs at the start of every Python process below `traceml run`, in whatever environment that is.

It must parse on any Python, import nothing outside the standard library, and leave the process as it
would have been: our folder goes off `sys.path` again, and another `sitecustomize` still runs. Only when
the process imports torch is anything of ours loaded.
"""

import atexit
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_HERE)


class _OwnPackage:
    """Last resort of the import system: lets `import traceml` work in an environment without it."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "traceml":
            return None
        from importlib.util import spec_from_file_location

        init = os.path.join(_PACKAGE, "__init__.py")
        return spec_from_file_location("traceml", init, submodule_search_locations=[_PACKAGE])


def _seen(what):
    """Leave a mark in the run folder, so that the monitor can say how far the command came."""
    folder = os.environ.get("TRACEML_RUN_DIR")
    if folder:
        try:
            os.close(os.open(os.path.join(folder, "recording", "seen-" + what), os.O_CREAT, 0o666))
        except OSError:
            pass


def _note_failure():
    """At exit: leave the exception that ends this process, in case it never comes to a first step."""
    error = getattr(sys, "last_value", None)
    if error is None:
        return
    import traceback

    told = traceback.format_exception_only(type(error), error)
    text = told[-1 if isinstance(error, SyntaxError) else 0].strip()
    failures, found, cause = text.partition(
        "Root Cause"
    )  # torchrun's list of ranks: the first one to the front
    if found:
        text = failures.split("\n")[0] + found + cause + failures
    python = os.path.dirname(os.path.abspath(os.__file__))
    names = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    own = [n for n in names if not n[0].startswith(("<", python, _PACKAGE)) and "site-packages" not in n[0]]
    line = "%s:%d" % (os.path.basename(own[-1][0]), own[-1][1]) if own else None
    _leave("error", text[:2000], line)


def _leave(kind, message, line=None):
    """Leave an event in the run folder, for a process that may never have a recording."""
    import json
    import time

    folder = os.environ.get("TRACEML_RUN_DIR")
    rank = os.environ.get("RANK", "") if os.environ.get("WORLD_SIZE", "1") != "1" else ""
    event = {
        "kind": kind,
        "message": message,
        "raised_at": line,
        "pid": os.getpid(),
        "rank": int(rank) if rank.isdigit() else -1,
        "time_ns": time.perf_counter_ns(),
        "wall_ns": time.time_ns(),
    }
    try:
        path = os.path.join(folder, "recording", "early.events.jsonl")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(fd, json.dumps(event).encode() + b"\n")
        finally:
            os.close(fd)
    except (OSError, TypeError):  # or the script has taken TRACEML_RUN_DIR away
        pass


def _torch_imported(_module):
    _seen("torch")
    from importlib.util import find_spec

    found = find_spec("traceml")
    if not os.path.exists(os.path.join(os.path.dirname(found.origin or ""), "capture", "install.py")):
        sys.stderr.write(
            "traceml: this environment has another package named traceml (%s); nothing is recorded\n"
            % found.origin
        )
        return
    from traceml.errors import failsafe, listen

    listen(lambda line: _leave("capture_failed", line))
    failsafe("loading TraceML", None)(_activate)()


def _activate():
    from traceml.capture.install import activate

    activate(_watch)


def _load_watch():
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("_traceml_watch", os.path.join(_HERE, "watch.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ImportWatch()


def _run_next_sitecustomize():
    """What `import sitecustomize` would have found without us."""
    from importlib.machinery import PathFinder

    if PathFinder.find_spec("sitecustomize", sys.path) is None:
        return
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    finally:
        if "sitecustomize" not in sys.modules and ours is not None:
            sys.modules["sitecustomize"] = ours


sys.path[:] = [p for p in sys.path if not p or os.path.abspath(p) != _HERE]
if os.environ.get("TRACEML_RUN_DIR") and os.environ.get("TRACEML_DISABLED", "0") in ("", "0"):
    _seen("python")
    if sys.version_info >= (3, 10):
        atexit.register(_note_failure)
        sys.meta_path.append(_OwnPackage)
        _watch = _load_watch()
        _watch.when_imported("torch", _torch_imported)
    else:
        _seen("old-python")
_run_next_sitecustomize()
