"""A process at the other end of a payload pool, for tests that kill it. Run by `start`."""

import os
import random
import signal
import sys
from collections.abc import Callable

from sits_channel import pool_files
from sits_channel.pool import PayloadPool, Slot
from sits_channel.pool_reader import PoolReader
from sits_channel.pool_start import open_pool
from sits_core.identity import new_process_id
from sits_protos.v1.common_pb2 import PayloadRef

CAPACITY_BYTES = 1 << 20
REUSED_MARKS = 100_000


def say(text: str) -> None:
    print(text, flush=True)


def own(directory: str, deployment: str) -> None:
    """Start as a service does, publish one payload, live until killed."""
    pool = open_pool(directory, deployment, new_process_id("owner"), CAPACITY_BYTES)
    slot = pool and pool.allocate(5000)
    if slot is None:
        raise SystemExit("no pool")
    slot.view[:] = bytes([7]) * 5000
    say(slot.ref.SerializeToString().hex())
    signal.pause()


def read(directory: str, ending: str) -> None:
    """Read the payload named on stdin, tell what it holds, and end in the given way."""
    ref = PayloadRef.FromString(bytes.fromhex(input()))
    reader = PoolReader(directory)
    view = reader.view(ref)
    say(f"{len(view)} bytes of {set(view)} valid={reader.still_valid(ref)}")
    if ending == "exception":
        raise RuntimeError("the end")
    if ending == "signal":
        signal.pause()


def die_while_creating(directory: str, deployment: str, step: str, when: str) -> None:
    """Kill -9 ourselves right before or after one system call of the creation."""
    module, name = step.split(".")
    owner = {"os": os, "fcntl": pool_files.fcntl, "mmap": sys.modules["mmap"]}[module]
    setattr(owner, name, _deadly(getattr(owner, name), when))
    PayloadPool(directory, deployment, new_process_id("owner"), CAPACITY_BYTES).open()
    raise SystemExit(f"{step} was not called")


def _deadly(call: Callable[..., object], when: str) -> Callable[..., object]:
    def die(*args: object, **kwargs: object) -> None:
        if when == "after":
            call(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    return die


def churn(directory: str, deployment: str) -> None:
    """Open and close pools for ever, so that a kill may hit any instruction of it."""
    say("churning")
    while True:
        pool = open_pool(directory, deployment, new_process_id("owner"), CAPACITY_BYTES)
        if pool is not None:
            pool.allocate(100)
            pool.close()


def reuse(directory: str, deployment: str) -> None:
    """For every line on stdin name an old payload, and soon write a new one in its place."""
    rng = random.Random(5)
    with PayloadPool(directory, deployment, new_process_id("owner"), CAPACITY_BYTES) as pool:
        for _ in sys.stdin:
            slot = written(pool, b"old")
            say(slot.ref.SerializeToString().hex())
            for _ in range(rng.randrange(5000)):
                pass  # Not a sleep: gives the reader a head start of 0 to some 100 µs.
            pool.release(slot.ref)
            pool.release(written(pool, b"new").ref)


def written(pool: PayloadPool, mark: bytes) -> Slot:
    slot = pool.allocate(len(mark) * REUSED_MARKS)
    if slot is None:
        raise SystemExit("no room")
    slot.view[:] = mark * REUSED_MARKS
    return slot


ROLES = {
    "own": own,
    "read": read,
    "die-while-creating": die_while_creating,
    "churn": churn,
    "reuse": reuse,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
