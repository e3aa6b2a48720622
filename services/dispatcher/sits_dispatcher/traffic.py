"""How many bytes of tensors moved between where requests lie and the executors that run them."""

from collections import Counter
from collections.abc import Mapping

from sits_scheduling.affinity import Place


class Traffic:
    """Totals by place and executor, both ways together. The dispatcher's lock covers it.

    As many entries as there are pairs of a front door's place and an executor.
    """

    def __init__(self) -> None:
        self._bytes: Counter[tuple[Place, str]] = Counter()

    def moved(self, place: Place, executor: str, size_bytes: int) -> None:
        self._bytes[place, executor] += size_bytes

    def forget(self, executor: str) -> None:
        for key in [key for key in self._bytes if key[1] == executor]:
            del self._bytes[key]

    def totals(self) -> Mapping[tuple[Place, str], int]:
        return dict(self._bytes)

    def __repr__(self) -> str:
        return f"<Traffic {self._bytes.total()} bytes over {len(self._bytes)} ways>"
