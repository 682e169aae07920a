"""Writes docs/settings.md and docs/api.md from the code.

python tools/write_reference.py          write the pages
python tools/write_reference.py --check  exit 1 if a page is out of date
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import traceml
from traceml.capture import api
from traceml.settings import DISABLED_VARIABLE, KEY_VARIABLE, SETTINGS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "traceml"
SETTINGS_HEAD = """# Settings

Written by `tools/write_reference.py` from `settings.py`; do not edit by hand.

A flag wins over an environment variable, a variable over a file, and a file over the default. The file is
`traceml.yaml` in the current folder, or the table `[tool.traceml]` in `pyproject.toml`:

```yaml
logs_dir: /scratch/logs
interval: 2.0
```

"""
SETTINGS_TAIL = f"""
Two more variables are read from the environment only:

| variable | meaning |
|---|---|
| `{DISABLED_VARIABLE}` | 1: run the command without TraceML, as `--disable-traceml` does |
| `{KEY_VARIABLE}` | the secret of a run on several machines that share no folder; the same on all of them |
"""
API_HEAD = """# Python API

Written by `tools/write_reference.py` from the docstrings; do not edit by hand.

All of these calls are optional under `traceml run`. Where nothing records, they do nothing, and one line says
so. `import traceml` loads neither torch nor NumPy.
"""


def settings_page() -> str:
    """Every setting with its three names."""
    rows = ["| flag | variable | in a file | default | meaning |", "|---|---|---|---|---|"]
    for s in SETTINGS:
        flag = f"{s.flag} {s.value}".rstrip()
        default = "" if s.default in (None, False) else f"`{s.default}`"
        rows.append(f"| `{flag}` | `{s.variable}` | `{s.key}` | {default} | {s.help} |")
    return SETTINGS_HEAD + "\n".join(rows) + "\n" + SETTINGS_TAIL


def api_page() -> str:
    """The public names of `traceml`, and the import paths for other libraries."""
    parts = [API_HEAD]
    for name in traceml.__all__:
        found = getattr(traceml, name)
        if callable(found):
            doc = inspect.cleandoc(found.__doc__ or "")
            parts.append(
                f"\n## traceml.{name}\n\n```python\ntraceml.{name}{signature(found)}\n```\n\n{doc}\n"
            )
    parts.append("\n## Other import paths\n\n| module | names | what it is |\n|---|---|---|\n")
    for path in sorted([*PACKAGE.glob("*.py"), *PACKAGE.glob("utils/*.py")]):
        tree = ast.parse(path.read_text())
        names = exported(tree)
        if names and path != PACKAGE / "__init__.py":
            module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            about = " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())
            parts.append(f"| `{module}` | {', '.join(f'`{n}`' for n in names)} | {about} |\n")
    return "".join(parts)


def signature(found: Any) -> str:
    """As it is called. A class in C shows none, but has a twin in Python."""
    try:
        made = inspect.signature(found)
    except ValueError:
        made = inspect.signature(api._TraceStep)
    if inspect.isclass(found):
        made = made.replace(return_annotation=inspect.Signature.empty)
    text = re.sub(r"\b(?:typing|traceml(?:\.\w+)*)\.(?=[A-Z])", "", str(made))  # as the reader imports them
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)  # some annotations are strings; defaults stay


def exported(tree: ast.Module) -> list[str]:
    """The names in `__all__`, without importing the module, which may need another library."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


PAGES = {"settings.md": settings_page, "api.md": api_page}


def main() -> int:
    """Write the pages, or check them."""
    made = {ROOT / "docs" / name: page() for name, page in PAGES.items()}
    if "--check" in sys.argv:
        old = [path.name for path, text in made.items() if not path.exists() or path.read_text() != text]
        print("\n".join(f"docs/{name} is out of date: run tools/write_reference.py" for name in old))
        return 1 if old else 0
    for path, text in made.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
