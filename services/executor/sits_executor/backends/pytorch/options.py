"""Numbers among the options of a module."""

from collections.abc import Mapping


def whole(options: Mapping[str, str], name: str, default: int) -> int:
    """Raises `ValueError` that names the option."""
    text = options.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"option 'module.{name}' is '{text}', expected a whole number above 0")
    return int(text)


def known_only(options: Mapping[str, str], *names: str) -> None:
    if unknown := set(options) - set(names):
        raise ValueError(
            f"unknown option 'module.{min(unknown)}', expected some of {', '.join(names)}"
        )
