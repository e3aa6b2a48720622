"""Requests in flight: tritonclient's callbacks as values that can be waited for."""

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sits_cli.front import Client, Message

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Call:
    """One request under way."""

    _answer: queue.SimpleQueue[tuple[Message, Exception | None]] = field(
        default_factory=queue.SimpleQueue
    )

    def result(self) -> Message:
        """The answer, or its error raised."""
        answer, error = self._answer.get(timeout=TIMEOUT_S + 5)
        if error is not None:
            raise error
        return answer

    def done(self, result: Message, error: Exception | None) -> None:
        self._answer.put((result, error))


def send(client: Client, model: str, inputs: Sequence[Any], **more: Any) -> Call:
    """Returns at once; `more` goes to `async_infer` as it is."""
    call = Call()
    client.async_infer(model, inputs, call.done, client_timeout=TIMEOUT_S, **more)
    return call
