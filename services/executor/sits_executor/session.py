"""One linked dispatcher: its unanswered batches, each of which is answered exactly once."""

import threading

import structlog

from sits_channel.link import Link
from sits_core.errors import ResourceExhausted, SitsError
from sits_executor import answers
from sits_executor.answers import Stages
from sits_executor.batch import Batch
from sits_protos.v1.control_pb2 import PeerState
from sits_protos.v1.link_pb2 import BatchHeader, Cancel, Hello, LinkMessage

log = structlog.get_logger()

_FRAME_BYTES = 1024
"""Left of the message limit for the framing and the stamps that the dispatcher adds."""


class Session:
    """`holder` names the link as the owner of payload slots; `reader` reads it."""

    def __init__(self, link: Link, holder: str, instance: str, max_message_bytes: int) -> None:
        self.link, self.holder, self.reader = link, holder, threading.current_thread()
        self._instance, self._max_message_bytes = instance, max_message_bytes
        self.hello = Hello()
        self._results = self._errors = 0
        self._unanswered: dict[int, Batch] = {}
        self._lock = threading.Lock()

    def accept(self, batch: Batch) -> bool:
        """False when its number is taken by an unanswered batch."""
        with self._lock:
            return self._unanswered.setdefault(batch.header.batch_id, batch) is batch

    def find(self, cancel: Cancel) -> Batch | None:
        return self._unanswered.get(cancel.batch_id)

    @property
    def idle(self) -> bool:
        return not self._unanswered

    def state(self) -> PeerState:
        batches = list(self._unanswered.values())
        return PeerState(
            hello=self.hello,
            address=self.link.peer,
            connected=not self.link.closed,
            transport=self.link.transport,
            batches_in_flight=len(batches),
            rows_in_flight=sum(batch.rows for batch in batches),
            batches_total=self._results,
            errors_total=self._errors,
        )

    def cancel_all(self) -> None:
        """Nobody waits any more: what has not been launched need not be."""
        for batch in list(self._unanswered.values()):
            batch.cancel(())

    def answer(self, message: LinkMessage) -> bool:
        """Send a result. False when its outputs went nowhere: it is too large for a message,
        was answered before, or the dispatcher is gone."""
        if self._unanswered.pop(message.result.batch_id, None) is None:
            return False
        data = message.SerializeToString()
        fits = len(data) <= self._max_message_bytes - _FRAME_BYTES
        if not fits:
            message = self._too_large(message, len(data))
            data = message.SerializeToString()
        self._results += 1
        self._errors += message.result.HasField("error")
        return self._send(data) and fits

    def refuse(self, header: BatchHeader, error: SitsError, received_ns: int) -> None:
        """Answer a batch that was never accepted."""
        stages = Stages(received_ns)
        message = answers.whole_failure(header, error, self._instance, stages)
        self._send(message.SerializeToString())

    def _too_large(self, message: LinkMessage, size_bytes: int) -> LinkMessage:
        """An error instead: a message over the limit would end the stream for all on it."""
        error = ResourceExhausted(
            f"the results of this batch have {size_bytes} bytes, "
            f"a message has at most {self._max_message_bytes} (SITS_MAX_MESSAGE_BYTES)",
            reason="RESULT_TOO_LARGE",
        )
        slim = LinkMessage(result=message.result)
        slim.result.error.CopyFrom(error.to_proto())
        return slim

    def _send(self, data: bytes) -> bool:
        """A dispatcher that does not read gets its link closed: it moves its batches then,
        while a result left out would leave one of them unanswered for ever."""
        accepted = self.link.write(data).accepted
        if not accepted and not self.link.closed:
            log.warning("link.stuck", peer=self.link.peer)
            self.link.close()
        return accepted

    def __repr__(self) -> str:
        return f"<Session {self.holder} unanswered={len(self._unanswered)}>"
