"""What the table knows about one model: an array for each fact, an element for each position."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]

_FILL = {"slots": 0.0, "parallel": 1.0, "batches": 0.0, "micro_batch_rows": 0.0, "speed": 1.0}


class ModelColumns:
    """`slots`: batches it takes at once, 0 = does not serve it; `parallel`: how many run at
    once, parts of one where others send there too; `batches`: reserved; `speed`: run time over
    the fleet's; `micro_batch_rows`: its limit, 0 = none."""

    def __init__(self, size: int) -> None:
        self.slots = np.zeros(size)
        self.parallel = np.ones(size)
        self.batches = np.zeros(size)
        self.micro_batch_rows = np.zeros(size)
        self.speed = np.ones(size)
        self._serving: Ints | None = None
        self._row_limit: int | None = None

    def grow(self, size: int) -> None:
        for name, fill in _FILL.items():
            setattr(self, name, grown(getattr(self, name), size, fill))
        self._changed()

    def set(self, position: int, slots: int, parallel: float, micro_batch_rows: int) -> None:
        self.slots[position] = slots
        self.parallel[position] = parallel if parallel > 0 else 1.0
        self.micro_batch_rows[position] = micro_batch_rows
        self._changed()

    def clear(self, position: int) -> None:
        """Whoever was there has left."""
        for name, fill in _FILL.items():
            getattr(self, name)[position] = fill
        self._changed()

    def serving(self) -> Ints:
        """Positions that serve the model."""
        if self._serving is None:
            self._serving = np.flatnonzero(self.slots > 0)
        return self._serving

    def row_limit(self) -> int:
        """The smallest micro-batch limit of all that serve the model, 0 = none has one."""
        if self._row_limit is None:
            limits = self.micro_batch_rows[self.serving()]
            self._row_limit = int(min(limits[limits > 0], default=0))
        return self._row_limit

    def _changed(self) -> None:
        self._serving = self._row_limit = None


def grown(array: Floats, size: int, fill: float = 0.0) -> Floats:
    bigger = np.full(size, fill)
    bigger[: len(array)] = array
    return bigger
