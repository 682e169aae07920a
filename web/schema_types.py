"""Writes src/schema.ts: TypeScript's view of what Python writes as JSON, made from the same dataclasses.

The type checker needs it, the build does not: `npm run check` runs this first.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

WEB: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(WEB.parent / "src"))

from traceml.schema import catalog, comparison, live, summary  # noqa: E402 - from the sources beside us

PLAIN: Final = {int: "number", float: "number", str: "string", bool: "boolean", type(None): "null"}


def typed(hint: Any) -> str:
    """A Python type as one of TypeScript."""
    if dataclasses.is_dataclass(hint):
        return hint.__name__  # type: ignore[union-attr]
    if hint in PLAIN:
        return PLAIN[hint]
    inner = [typed(part) for part in get_args(hint)]
    if get_origin(hint) is list:
        return f"({inner[0]})[]"
    if get_origin(hint) is dict:
        return f"Record<string, {inner[1]}>"
    return " | ".join(dict.fromkeys(inner))


def declared(kind: type) -> str:
    """The declaration of a dataclass."""
    fields = "".join(f"  {name}: {typed(hint)};\n" for name, hint in get_type_hints(kind).items())
    return f"export interface {kind.__name__} {{\n{fields}}}\n"


def main() -> None:
    """Write the file."""
    kinds = [
        kind
        for module in (catalog, summary, comparison, live)
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and dataclasses.is_dataclass(kind)
    ]
    head = "// Made by web/schema_types.py from src/traceml/schema. Do not edit.\n"
    (WEB / "src" / "schema.ts").write_text(head + "\n".join(declared(kind) for kind in kinds))


if __name__ == "__main__":
    main()
