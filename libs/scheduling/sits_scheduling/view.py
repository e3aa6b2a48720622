"""What one decision sees."""

from dataclasses import dataclass

from sits_scheduling.columns import Flags, Floats, Ints
from sits_scheduling.nearness import Ways


@dataclass(slots=True, eq=False)  # frozen costs 2 µs more a decision
class Candidates:
    """One decision's view, not to be changed. All arrays have the same length and order.

    `positions`: in the table. `batches` and `rows`: reserved for all models;
    `model_batches`: for this model. `slots`: batches of this model it takes at once;
    `parallel`: how many run at once. `wait_ns`: predicted until a new batch would start.
    `speed`: run time over the fleet's, `service_ns`: the fleet's for this batch, 0 = not
    known. `ways`: from the payload's place.
    `ahead_us`: what the later steps of its pipeline cost from there, None = it has none.
    `allowed`: connected, serves the model, not excluded.
    """

    positions: Ints
    batches: Floats
    rows: Floats
    model_batches: Floats
    slots: Floats
    parallel: Floats
    wait_ns: Floats
    speed: Floats
    ways: Ways
    allowed: Flags
    service_ns: float = 0.0
    payload_bytes: int = 0
    ahead_us: Floats | None = None

    def __len__(self) -> int:
        return len(self.allowed)
