"""Shared memory of this process: the probe that peers look for, and the pool for outputs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import structlog

from sits_channel.pool import PayloadPool
from sits_channel.pool_files import PoolUnavailable, SharedFile
from sits_channel.pool_probe import write_probe
from sits_channel.pool_reader import PoolReader
from sits_channel.pool_start import open_pool
from sits_executor.payloads import Payloads
from sits_executor.settings import ExecutorSettings

log = structlog.get_logger()


class Memory(NamedTuple):
    payloads: Payloads
    probe: str
    nonce: bytes


@contextmanager
def open_memory(settings: ExecutorSettings, process_id: str) -> Iterator[Memory]:
    """Without shared memory all goes inline: slower, never wrong."""
    with ExitStack() as stack:
        reader = PoolReader(settings.shm_dir)
        stack.callback(reader.close)
        probe = _probe(settings, process_id, stack)
        pool = _pool(settings, process_id, stack)
        payloads = Payloads(reader, pool, settings.executor_pool_threshold_bytes)
        yield Memory(payloads, probe.name if probe else "", probe.nonce if probe else b"")


def _probe(settings: ExecutorSettings, process_id: str, stack: ExitStack) -> SharedFile | None:
    try:
        probe = write_probe(settings.shm_dir, settings.redis_prefix, process_id)
    except PoolUnavailable as error:
        log.warning("shared_memory.none", reason=str(error))
        return None
    stack.callback(probe.remove)
    return probe


def _pool(settings: ExecutorSettings, process_id: str, stack: ExitStack) -> PayloadPool | None:
    if settings.executor_pool_bytes == 0:
        return None
    pool = open_pool(
        settings.shm_dir, settings.redis_prefix, process_id, settings.executor_pool_bytes
    )
    if pool is not None:
        stack.callback(pool.close)
    return pool
