"""A batch on its way through the executor: its requests, who still waits, and its rows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from sits_core.clock import Deadline
from sits_core.errors import Cancelled, DeadlineExceeded, InvalidArgument, SitsError
from sits_protos.v1.common_pb2 import Tensor
from sits_protos.v1.link_pb2 import BatchHeader, LinkMessage, RequestHeader

Drops = dict[int, SitsError]
"""Positions of requests that need not run, and why."""

Answer = Callable[[LinkMessage], bool]


class Span(NamedTuple):
    """Rows `start` up to, not including, `stop`."""

    start: int
    stop: int


@dataclass(slots=True, eq=False)
class Batch:
    """`answer` is called exactly once, with the whole result message; False = its outputs
    went nowhere.

    `stops` are the rows up to the end of each request. `holder` is the link it came on, which
    owns the slots that its outputs take.
    """

    header: BatchHeader
    requests: Sequence[RequestHeader]
    tensors: Sequence[Tensor]
    stops: Sequence[int]
    received_ns: int
    answer: Answer
    holder: str
    cancelled: set[int] = field(default_factory=set)

    @property
    def rows(self) -> int:
        return self.stops[-1]

    def span(self, position: int) -> Span:
        return Span(self.stops[position - 1] if position else 0, self.stops[position])

    def cancel(self, positions: Iterable[int]) -> None:
        """None at all = every request."""
        self.cancelled.update(tuple(positions) or range(len(self.requests)))

    def drops(self, now_ns: int) -> Drops:
        """Who was cancelled or ran out of time."""
        earliest = self.header.earliest_deadline_unix_ns
        if not self.cancelled and not 0 < earliest <= now_ns:
            return {}
        found = {position: self._drop(position, now_ns) for position in range(len(self.requests))}
        return {position: error for position, error in found.items() if error is not None}

    def _drop(self, position: int, now_ns: int) -> SitsError | None:
        if position in self.cancelled:
            return Cancelled("the request was cancelled before it ran")
        deadline = self.requests[position].deadline_unix_ns
        if deadline and Deadline(deadline).passed(now_ns):
            return DeadlineExceeded(
                "the deadline passed before the request ran", reason="DEADLINE_EXCEEDED_IN_QUEUE"
            )
        return None

    def __repr__(self) -> str:
        header = self.header
        return (
            f"<Batch {header.batch_id} of {header.model}/{header.version} "
            f"requests={len(self.requests)} cancelled={len(self.cancelled)}>"
        )


def from_message(message: LinkMessage, received_ns: int, answer: Answer, holder: str) -> Batch:
    """Raises `InvalidArgument` when header and body contradict each other."""
    # As lists: a message's own containers are several times slower to go through.
    header, requests = message.batch, message.requests[:]
    if not requests or header.requests != len(requests):
        raise InvalidArgument(
            f"batch header announces {header.requests} requests, the body has {len(requests)}"
        )
    stops = list(accumulate([request.rows for request in requests]))
    if stops[-1] != header.rows:
        raise InvalidArgument(
            f"batch header announces {header.rows} rows, its requests have {stops[-1]}"
        )
    return Batch(header, requests, message.inputs[:], stops, received_ns, answer, holder)
