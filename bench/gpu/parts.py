"""The parts of a run, one after the other: one that fails is told, the others go on, and what was
found is kept after each, so that a run that is cut short keeps what it has."""

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpu import machine
from sits_bench.show import FAILED
from sits_cli.commands.simulate import show
from sits_sim.figures import Figure, Report


class Parts:
    """`raw`: what stands under `runs` in the kept file, if anything."""

    def __init__(self, kept: Path | None, **parameters: object) -> None:
        self._kept, self._parameters = kept, parameters
        self._figures: list[Figure] = []
        self._failed: list[str] = []
        self.raw: dict[str, Any] = {}

    def run(self, name: str, measure: Callable[[], Iterable[Figure]]) -> None:
        began = time.monotonic()
        try:
            self._figures += measure()
        except Exception as error:  # noqa: BLE001 - the next part may work
            traceback.print_exc()
            self._failed.append(f"{name}: {type(error).__name__}: {error}")
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        self._keep()

    def end(self, *, as_json: bool) -> int:
        """Prints the report; the exit status."""
        report = self._report()
        if as_json:
            print(json.dumps(report.as_dict(), indent=2, ensure_ascii=False))
        else:
            show(report)
        return 0 if report.holds and not self._failed else 1

    def _report(self) -> Report:
        parameters = {**machine.describe(), **self._parameters}
        if self._failed:
            parameters[FAILED] = self._failed
        return Report(parameters, self._figures)

    def _keep(self) -> None:
        if self._kept is None:
            return
        self._kept.parent.mkdir(parents=True, exist_ok=True)
        content = self._report().as_dict() | ({"runs": self.raw} if self.raw else {})
        self._kept.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
