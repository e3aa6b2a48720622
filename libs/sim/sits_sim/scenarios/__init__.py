"""The scenarios by name. Each returns a report whose figures have the bars it must reach."""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

from sits_sim.figures import Report
from sits_sim.progress import Progress
from sits_sim.scenarios.size import Size as Size

Scenario = Callable[[Size, Progress], Report]

NAMES: Final = ("thousand", "tenants", "timeslice", "contention", "jitter", "governance")


def about(name: str) -> str:
    """What it is, in a line."""
    source = Path(__file__).with_name(f"{name}.py").read_text()
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def scenario(name: str) -> Scenario:
    """Imported when asked for, so that a command line that only needs the names is quick."""
    run: Scenario = import_module(f"sits_sim.scenarios.{name}").run
    return run
