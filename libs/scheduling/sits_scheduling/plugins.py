"""Strategies of others, found through the entry-point group `sits.strategies`.

The one module of this package that looks around: the rest gets what it returns as a value.
An entry point names a `Factory`, a function from a `random.Random` to a `Strategy`:

    [project.entry-points."sits.strategies"]
    cheapest = "my_package.placement:cheapest"
"""

from importlib.metadata import entry_points
from typing import Final, cast

from sits_scheduling.strategies import Factory, factory

GROUP: Final = "sits.strategies"


class PluginError(Exception):
    """A strategy was refused; the text names its entry point and what is wrong."""


def load_strategies() -> dict[str, Factory]:
    """All installed ones by name. Raises `PluginError` for one that cannot be used."""
    found: dict[str, Factory] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in found or factory(entry.name) is not None:
            raise PluginError(f"strategy '{entry.name}' ({entry.value}): the name is taken")
        try:
            loaded: object = entry.load()
        except (ImportError, AttributeError) as error:
            raise PluginError(f"strategy '{entry.name}' ({entry.value}): {error}") from error
        if not callable(loaded):
            raise PluginError(f"strategy '{entry.name}' ({entry.value}): expected a function")
        found[entry.name] = cast("Factory", loaded)
    return found
