"""How a process gets its payload pool when it starts, or does without."""

import structlog

from sits_channel.pool import PayloadPool
from sits_channel.pool_files import PAGE_BYTES, PoolUnavailable, free_bytes, remove_orphans

log = structlog.get_logger()


def open_pool(
    directory: str, deployment: str, process_id: str, capacity_bytes: int
) -> PayloadPool | None:
    """The pool of this process, smaller or None when memory is short: one warning says so.

    Removes what dead processes of the deployment left. Takes at most half of what is free,
    because the others on this host need some too.
    """
    try:
        remove_orphans(directory, deployment)
        granted_bytes = _granted(directory, capacity_bytes)
        pool = PayloadPool(directory, deployment, process_id, granted_bytes).open()
    except PoolUnavailable as error:
        log.warning("payload_pool.none", reason=str(error))
        return None
    if granted_bytes < capacity_bytes:
        log.warning("payload_pool.smaller", asked_bytes=capacity_bytes, granted_bytes=granted_bytes)
    return pool


def _granted(directory: str, wanted_bytes: int) -> int:
    free = free_bytes(directory)
    if free is None:
        return wanted_bytes
    if free < 4 * PAGE_BYTES:
        raise PoolUnavailable(f"{directory} has {free} bytes free")
    return min(wanted_bytes, free // 2)
