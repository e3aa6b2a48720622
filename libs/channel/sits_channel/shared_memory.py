"""The shared memory of one process: its pool, its reader, and the probe that peers look for."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import structlog

from sits_channel.pool import PayloadPool
from sits_channel.pool_files import PoolUnavailable, SharedFile
from sits_channel.pool_probe import write_probe
from sits_channel.pool_reader import PoolReader
from sits_channel.pool_start import open_pool

log = structlog.get_logger()


class SharedMemory(NamedTuple):
    """`pool` None = all payloads go inline: slower, never wrong. `probe` and `nonce` are
    what Hello carries; empty when this process shares nothing."""

    reader: PoolReader
    pool: PayloadPool | None
    probe: str = ""
    nonce: bytes = b""


@contextmanager
def open_shared_memory(
    directory: str, deployment: str, process_id: str, pool_bytes: int
) -> Iterator[SharedMemory]:
    """`pool_bytes` 0 = no pool of our own; those of others are still read."""
    with ExitStack() as stack:
        reader = PoolReader(directory)
        stack.callback(reader.close)
        probe = _probe(directory, deployment, process_id, stack)
        pool = open_pool(directory, deployment, process_id, pool_bytes) if pool_bytes else None
        if pool is not None:
            stack.callback(pool.close)
        if probe is None:
            yield SharedMemory(reader, pool)
        else:
            yield SharedMemory(reader, pool, probe.name, probe.nonce)


def _probe(directory: str, deployment: str, process_id: str, stack: ExitStack) -> SharedFile | None:
    try:
        probe = write_probe(directory, deployment, process_id)
    except PoolUnavailable as error:
        log.warning("shared_memory.none", reason=str(error))
        return None
    stack.callback(probe.remove)
    return probe
