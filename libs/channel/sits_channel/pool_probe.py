"""How two processes find out that they share memory: one reads what the other wrote."""

import os

from sits_channel.pool_files import (
    PAGE_BYTES,
    SharedFile,
    create,
    is_readable,
    open_file,
    read_nonce,
)


def write_probe(directory: str, deployment: str, process_id: str) -> SharedFile:
    """A file for peers to look for, ours until removed. Raises `PoolUnavailable`.

    Hello.shm_probe is its `name`, Hello.shm_nonce its `nonce`.
    """
    return create(directory, deployment, process_id, "probe", PAGE_BYTES)


def shares_memory(directory: str, probe: str, nonce: bytes) -> bool:
    """Whether the peer that sent `probe` and `nonce` writes into our `directory`.

    `probe` is a plain file name; one with a path in it is never opened. False as well
    when the peer's release lays out its slots in another way.
    """
    if not is_readable(nonce):
        return False
    try:
        fd = open_file(directory, probe, os.O_RDONLY)
    except OSError:
        return False
    try:
        return read_nonce(fd) == nonce
    finally:
        os.close(fd)
