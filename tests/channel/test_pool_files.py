"""Files of shared memory: whole or absent, owned by a lock, removed by whoever comes next."""

import errno
import os
import threading
from pathlib import Path

import pytest
import structlog

from sits_channel.pool import PayloadPool
from sits_channel.pool_files import PAGE_BYTES, PoolUnavailable, create, file_name, remove_orphans
from sits_channel.pool_probe import shares_memory, write_probe
from sits_channel.pool_start import open_pool

CAPACITY_BYTES = 16 * PAGE_BYTES


def orphan(directory: str, deployment: str, process_id: str, kind: str = "pool") -> str:
    """What a killed process leaves: the whole file, its lock dropped by the kernel."""
    file = create(directory, deployment, process_id, kind, PAGE_BYTES)
    os.close(file.fd)
    return file.name


def test_orphans_of_the_deployment_are_removed(shm: str) -> None:
    orphan(shm, "prod", "executor-a")
    orphan(shm, "prod", "executor-b", "probe")
    assert remove_orphans(shm, "prod") == 2
    assert os.listdir(shm) == []


def test_live_files_are_never_removed(shm: str) -> None:
    with PayloadPool(shm, "prod", "executor-a", CAPACITY_BYTES) as pool:
        probe = write_probe(shm, "prod", "executor-a")
        assert remove_orphans(shm, "prod") == 0
        assert sorted(os.listdir(shm)) == sorted([pool.name, probe.name])
        probe.remove()
    assert os.listdir(shm) == []


def test_a_closed_pool_with_views_leaves_nothing_to_remove(shm: str) -> None:
    with PayloadPool(shm, "prod", "executor-a", CAPACITY_BYTES) as pool:
        slot = pool.allocate(1)
    assert slot is not None
    assert remove_orphans(shm, "prod") == 0


def test_files_of_another_deployment_are_left_even_when_names_look_alike(shm: str) -> None:
    names = [orphan(shm, "prod-b", "executor-a"), orphan(shm, "production", "executor-a")]
    assert names[0].startswith("sits-prod-")
    assert remove_orphans(shm, "prod") == 0
    assert sorted(os.listdir(shm)) == sorted(names)


def test_two_deployments_live_side_by_side(shm: str) -> None:
    with PayloadPool(shm, "blue", "executor-a", CAPACITY_BYTES) as blue:
        orphan(shm, "green", "executor-a")
        green = open_pool(shm, "green", "executor-a", CAPACITY_BYTES)
        assert green is not None
        assert sorted(os.listdir(shm)) == [blue.name, green.name]
        green.close()
        assert os.listdir(shm) == [blue.name]


def test_a_pid_in_a_name_proves_nothing(shm: str) -> None:
    dead_with_our_pid = orphan(shm, "prod", f"executor-host-{os.getpid()}-0a1b2c3d")
    with PayloadPool(shm, "prod", "executor-host-999999999-0a1b2c3d", CAPACITY_BYTES) as live:
        assert remove_orphans(shm, "prod") == 1
        assert os.listdir(shm) == [live.name]
    assert live.name != dead_with_our_pid


def test_a_start_under_the_name_of_a_dead_process_succeeds(shm: str) -> None:
    stale = orphan(shm, "prod", "executor-a")
    with PayloadPool(shm, "prod", "executor-a", CAPACITY_BYTES) as pool:
        assert pool.name == stale
        assert pool.allocate(10) is not None


def test_what_is_not_ours_is_left_and_does_not_stop_a_start(shm: str) -> None:
    Path(shm, "sits-prod-text.pool").write_text("not ours")
    Path(shm, "sits-prod-empty.pool").touch()
    Path(shm, "sits-prod-folder.pool").mkdir()
    Path(shm, "sits-prod-link.pool").symlink_to("/etc/hostname")
    os.mkfifo(Path(shm, "sits-prod-fifo.pool"))
    before = set(os.listdir(shm))
    pool = open_pool(shm, "prod", "executor-a", CAPACITY_BYTES)
    assert pool is not None
    assert set(os.listdir(shm)) == before | {pool.name}
    pool.close()


