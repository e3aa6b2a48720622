"""What a dispatcher writes: micro-batches, cancels and releases to executors, results to fronts."""

from collections.abc import Sequence
from typing import Final

from sits_channel import wire
from sits_channel.pool_reader import PoolReader
from sits_core.clock import now_ns
from sits_core.errors import Cancelled, SitsError
from sits_core.tracing import Tracer
from sits_dispatcher import spans
from sits_dispatcher.inlining import inlined
from sits_dispatcher.job import Job, Peer
from sits_dispatcher.metrics import Metrics
from sits_protos.v1.common_pb2 import PayloadRef
from sits_protos.v1.link_pb2 import Cancel, LinkMessage, Release, ResultHeader

_GIVEN_UP: Final = Cancelled("the request was cancelled before it ran").to_proto()


class Mail:
    """Knows the executors' links; a job knows its front's. Nothing in here waits or decides.

    Not thread-safe: the dispatcher's lock covers it.
    """

    def __init__(self, reader: PoolReader, tracer: Tracer, metrics: Metrics) -> None:
        self._reader, self._tracer, self._metrics = reader, tracer, metrics
        self._executors: dict[str, Peer] = {}
        self._sharing: set[str] = set()

    def __repr__(self) -> str:
        return f"<Mail to {len(self._executors)} executors>"

    def joined(self, executor: str, peer: Peer, *, shares_memory: bool) -> None:
        self._executors[executor] = peer
        if shares_memory:
            self._sharing.add(executor)

    def left(self, executor: str) -> None:
        self._executors.pop(executor, None)
        self._sharing.discard(executor)

    # to executors

    def send(self, job: Job) -> bool:
        """To the executor that is reserved for it; False when its link is full or closing. Raises
        `StaleReference` when the payload is gone that had to be read for it."""
        message = self._outgoing(job)
        # Stamped first: over a ring the executor has it before `write` returns.
        job.sent_ns = now_ns()
        return self._executors[job.executor].write(message).accepted

    def cancel(self, job: Job, positions: Sequence[int] = ()) -> None:
        """None at all = the whole."""
        self._write(job.executor, LinkMessage(cancel=_cancel(job, requests=positions)))

    def ask_back(self, job: Job) -> None:
        """Only if it still waits there."""
        self._write(job.executor, LinkMessage(cancel=_cancel(job, if_waiting=True)))

    def release(self, executor: str, slots: Sequence[PayloadRef]) -> None:
        """Nobody reads these slots of the executor's pool any more."""
        self._write(executor, LinkMessage(release=Release(instance=executor, slots=slots)))

    def forward_release(self, head: bytes) -> None:
        """A front's, to the executor whose slots it names."""
        peer = self._executors.get(Release.FromString(head).instance)
        if peer is not None:
            peer.write(wire.join(wire.RELEASE, head))

    def give_back(self, executor: str, header: ResultHeader, body: memoryview) -> None:
        """Nobody reads the outputs of this result: the executor may have its slots again."""
        if header.payload_bytes <= header.inline_bytes:
            return
        slots = [t.reference for t in wire.parse(body).outputs if t.HasField("reference")]
        if slots:
            self.release(executor, slots)

    # to fronts

    def answer(self, job: Job, header: ResultHeader, body: bytes | memoryview) -> None:
        """Under the front's own number, with our stamps."""
        header.batch_id = job.batch_id
        header.first_request, header.requests = job.first_request, job.header.requests
        header.times.dispatcher_received = job.received_ns
        header.times.dispatcher_sent = job.sent_ns
        header.times.dispatcher_returned = now_ns()
        if job.explanation:
            header.explanation = job.explanation
        if job.header.trace_contexts and header.times.executor_sent:
            spans.returned(self._tracer, job, header.times)
        if job.front.gone:
            return
        message = wire.join(wire.RESULT, header.SerializeToString(), body)
        if not job.front.peer.write(message).accepted:
            # A front that reads nothing. Losing the link makes it send again what is open.
            self._metrics.dropped("front_full")
            job.front.peer.close()

    def fail(self, job: Job, error: SitsError) -> None:
        self._metrics.refused(error.reason)
        self.answer(job, ResultHeader(error=error.to_proto(), version=job.header.version), b"")

    def drop(self, job: Job) -> None:
        """Nobody waits for it: the front hears of it all the same, and has its place back."""
        self._metrics.dropped("cancelled")
        self.answer(job, ResultHeader(error=_GIVEN_UP, version=job.header.version), b"")

    # steps

    def _outgoing(self, job: Job) -> bytes:
        header = job.header
        header.batch_id, header.moves = job.key, job.moves
        shared = job.executor in self._sharing
        header.results_by_reference = shared and job.front.shares_memory
        body = job.body
        if header.by_reference and not shared:
            body, header.inline_bytes = inlined(body, self._reader), header.payload_bytes
        return wire.join(wire.BATCH, header.SerializeToString(), body)

    def _write(self, executor: str, message: LinkMessage) -> None:
        """Not to one that has left."""
        peer = self._executors.get(executor)
        if peer is not None:
            peer.write(message.SerializeToString())


def _cancel(job: Job, requests: Sequence[int] = (), *, if_waiting: bool = False) -> Cancel:
    return Cancel(batch_id=job.key, requests=requests, if_waiting=if_waiting)
