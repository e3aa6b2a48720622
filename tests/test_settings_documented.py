"""Every setting of a service stands in its README, with its name and default, and no other does.
The reference in docs/settings.md is written from the code: `make check` compares it."""

import importlib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from sits_core.settings import SERVICES, Settings

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| *`(SITS_[A-Z0-9_]+)` *\| *(?:`([^`]*)`)? *\|", re.MULTILINE)


def settings_of(service: str) -> type[Settings] | None:
    module = f"sits_{service}.settings"
    if find_spec(module) is None:
        return None
    classes = vars(importlib.import_module(module)).values()
    (own,) = [
        c for c in classes if isinstance(c, type) and issubclass(c, Settings) and c != Settings
    ]
    return own


def as_written(default: object) -> str:
    """As in a table cell; nothing and the empty text are both blank."""
    if isinstance(default, bool):
        return str(default).lower()
    return "" if default is None else str(default)


def defaults(settings: type[Settings]) -> dict[str, str]:
    fields = settings.model_fields.items()
    return {f"SITS_{name.upper()}": as_written(field.default) for name, field in fields}


def table(readme: Path) -> dict[str, str]:
    rows = ROW.findall(readme.read_text())
    return {name: "" if default == "none" else default for name, default in rows}


SHARED = defaults(Settings)


@pytest.mark.parametrize("service", SERVICES)
def test_settings_of_a_service_are_in_its_readme(service: str) -> None:
    settings = settings_of(service)
    if settings is None:
        pytest.skip(f"{service} has no settings yet")
    own = {name: text for name, text in defaults(settings).items() if name not in SHARED}
    assert table(ROOT / "services" / service / "README.md") == own


def test_every_setting_of_a_service_carries_its_name() -> None:
    for service in SERVICES:
        settings = settings_of(service)
        own = set(defaults(settings)) - set(SHARED) if settings is not None else set()
        assert {name for name in own if not name.startswith(f"SITS_{service.upper()}_")} == set()
