"""Pools whose owners and readers are other processes, which die in every way."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sits_channel.pool import PayloadPool
from sits_channel.pool_files import PAGE_BYTES, remove_orphans
from sits_channel.pool_reader import PoolReader, StaleReference
from sits_channel.pool_start import open_pool
from sits_protos.v1.common_pb2 import PayloadRef

Start = Callable[..., "subprocess.Popen[str]"]

KILLS = 30
REUSES = 1000
CAPACITY_BYTES = 1 << 20


def say(peer: "subprocess.Popen[str]", line: str) -> None:
    assert peer.stdin is not None
    peer.stdin.write(line + "\n")
    peer.stdin.flush()


def wire(ref: PayloadRef) -> str:
    return ref.SerializeToString().hex()


def heard_ref(peer: "subprocess.Popen[str]") -> PayloadRef:
    return PayloadRef.FromString(bytes.fromhex(heard(peer)))


def heard(peer: "subprocess.Popen[str]") -> str:
    assert peer.stdout is not None
    return peer.stdout.readline().strip()


def kill(peer: "subprocess.Popen[str]") -> None:
    peer.kill()
    peer.wait()


def files(directory: str) -> list[str]:
    return sorted(os.listdir(directory))


def bytes_used(directory: str) -> int:
    return sum(os.stat(Path(directory, name)).st_blocks * 512 for name in os.listdir(directory))


def mapped_pools(directory: str) -> int:
    with open("/proc/self/maps") as maps:
        return sum(directory in line for line in maps)


@pytest.mark.parametrize("ending", ["exit", "exception", signal.SIGTERM, signal.SIGKILL])
def test_a_pool_survives_every_end_of_its_reader(
    shm: str, start: Start, ending: str | signal.Signals
) -> None:
    with PayloadPool(shm, "prod", "owner", CAPACITY_BYTES) as pool:
        slot = pool.allocate(5000)
        assert slot is not None
        for mark in (1, 2):
            slot.view[:] = bytes([mark]) * 5000
            reader = start("read", shm, "signal" if isinstance(ending, signal.Signals) else ending)
            say(reader, wire(slot.ref))
            assert heard(reader) == f"5000 bytes of {{{mark}}} valid=True"
            if isinstance(ending, signal.Signals):
                reader.send_signal(ending)
            assert "resource_tracker" not in reader.communicate()[1]
            assert files(shm) == [pool.name]
        assert set(slot.view) == {2}


def test_readers_killed_again_and_again_cost_the_owner_nothing(shm: str, start: Start) -> None:
    with PayloadPool(shm, "prod", "owner", CAPACITY_BYTES) as pool:
        for life in range(KILLS):
            slot = pool.allocate(100_000, holder=f"reader-{life}")
            assert slot is not None
            slot.view[:] = bytes([life]) * 100_000
            reader = start("read", shm, "signal")
            say(reader, wire(slot.ref))
            assert heard(reader) == f"100000 bytes of {{{life}}} valid=True"
            kill(reader)
            assert pool.release_all(f"reader-{life}") == 1
        assert files(shm) == [pool.name]
        assert pool.stats().slots_in_use == pool.stats().used_bytes == 0
        assert pool.stats().reclaimed == KILLS


def test_owners_killed_again_and_again_leave_one_generation_at_most(shm: str, start: Start) -> None:
    reader = PoolReader(shm)
    one_pool = CAPACITY_BYTES + PAGE_BYTES
    for _ in range(KILLS):
        owner = start("own", shm, "prod")
        ref = heard_ref(owner)
        view = reader.view(ref)
        kill(owner)
        assert set(view) == {7}
        assert reader.still_valid(ref)
        del view
        assert files(shm) == [ref.pool]
        assert bytes_used(shm) <= one_pool
        assert mapped_pools(shm) == 1
    assert remove_orphans(shm, "prod") == 1
    assert files(shm) == []
    reader.close()


def test_killing_one_deployment_leaves_the_other_alone(shm: str, start: Start) -> None:
    blue, green = start("own", shm, "blue"), start("own", shm, "blue-green")
    blue_pool, green_pool = heard_ref(blue).pool, heard_ref(green).pool
    kill(blue)
    kill(green)
    assert files(shm) == sorted([blue_pool, green_pool])
    pool = open_pool(shm, "blue", "next", CAPACITY_BYTES)
    assert pool is not None
    assert files(shm) == sorted([green_pool, pool.name])
    pool.close()


def test_what_was_valid_before_and_after_reading_is_the_payload(shm: str, start: Start) -> None:
    reader = PoolReader(shm)
    owner = start("reuse", shm, "prod")
    wrong = []
    for _ in range(REUSES):
        say(owner, "next")
        ref = heard_ref(owner)
        try:
            payload = bytes(reader.view(ref))
        except StaleReference:
            continue
        if reader.still_valid(ref) and payload != b"old" * (ref.length // 3):
            wrong.append(payload[:3] + payload[-3:])
    assert wrong == []
    reader.close()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "step", ["os.open", "fcntl.fcntl", "os.posix_fallocate", "os.pwrite", "os.link", "mmap.mmap"]
)
def test_a_kill_at_any_step_of_the_creation_leaves_nothing_or_an_orphan(
    shm: str, start: Start, step: str, when: str
) -> None:
    peer = start("die-while-creating", shm, "prod", step, when)
    peer.communicate()
    assert peer.returncode == -signal.SIGKILL
    published = (step, when) == ("os.link", "after") or step == "mmap.mmap"
    assert len(files(shm)) == published
    assert remove_orphans(shm, "prod") == published
    assert files(shm) == []


def test_kills_at_random_instructions_are_cleaned_up_by_the_next_start(
    shm: str, start: Start
) -> None:
    for _ in range(10):
        peers = [start("churn", shm, "prod") for _ in range(2)]
        for peer in peers:
            assert heard(peer) == "churning"
        for peer in peers:
            kill(peer)
        assert len(files(shm)) <= len(peers)
        pool = open_pool(shm, "prod", "next", CAPACITY_BYTES)
        assert pool is not None
        assert files(shm) == [pool.name]
        pool.close()
