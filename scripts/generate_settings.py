"""Writes the tables of docs/settings.md from the services' settings classes.

    python scripts/generate_settings.py [--check]

`--check` changes nothing and fails when the page is not what the code says.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from sits_core.settings import SERVICES, Settings

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
MARK = "<!-- Written by scripts/generate_settings.py from here on. -->\n"


def main(arguments: list[str]) -> int:
    written = PAGE.read_text()
    wanted = page(written)
    if written == wanted:
        return 0
    if "--check" in arguments:
        print("docs/settings.md does not say what the code says: make settings", file=sys.stderr)
        return 1
    PAGE.write_text(wanted)
    return 0


def page(written: str) -> str:
    """The page with its tables anew."""
    head, _, _ = written.partition(MARK)
    parts = [table("All services", Settings, {})]
    parts += [table(s.capitalize(), settings_of(s), Settings.model_fields) for s in SERVICES]
    return f"{head}{MARK}\n" + "\n".join(parts)


def settings_of(service: str) -> type[Settings]:
    found = vars(import_module(f"sits_{service}.settings")).values()
    (own,) = (
        c for c in found if isinstance(c, type) and issubclass(c, Settings) and c is not Settings
    )
    return own


def table(title: str, settings: type[Settings], known: dict[str, FieldInfo]) -> str:
    rows = [row(name, field) for name, field in settings.model_fields.items() if name not in known]
    head = f"## {title}\n\n| variable | default | values | meaning |\n|---|---|---|---|\n"
    return head + "".join(rows)


def row(name: str, field: FieldInfo) -> str:
    default = shown(field.default)
    cells = (f"`SITS_{name.upper()}`", f"`{default}`" if default else "", values(field))
    meaning = (field.description or "").replace("|", "\\|")
    return f"| {' | '.join(cells)} | {meaning} |\n"


def shown(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return "" if default is None else str(default)


def values(field: FieldInfo) -> str:
    """What may be given: choices, a kind of number with its bounds, or any text."""
    kinds = get_args(field.annotation) if get_origin(field.annotation) else (field.annotation,)
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in kinds)
    words = {bool: "true, false", int: "integer", float: "number"}
    word = next((words[kind] for kind in kinds if kind in words), "text")
    return " ".join([word, *bounds(field)])


def bounds(field: FieldInfo) -> Iterator[str]:
    for limit in field.metadata:
        match limit:
            case Ge(ge):
                yield f"≥ {ge}"
            case Gt(gt):
                yield f"> {gt}"
            case Le(le):
                yield f"≤ {le}"
            case Lt(lt):
                yield f"< {lt}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