def test_a_file_that_may_not_be_removed_does_not_stop_a_start(
    shm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = orphan(shm, "prod", "executor-a")
    monkeypatch.setattr(os, "unlink", _raiser(errno.EPERM))
    assert remove_orphans(shm, "prod") == 0
    assert os.listdir(shm) == [stale]


def test_orphans_of_another_layout_are_removed(shm: str) -> None:
    stale = Path(shm, orphan(shm, "prod", "executor-a"))
    raw = bytearray(stale.read_bytes())
    raw[8] = 99
    stale.write_bytes(raw)
    assert remove_orphans(shm, "prod") == 1


def test_starters_that_clean_at_once_never_remove_each_others_pools(shm: str) -> None:
    lost: list[str] = []
    barrier = threading.Barrier(4)

    def live(name: str) -> None:
        barrier.wait()
        for life in range(25):
            orphan(shm, "prod", f"dead-{name}-{life}")
            pool = open_pool(shm, "prod", f"{name}-{life}", CAPACITY_BYTES)
            if pool is None or not Path(shm, pool.name).exists():
                lost.append(f"{name}-{life}")
            if pool is not None:
                pool.close()

    threads = [threading.Thread(target=live, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    remove_orphans(shm, "prod")
    assert lost == []
    assert os.listdir(shm) == []


def test_too_little_memory_is_an_error_at_the_start_and_leaves_nothing(shm: str) -> None:
    with pytest.raises(PoolUnavailable, match=r"bytes in /dev/shm/.*: No space left"):
        PayloadPool(shm, "prod", "executor-a", 1 << 45).open()
    assert os.listdir(shm) == []


def test_all_memory_of_a_pool_exists_before_it_is_used(shm: str) -> None:
    with PayloadPool(shm, "prod", "executor-a", CAPACITY_BYTES) as pool:
        found = os.stat(os.path.join(shm, pool.name))
        assert found.st_blocks * 512 >= found.st_size == CAPACITY_BYTES + PAGE_BYTES


def test_a_pool_takes_half_of_what_is_free_and_says_so_once(
    shm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sits_channel.pool_start.free_bytes", lambda _: CAPACITY_BYTES)
    with structlog.testing.capture_logs() as logs:
        pool = open_pool(shm, "prod", "executor-a", CAPACITY_BYTES)
    assert pool is not None
    assert pool.stats().capacity_bytes == CAPACITY_BYTES // 2
    assert [line["event"] for line in logs] == ["payload_pool.smaller"]
    pool.close()


def test_a_file_system_without_a_limit_gives_what_was_asked(
    shm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sits_channel.pool_start.free_bytes", lambda _: None)
    pool = open_pool(shm, "prod", "executor-a", CAPACITY_BYTES)
    assert pool is not None
    assert pool.stats().capacity_bytes == CAPACITY_BYTES
    pool.close()


@pytest.mark.parametrize("failing", ["full", "raced", "missing"])
def test_without_memory_a_process_starts_without_a_pool_and_says_so_once(
    shm: str, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    if failing == "full":
        monkeypatch.setattr("sits_channel.pool_start.free_bytes", lambda _: 0)
    if failing == "raced":
        monkeypatch.setattr(os, "posix_fallocate", _raiser(errno.ENOSPC))
    directory = shm if failing != "missing" else os.path.join(shm, "nowhere")
    with structlog.testing.capture_logs() as logs:
        assert open_pool(directory, "prod", "executor-a", CAPACITY_BYTES) is None
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("payload_pool.none", "warning")
    ]
    assert directory in logs[0]["reason"]
    assert os.listdir(shm) == []


def _raiser(number: int):  # type: ignore[no-untyped-def]
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_failed_start_leaves_no_descriptor_open(
    shm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", _raiser(errno.ENOSPC))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        open_pool(shm, "prod", "executor-a", CAPACITY_BYTES)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("deployment", "process_id"),
    [("", "a"), ("Prod", "a"), ("a/b", "a"), ("prod", "../a"), ("prod", ""), ("prod", "x" * 300)],
)
def test_a_name_that_is_no_plain_file_name_is_refused(deployment: str, process_id: str) -> None:
    with pytest.raises(ValueError, match="cannot be part of a file name"):
        file_name(deployment, process_id, "pool")


def test_processes_of_one_directory_share_memory(shm: str) -> None:
    probe = write_probe(shm, "prod", "executor-a")
    assert shares_memory(shm, probe.name, probe.nonce)
    probe.remove()
    assert not shares_memory(shm, probe.name, probe.nonce)


def test_processes_of_two_directories_do_not(shm: str) -> None:
    ours, theirs = Path(shm, "ours"), Path(shm, "theirs")
    for directory in (ours, theirs):
        directory.mkdir()
    probe = write_probe(str(theirs), "prod", "executor-a")
    assert not shares_memory(str(ours), probe.name, probe.nonce)
    same_name = write_probe(str(ours), "prod", "executor-a")
    assert not shares_memory(str(ours), probe.name, probe.nonce)
    for file in (probe, same_name):
        file.remove()


def test_a_probe_with_a_path_in_its_name_is_not_opened(shm: str) -> None:
    probe = write_probe(shm, "prod", "executor-a")
    folder = Path(shm, "folder")
    folder.mkdir()
    for name in (f"{shm}/{probe.name}", f"../{probe.name}", f"./{probe.name}", "", "\0"):
        assert not shares_memory(str(folder), name, probe.nonce)
        assert not shares_memory(shm, name, probe.nonce)
    probe.remove()


@pytest.mark.parametrize("nonce", [b"", b"\0" * 92, b"x" * 10_000])
def test_an_empty_or_made_up_nonce_shares_nothing(shm: str, nonce: bytes) -> None:
    probe = write_probe(shm, "prod", "executor-a")
    assert not shares_memory(shm, probe.name, nonce)
    assert not shares_memory(shm, probe.name, probe.nonce[:-1])
    Path(shm, probe.name).write_bytes(nonce)
    assert not shares_memory(shm, probe.name, nonce)
    probe.remove()


def test_a_peer_of_another_layout_shares_nothing(shm: str) -> None:
    probe = write_probe(shm, "prod", "executor-a")
    newer = bytearray(probe.nonce)
    newer[8] = 2
    Path(shm, probe.name).write_bytes(newer)
    assert not shares_memory(shm, probe.name, bytes(newer))
    probe.remove()


def test_a_pool_is_a_probe_too(shm: str) -> None:
    file = create(shm, "prod", "executor-a", "pool", PAGE_BYTES)
    assert shares_memory(shm, file.name, file.nonce)
    file.remove()
