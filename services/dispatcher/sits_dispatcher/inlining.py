"""Turns references into inline payloads, for an executor that does not share memory."""

from sits_channel import wire
from sits_channel.pool_reader import PoolReader, StaleReference


def inlined(body: bytes | memoryview, reader: PoolReader) -> bytes:
    """The body with its payloads in it. Parses and copies, so it is the exception.

    Raises `StaleReference` when a payload is gone: its front is, too.
    """
    message = wire.parse(body)
    for tensor in message.inputs:
        if tensor.WhichOneof("payload") != "reference":
            continue
        reference = tensor.reference
        with reader.view(reference) as view:
            data = bytes(view)
            if not reader.still_valid(reference):
                raise StaleReference("a payload was taken back while it was read")
        tensor.inline = data
    return message.SerializeToString()
